"""Whether a reading is a reason to alert, given what was alerted before. Touches no file."""

from __future__ import annotations

from ultramon.alerts.config import STALE
from ultramon.context.ladder import next_level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.alerts.config import AlertConfig
    from ultramon.alerts.memory import AlertMemory

STALE_AGAIN_SECONDS = 3600.0
"""Data that were fresh in between are called stale again only so long after the last time: a status
line that pauses with its agent is stale every minute."""


class Turns:
    """Counts the runs of a command; at every so many of them it is its turn.

    Args:
        command: Its name.
        every: 1 and more; 1 counts nothing.
    """

    __slots__ = ("_command", "_every")

    def __init__(self, command: str, every: int) -> None:
        self._command = command
        self._every = every

    def count(self, counts: dict[str, int]) -> bool:
        """Count one run; return whether it is its turn."""
        if self._every == 1:
            return True
        count = counts.get(self._command, 0) + 1
        is_turn = count >= self._every
        counts[self._command] = 0 if is_turn else count
        return is_turn


def advance(
    memory: AlertMemory,
    status: str,
    usage_ratio: float | None,
    config: AlertConfig,
    now: float,
    *,
    force: bool = False,
) -> bool:
    """Bring what is remembered up to a reading.

    Upwards a status is remembered when it alerts; downwards rung by rung, each below its re-arm
    ratio. `stale` stands beside the levels and leaves them as they are.

    Args:
        memory: Of the filling of the window that the reading is of; changed.
        status: Of the reading.
        usage_ratio: Of the reading; None = unknown, for stale ones.
        config: What alerts.
        now: Epoch seconds.
        force: Alert in any case.

    Returns:
        Whether to alert.
    """
    ladder = config.ladder.resolve(None)
    is_quiet = memory.alerted_at is not None and 0 <= now - memory.alerted_at < config.quiet_seconds
    if status == STALE:
        alerts = force or (memory.stale_alerted_at is None and not is_quiet)
        if alerts:
            memory.stale_alerted_at = memory.alerted_at = now
        return alerts
    told_at = memory.stale_alerted_at
    if told_at is not None and abs(now - told_at) >= STALE_AGAIN_SECONDS:
        memory.stale_alerted_at = None
    before, reached = ladder.rank(memory.level), ladder.rank(status)
    alerts = force or (
        reached > before
        and reached >= ladder.rank(config.minimum_status)
        and not (is_quiet and reached <= ladder.rank(memory.alerted_level))
    )
    held = next_level(memory.level, usage_ratio, ladder)
    if alerts or ladder.rank(held) < before:
        memory.level = held
    if alerts:
        memory.alerted_at, memory.alerted_level = now, status
    return alerts
