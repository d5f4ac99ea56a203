"""Which levels of a state lead to a notice.

Standard library only, and no I/O: hooks, monitors and servers apply the same rules.
"""

from __future__ import annotations

from ultramon.context.gauge import is_lower_bound
from ultramon.context.ladder import Ladder, next_level
from ultramon.context.level_words import share_of
from ultramon.state.usage_percent import usage_ratio
from ultramon.system import compact_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.context.ladder import ResolvedLadder
    from ultramon.state.level_share import LevelShare
    from ultramon.state.record import StateRecord

DEFAULT = "default"
CUSTOM = "custom"
INVALID = "invalid"
"""What kind of ladder a registration has: the agent's own, one of its own, or none that is one."""
MAX_KNOWN = 64
"""Ladders that a process remembers; many agents share one."""
_known: dict[tuple[str, int | None], tuple[Ladder, ResolvedLadder]] = {}


class Decision:
    """A level that is not the last one that a recipient was notified of.

    Attributes:
        level: The level now.
        action: What it asks of the agent.
        previous: The last announced level; without one the base of the ladder.
        is_rise: Whether the level is higher than the previous one: that leads to a notice.
        share: Where the level begins; None = not known.
    """

    __slots__ = ("action", "is_rise", "level", "previous", "share")

    def __init__(
        self,
        level: str,
        action: str,
        previous: str,
        *,
        is_rise: bool,
        share: LevelShare | None = None,
    ) -> None:
        self.level = level
        self.action = action
        self.previous = previous
        self.is_rise = is_rise
        self.share = share


def least_ratio(record: StateRecord) -> float | None:
    """Return the usage ratio, or what it is at least after a compaction of unknown size."""
    if record.context_limit and record.measured_at is not None and is_lower_bound(record):
        return record.estimated_tokens / record.context_limit
    return usage_ratio(record)


def decide(
    ladder: dict[str, Any] | None, record: StateRecord, announced: tuple[int, str] | None
) -> Decision | None:
    """Decide whether a state leads to a notice: each rung does once per epoch, or as it re-arms.

    Args:
        ladder: As in a state file; None = the agent's own.
        record: The state.
        announced: Epoch and level announced last; None without one. Another epoch's is ignored.

    Returns:
        None where the level is the announced one, without a reading, and where what is stored is
        no ladder. A lower bound only rises.
    """
    ratio = least_ratio(record)
    if ratio is None or record.measured_at is None:
        return None
    try:
        rungs, resolved = _resolved(
            record.ladder if ladder is None else ladder, record.context_limit
        )
    except (ValueError, TypeError):
        return None
    previous = rungs.base
    if announced is not None and announced[0] == record.epoch:
        previous = announced[1]
    level = next_level(previous, ratio, resolved)
    if level is None or level == previous:
        return None
    is_rise = resolved.rank(level) > resolved.rank(previous)
    # A lower bound proves that a level was reached, never that one was left.
    if usage_ratio(record) is None and not is_rise:
        return None
    rung = rungs.rung(level)
    share = share_of(level, record.ladder if ladder is None else ladder, record.context_limit)
    action = rung.action if rung else "none"
    return Decision(level, action, previous, is_rise=is_rise, share=share)


def _resolved(
    ladder: dict[str, Any] | None, context_limit_tokens: int | None
) -> tuple[Ladder, ResolvedLadder]:
    """Return a stored ladder, and what its rungs are at a limit.

    Every save of a registered agent asks: to check all rungs anew takes four times as long.

    Raises:
        ValueError: What is stored is no ladder.
        TypeError: It is no JSON either.
    """
    key = compact_json.dumps(ladder), context_limit_tokens
    known = _known.get(key)
    if known is None:
        rungs = Ladder.from_json(ladder)  # type: ignore[arg-type]
        known = rungs, rungs.resolve(context_limit_tokens)
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        _known[key] = known
    return known
