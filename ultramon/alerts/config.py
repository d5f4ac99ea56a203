"""The statuses of a context window and the settings of alerts about it."""

from __future__ import annotations

from itertools import pairwise

from ultramon.context.ladder import (
    CAUTION,
    CRITICAL,
    DEFAULT_REARM_MARGIN,
    EMERGENCY,
    LADDERS,
    WARNING,
    Ladder,
    Rung,
)
from ultramon.context.shared_levels import VARIABLE, SharedLevels
from ultramon.errors import ConfigurationError
from ultramon.system.environment import is_yes
from ultramon.system.settings import (
    ARGUMENT,
    LOWER,
    MARGIN,
    MOST_SECONDS,
    RATIO,
    Kind,
    Settings,
    choice,
    log_refusal,
    number,
    setting,
    whole_number,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

OK = "ok"
STALE = "stale"
RATIOS = LADDERS["alerts"]
"""Usage ratio at which each level begins by default."""
LEVELS = tuple(RATIOS)
DEFAULT_ACTIONS = {
    OK: "none needed",
    WARNING: "a good point to finish the subtask in hand and to note what is left",
    CAUTION: "finish what is in hand, then write down what is done, what is left, what comes next",
    CRITICAL: "recommended: record the state of the work before anything new is begun",
    EMERGENCY: "the window is nearly full: record the state of the work immediately",
    STALE: "check the integration that reports it, e.g. with `ultramon doctor`",
}
STATUSES = tuple(DEFAULT_ACTIONS)
_OF_SHARED = {WARNING: WARNING, CRITICAL: CAUTION}
"""The level here by that of ``[levels]``: where monitors ask to return, alerts say *caution*."""

_MAX_TEXT_CHARS = 500


class _Lines(Kind):
    def check(self, name: str, value: Any, source: str = ARGUMENT) -> tuple[str, ...]:
        return tuple(_LINE.check(name, line, source) for line in super().check(name, value, source))


class _Table(Kind):
    def __init__(self, allowed: str, key_name: str, keys: Kind, values: Kind) -> None:
        super().__init__(allowed, _is_list)
        self._key_name, self._keys, self._values = key_name, keys, values

    def check(self, name: str, value: Any, source: str = ARGUMENT) -> dict[str, Any]:
        try:
            table = dict(value)
        except (TypeError, ValueError):
            raise ConfigurationError(name, value, self.allowed, source) from None
        return {
            self._keys.check(f"{name}: {self._key_name}", key, source): self._values.check(
                f"{name}: {key}", item, source
            )
            for key, item in table.items()
        }


def _is_list(value: Any) -> bool:
    return hasattr(value, "__iter__") and not isinstance(value, str)


def _is_line(text: Any) -> bool:
    # What an agent reads, or what becomes part of a path, must not draw or hide anything.
    return isinstance(text, str) and text.isprintable() and 0 < len(text) <= _MAX_TEXT_CHARS


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


_FLAG = Kind("true or false", lambda value: isinstance(value, bool), lambda text: not is_yes(text))
_SECONDS = number(
    f"seconds from 0 to {MOST_SECONDS:,}", lambda value: 0 <= value <= MOST_SECONDS, "seconds"
)
RUNS = whole_number(1, 1_000_000)
"""Runs of a command per check."""
_LINE = Kind(f"one line of 1 to {_MAX_TEXT_CHARS} printable characters", _is_line)
_LINES = _Lines("a list of command names", _is_list, _split)
_ACTIONS = _Table(
    f"a table of lines of at most {_MAX_TEXT_CHARS} characters", "status", choice(*STATUSES), _LINE
)
_EVERY = _Table("a table of whole numbers from 1 to 1,000,000", "command", _LINE, RUNS)


class AlertConfig(Settings, table="alerts", none_is_default=True):
    """Everything about alerts that can be configured: docs/settings.md lists the settings.

    A setting that is not given, or is None, comes from its environment variable
    (``ULTRAMON_ALERT_`` and the name in upper case, where docs/settings.md names no other), else
    from the table ``[alerts]`` of ``ultramon.toml`` (``ULTRAMON_CONFIG``, else the working
    directory, else the user's configuration directory), else from the default here; warning and
    caution before that from the table ``[levels]``. A file in the working directory that is not
    trusted can only have an agent alerted earlier.

    Raises:
        ConfigurationError: A value is out of range; names the value and its source.
    """

    enabled: bool = setting(
        _FLAG, True, "Whether to alert at all; the variable set to `1` turns alerts off.",
        variable="ULTRAMON_NO_ALERT",
    )  # fmt: skip
    directory: str = setting(
        _LINE, ".ultramon", "The project directory.", variable="ULTRAMON_ALERT_DIR"
    )
    warning_threshold: float = setting(
        RATIO, RATIOS[WARNING], "Where the status `warning` begins.", from_project=LOWER
    )
    caution_threshold: float = setting(
        RATIO,
        RATIOS[CAUTION],
        "Where `caution` begins; above `warning_threshold`.",
        from_project=LOWER,
    )
    critical_threshold: float = setting(
        RATIO,
        RATIOS[CRITICAL],
        "Where `critical` begins; above `caution_threshold`.",
        from_project=LOWER,
    )
    emergency_threshold: float = setting(
        RATIO,
        RATIOS[EMERGENCY],
        "Where `emergency` begins; above `critical_threshold`.",
        from_project=LOWER,
    )
    rearm_margin: float = setting(
        MARGIN,
        DEFAULT_REARM_MARGIN,
        "Fall below a threshold after which its status alerts again.",
    )
    minimum_status: str = setting(
        choice(*LEVELS), WARNING, "The lowest status that alerts; stale data alert all the same."
    )
    commands: Collection[str] = setting(
        _LINES,
        (),
        "Commands that alert, separated by commas in the variable; empty = all.",
    )
    quiet_seconds: float = setting(
        _SECONDS, 0.0, "Time after an alert in which only a higher status alerts."
    )
    stale_seconds: float = setting(
        _SECONDS, 5.0, "Age from which a project's reading is stale, where it sets none itself."
    )
    actions: Mapping[str, str] = setting(
        _ACTIONS,
        DEFAULT_ACTIONS,
        "Advice by status. Each source fills only the statuses that it names.",
        variable="ULTRAMON_ALERT_ACTION",
        keys=STATUSES,
    )
    every: Mapping[str, int] = setting(
        _EVERY, {}, "Runs per check, by command; without an entry 1.", variable=""
    )

    def _name_refusal(self) -> None:
        log_refusal(self.refusal, log_problem)

    def _shared_values(self) -> dict[str, tuple[Any, str]]:
        levels = SharedLevels()
        if levels.refusal:
            log_refusal(levels.refusal, log_problem)
        return {f"{_OF_SHARED[name]}_threshold": level for name, level in levels.ratios.items()}

    def _check_together(self) -> None:
        # Named as its user wrote it: this caution is the critical level of [levels].
        shared, above = self._shared_source(CAUTION), self.critical_threshold
        if shared and self.caution_threshold >= above:
            percent, allowed = round(self.caution_threshold * 100), f"below {round(above * 100)}"
            allowed += ", where `critical` of [alerts] begins: raise critical_threshold there"
            raise ConfigurationError("levels critical", percent, allowed, shared)
        names = [f"{level}_threshold" for level in LEVELS]
        for below, name in pairwise(names):
            least = getattr(self, below)
            if getattr(self, name) <= least:
                raise self._contradiction(name, f"above {below}={least}")
        rungs = [Rung(level, getattr(self, f"{level}_threshold")) for level in LEVELS]
        # A configuration is frozen, so the ladder is stored past its `__setattr__`.
        vars(self)["_ladder"] = Ladder(rungs, base=OK, rearm_margin=self.rearm_margin)

    def _shared_source(self, level: str) -> str | None:
        source = self.sources.get(f"{level}_threshold", "")
        return source if source == VARIABLE or source.endswith(" [levels]") else None

    @property
    def ladder(self) -> Ladder:
        """The four thresholds as a ladder above ``ok``."""
        ladder: Ladder = vars(self)["_ladder"]
        return ladder


def log_problem(problem: str) -> None:
    """Log a line of an alert; without a handler nothing is written to the caller's stderr."""
    import logging

    log = logging.getLogger("ultramon.alerts")
    if not log.handlers:
        # Without any handler Python itself would write it there.
        log.addHandler(logging.NullHandler())
    log.warning("%s", problem)
