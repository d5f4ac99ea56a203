"""The settings of one monitor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from ultramon.context.estimator import FAMILIES, family_for_model
from ultramon.context.ladder import (
    ACTIONS,
    CRITICAL,
    DEFAULT_REARM_MARGIN,
    LADDERS,
    WARNING,
    Ladder,
    Rung,
)
from ultramon.context.limits import default_window_from_environment
from ultramon.context.note import MAX_CRITICAL_NOTE_CHARS, check_critical_note
from ultramon.context.shared_levels import VARIABLE, SharedLevels
from ultramon.context.tracker import MAX_SOURCE_CHARS, MAX_SOURCES
from ultramon.errors import ConfigurationError
from ultramon.system.environment import GIVEN_VARIABLES, VARIABLES
from ultramon.system.settings import (
    ARGUMENT,
    HIGHER,
    LOWER,
    MARGIN,
    MOST_SECONDS,
    MOST_TOKENS,
    RATIO,
    TABLES,
    TEXT,
    TOKENS,
    Kind,
    OrNone,
    Settings,
    Tightening,
    check_settings,
    choice,
    log_refusal,
    number,
    setting,
    whole_number,
)
from ultramon.system.settings_files import TOML_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

_RUNG_SETTINGS = ("name", "ratio", "tokens_left", "action", "rearm_ratio")


class _Ladder(Kind):
    def check(self, name: str, value: Any, source: str = ARGUMENT) -> Ladder | tuple[Rung, ...]:
        """Return a ladder, or the rungs that TOML lists."""
        given: Ladder | list[Any] = super().check(name, value, source)
        if isinstance(given, Ladder):
            return given
        for row in given:
            if not isinstance(row, dict) or "name" not in row:
                raise ConfigurationError(name, row, "tables that have a name", source)
            check_settings(row, _RUNG_SETTINGS, source, "ladder")
        with _from(source):
            return tuple(Rung(**row) for row in given)


class _Standing(Kind):
    def check(self, name: str, value: Any, source: str = ARGUMENT) -> dict[str, int]:
        """Return tokens by source."""
        given: Mapping[str, Any] = super().check(name, value, source)
        for part in given:
            if not isinstance(part, str) or not 0 < len(part) <= MAX_SOURCE_CHARS:
                allowed = f"names of 1 to {MAX_SOURCE_CHARS} characters"
                raise ConfigurationError(f"{name} source", part, allowed, source)
        # In one order: configurations that are equal have one hash.
        return {part: TOKENS.check(f"{name}.{part}", given[part], source) for part in sorted(given)}


class _Note(Kind):
    def check(self, name: str, value: Any, source: str = ARGUMENT) -> str | None:
        return check_critical_note(super().check(name, value, source), source)


@contextmanager
def _from(source: str) -> Iterator[None]:
    """Name the source in errors about a ladder."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(error.name, error.value, error.allowed, source) from None


_SECONDS = number(
    f"seconds above 0, at most {MOST_SECONDS:,}", lambda value: 0 < value <= MOST_SECONDS, "seconds"
)
_GRACE = number(
    f"seconds from 0 to {MOST_SECONDS:,}", lambda value: 0 <= value <= MOST_SECONDS, "seconds"
)
_LADDER = _Ladder(
    "a Ladder, or in TOML an array of tables", lambda value: isinstance(value, Ladder | list)
)
_STANDING = _Standing(
    f"a mapping of at most {MAX_SOURCES} names to tokens",
    lambda value: isinstance(value, Mapping) and len(value) <= MAX_SOURCES,
)
MAX_PROJECT_RUNGS = 16
"""The most rungs that an untrusted project may give a ladder: each one costs every monitor time."""


def _is_no_later_ladder(rungs: Any, name: str, own: Any) -> bool:
    """Return whether a ladder has all rungs of the user's, none of them later or weaker.

    Its own rungs lie below those: above, or between them, they would hide the user's levels.
    """
    users = own.effective_ladder.rungs
    if len(rungs) > max(MAX_PROJECT_RUNGS, len(users)):
        return False
    Ladder(rungs, rearm_margin=own.rearm_margin)
    return len(rungs) >= len(users) and all(
        map(_is_no_later, rungs[len(rungs) - len(users) :], users)
    )


