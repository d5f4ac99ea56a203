"""Levels and actions as enums, and the answer of a monitor."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from ultramon.context import ladder as ladders
from ultramon.context.ladder import Ladder, Rung
from ultramon.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ultramon.context.config import ContextConfig


class Level(StrEnum):
    """The levels of the default ladder. A ladder of one's own has its rung names as plain text.

    `UNKNOWN` is on no ladder: usage or limit is not known. A state says ``null`` there.
    """

    NORMAL = ladders.NORMAL
    WARNING = ladders.WARNING
    CRITICAL = ladders.CRITICAL
    UNKNOWN = "unknown"


class Action(StrEnum):
    """What an agent at a level should do. Nothing is ever done to the agent."""

    NONE = ladders.NONE
    PREPARE_HANDOFF = ladders.PREPARE_HANDOFF
    FORCE_RETURN = ladders.FORCE_RETURN


UNKNOWN_LIMIT = (
    "Context limit unknown - name the model, or its window as context_window_tokens "
    "(ULTRAMON_CONTEXT_WINDOW_TOKENS)"
)
UNKNOWN_USAGE = "Context usage unknown - report the next response"
"""Before the first reading, and after a compaction that left an unknown size."""

ThresholdLevel = Level
"""`Level` under the name that the type has in other monitors of agents."""

_LEVELS: dict[str, Level] = {level.value: level for level in Level}


def as_level(name: str) -> str:
    """Return the `Level` of a name, or the name itself when the default ladder has no such."""
    return _LEVELS.get(name, name)


class ThresholdAction:
    """The answer of a monitor to every call: the level, and what to do now.

    Attributes:
        level: A `Level`, or the rung's name on a ladder of one's own; `Level.UNKNOWN` while usage
            or limit is unknown.
        action: An `Action`; `Action.NONE` while the level is unknown.
        message: One line with the configured thresholds; while the level is unknown, what helps.
        changed: Whether this call changed the level; a first reading at the base changes none.
    """

    __slots__ = ("_note", "action", "changed", "level", "message")

    def __init__(
        self,
        level: str,
        action: Action | str,
        message: str,
        *,
        changed: bool = False,
        note: Callable[[], str] | str = "",
    ) -> None:
        self.level = level
        self.action = Action(action)
        self.message = message
        self.changed = changed
        self._note = note

    def __repr__(self) -> str:
        return (
            f"ThresholdAction(level={str(self.level)!r}, action={self.action.value!r}, "
            f"changed={self.changed}, message={self.message!r})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ThresholdAction) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def _facts(self) -> tuple[str, str, str, bool]:
        return self.level, self.action, self.message, self.changed

    @property
    def should_prepare(self) -> bool:
        """Whether a handoff should be prepared; also true when the agent should return."""
        return self.action is not Action.NONE

    @property
    def should_return(self) -> bool:
        """Whether the agent should return now."""
        return self.action is Action.FORCE_RETURN

    @property
    def note(self) -> str:
        """Facts for the agent's own context; empty when there is no monitor behind the action."""
        return self._note() if callable(self._note) else self._note


def _ladder(config: ContextConfig | Ladder | None) -> Ladder:
    if config is None or isinstance(config, Ladder):
        return config or ladders.DEFAULT_LADDER
    from ultramon.context.config import as_config

    return as_config(config).effective_ladder


def detect_threshold(
    usage_ratio: float | None, config: ContextConfig | Ladder | None = None
) -> str:
    """Return the level of a usage ratio, without memory.

    Args:
        usage_ratio: 0.0 and more; None = unknown.
        config: A configuration or a ladder; None = warning at 0.70, critical at 0.85, inclusive.

    Returns:
        The level, `Level.UNKNOWN` for None.

    Raises:
        ConfigurationError: The ratio is no finite number from 0 on.
    """
    if usage_ratio is None:
        return Level.UNKNOWN
    if not (ladders.is_number(usage_ratio) and 0 <= usage_ratio < float("inf")):
        allowed = "a finite number >= 0 (1.0 is the limit), or None where it is unknown"
        raise ConfigurationError("usage_ratio", usage_ratio, allowed)
    ladder = _ladder(config)
    resolved = ladder.resolve(getattr(config, "context_limit_tokens", None))
    return as_level(resolved.names[resolved.rank_at(usage_ratio)])


def get_threshold_action(
    level: str | None, config: ContextConfig | Ladder | None = None
) -> ThresholdAction:
    """Return the action and message of a level.

    Args:
        level: A level of the ladder; None or `Level.UNKNOWN` asks for nothing.
        config: As for `detect_threshold`.

    Raises:
        ConfigurationError: The ladder has no such level.
    """
    ladder = _ladder(config)
    if level is not None and level in ladder.names:
        rung = ladder.rung(level)
        action = rung.action if rung else Action.NONE
        return ThresholdAction(as_level(level), action, ladder.message(level))
    if level in (None, Level.UNKNOWN):
        return ThresholdAction(Level.UNKNOWN, Action.NONE, UNKNOWN_LIMIT)
    allowed = f"one of {', '.join(ladder.names)}, or None where it is unknown"
    raise ConfigurationError("level", level, allowed)


def should_emit_event(previous: str | None, current: str | None) -> bool:
    """Return whether a level changed, in either direction; to become unknown is no change."""
    return current not in (None, Level.UNKNOWN, previous)


def as_ladder(given: Ladder | Sequence[float]) -> Ladder:
    """Return the ladder of a registration: ratios are rungs announced once per epoch.

    Raises:
        ConfigurationError: The ratios are out of range or do not rise.
    """
    if isinstance(given, Ladder):
        return given
    rungs = []
    for ratio in given:
        # A name has no room for a point.
        name = f"{ratio * 100:.6g}".replace(".", "-") if isinstance(ratio, int | float) else "?"
        rungs.append(Rung(f"at-{name}", ratio))
    return Ladder(rungs, rearm_margin=None)


def with_critical(own: Ladder, ratio: float) -> Ladder:
    """Return a ladder with one rung that asks the agent to return, at this usage ratio.

    Args:
        own: The agent's ladder; its other rungs stay and must lie below.
        ratio: 0 < ratio <= 1; replaces every rung that asks to return.

    Raises:
        ConfigurationError: The ratio is out of range, or not above the rungs that stay.
    """
    lower = [rung for rung in own.rungs if rung.action != ladders.FORCE_RETURN]
    names = [rung.name for rung in own.rungs if rung.action == ladders.FORCE_RETURN]
    critical = Rung(names[0] if names else ladders.CRITICAL, ratio, action=ladders.FORCE_RETURN)
    return Ladder(
        [*lower, critical],
        base=own.base,
        rearm_margin=own.rearm_margin,
        round_percent=own.round_percent,
    )