def _is_no_later(rung: Rung, users: Rung) -> bool:
    return (
        rung.name == users.name
        and (users.ratio is None or (rung.ratio is not None and rung.ratio <= users.ratio))
        and (
            users.tokens_left is None
            or (rung.tokens_left is not None and rung.tokens_left >= users.tokens_left)
        )
        and ACTIONS.index(rung.action) >= ACTIONS.index(users.action)
        and rung.rearm_ratio in (None, users.rearm_ratio)
    )


_NO_LATER_LADDER = Tightening("no level later, weaker or missing", _is_no_later_ladder)
_NOTE = _Note(f"text of at most {MAX_CRITICAL_NOTE_CHARS} characters", TEXT.test)


class ContextConfig(Settings, table="context", other_variables=VARIABLES | GIVEN_VARIABLES):
    """Everything about one monitor that can be configured: docs/settings.md lists the settings.

    A setting that is not given comes from its environment variable (``ULTRAMON_`` and the name in
    upper case), else from the table ``[context]`` of ``ultramon.toml`` (``ULTRAMON_CONFIG``, else
    the working directory, else the user's configuration directory), else from the default here; the
    two thresholds before that from `ultramon.context.shared_levels.SharedLevels`. A file in the
    working directory that is not trusted can only have an agent warned earlier.

    Raises:
        ConfigurationError: A value is out of range; names the value and its source.
    """

    context_limit_tokens: int | None = setting(
        OrNone(TOKENS),
        None,
        "A cap of yours on the context limit; None = no cap.",
        from_project=LOWER,
    )
    context_window_tokens: int | None = setting(
        OrNone(TOKENS), None, "Tokens that the model can hold; None = by host, provider or model."
    )
    reserved_output_tokens: int = setting(
        whole_number(0, MOST_TOKENS, "tokens"),
        0,
        "Part of the window kept free for the reply.",
        from_project=HIGHER,
    )
    model: str | None = setting(
        OrNone(TEXT), None, "Model in any common spelling; decides window and tokenizer family."
    )
    warning_threshold: float = setting(
        RATIO,
        LADDERS["sdk"][WARNING],
        "Where the default ladder warns; below `critical_threshold`.",
        from_project=LOWER,
    )
    critical_threshold: float = setting(
        RATIO,
        LADDERS["sdk"][CRITICAL],
        "Where the default ladder asks the agent to return.",
        from_project=LOWER,
    )
    warning_tokens_left: int | None = setting(
        OrNone(TOKENS),
        None,
        "Tokens left at which to warn, if that is earlier; None = by ratio.",
        from_project=HIGHER,
    )
    critical_tokens_left: int | None = setting(
        OrNone(TOKENS),
        None,
        "Tokens left that are critical, if that is earlier; None = by ratio.",
        from_project=HIGHER,
    )
    rearm_margin: float | None = setting(
        OrNone(MARGIN),
        DEFAULT_REARM_MARGIN,
        "Fall below a level after which it fires again; None = not before the window is new.",
    )
    ladder: Ladder | None = setting(
        OrNone(_LADDER),
        None,
        "Replaces all thresholds above. In TOML each level is a table with "
        f"{', '.join(f'`{name}`' for name in _RUNG_SETTINGS)}, and `rearm_margin` applies.",
        variable="",
        from_project=_NO_LATER_LADDER,
    )
    critical_note: str | None = setting(
        OrNone(_NOTE), None, "A sentence of yours at the end of the note that asks to return."
    )
    tokenizer_family: str | None = setting(
        OrNone(choice(*FAMILIES)),
        None,
        "Decides the estimate; None = by model, else the family that estimates highest.",
    )
    standing: Mapping[str, int] | None = setting(
        OrNone(_STANDING),
        None,
        "Tokens by name that are in the window before the first word, such as `system`, `tools`, "
        "`mcp:github`; None = the first report shows them.",
        variable="",
    )
    save_interval_seconds: float = setting(
        _SECONDS, 5.0, "Longest time that a change of the token count stays unsaved."
    )
    heartbeat_interval_seconds: float = setting(
        _SECONDS, 15.0, "Time between heartbeats; an agent that misses three is stale."
    )
    grace_seconds: float = setting(
        _GRACE, 30.0, "Time an agent has to hand off after a request to return."
    )
    lost_after_seconds: float | None = setting(
        OrNone(_SECONDS), None, "Silence of a lost agent; None = 10 heartbeats, at least 600."
    )
    store_timeout_seconds: float = setting(
        _SECONDS, 5.0, "Longest time that `start`, `hand_off` and `stop` wait for the store."
    )
    on_error: Literal["log", "raise"] = setting(
        choice("log", "raise"),
        "log",
        "A failed save is logged and tried again, or (for tests) raises.",
    )

    def _shared_values(self) -> dict[str, tuple[Any, str]]:
        levels = SharedLevels()
        if levels.refusal:
            log_refusal(levels.refusal)
        return {f"{name}_threshold": level for name, level in levels.ratios.items()}

    def _check_together(self) -> None:
        _refuse_ladder_variable()
        rungs: Any = self.ladder
        if isinstance(rungs, tuple):
            with _from(self.sources["ladder"]):
                vars(self)["ladder"] = Ladder(rungs, rearm_margin=self.rearm_margin)
        if self.ladder is None:
            if self.warning_threshold >= self.critical_threshold:
                raise self._contradiction(
                    "warning_threshold", f"below critical_threshold={self.critical_threshold}"
                )
            early, late = self.warning_tokens_left, self.critical_tokens_left
            if early is not None and late is not None and early <= late:
                raise self._contradiction(
                    "warning_tokens_left", f"above critical_tokens_left={late}"
                )
        window = self.context_window_tokens
        if window is not None and self.reserved_output_tokens >= window:
            raise self._contradiction(
                "reserved_output_tokens", f"below context_window_tokens={window}"
            )

    def _check_tightened(self) -> None:
        vars(self).pop("effective_ladder", None)
        # An arm that the limit drops would leave its rung later than the user's.
        if self.effective_ladder.resolve(self.context_limit_tokens).dropped:
            raise self._contradiction("context_limit_tokens", "above the tokens left of every rung")

    @cached_property
    def effective_ladder(self) -> Ladder:
        """The ladder that decides: the given one, else the two-rung ladder of the thresholds."""
        if self.ladder is not None:
            return self.ladder
        return Ladder.default(
            self.warning_threshold,
            self.critical_threshold,
            warning_tokens_left=self.warning_tokens_left,
            critical_tokens_left=self.critical_tokens_left,
            rearm_margin=self.rearm_margin,
        )

    @property
    def effective_family(self) -> str:
        """The tokenizer family that estimates."""
        return self.tokenizer_family or family_for_model(self.model)

    @property
    def default_window_tokens(self) -> int | None:
        """The window assumed when no model is named, in tokens; None when one is named."""
        return None if self.model else default_window_from_environment(os.environ)


def _refuse_ladder_variable() -> None:
    # Its value would count for nothing, where rungs decide when an agent is warned.
    variable = f"{TABLES['context']}LADDER"
    if value := os.environ.get(variable):
        allowed = (
            f"unset, as a ladder has no variable: {VARIABLE}=70,85 sets its two levels,"
            f" [context] ladder in {TOML_NAME} or ContextConfig(ladder=...) all rungs"
        )
        raise ConfigurationError(variable, value, allowed, "environment")


def as_config(given: object) -> ContextConfig:
    """Return a configuration; None = from environment, file and defaults.

    Raises:
        ConfigurationError: It is something else, such as a dict.
    """
    if given is None:
        return ContextConfig()
    if isinstance(given, ContextConfig):
        return given
    fields = ", ".join(f"{name}=..." for name in given) if isinstance(given, dict) else "..."
    raise ConfigurationError("config", given, f"a ContextConfig: ContextConfig({fields})")
