"""Whether a reading is a reason to alert, given the alerts before it. Touches no file."""

from __future__ import annotations

from ultramon.alerts.config import STALE
from ultramon.context.ladder import next_level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.alerts.config import AlertConfig
    from ultramon.alerts.memory import AlertMemory

STALE_AGAIN_SECONDS = 3600.0
"""Least time between two alerts about stale data, where the data were fresh in between: a status
line that pauses with its agent is stale every minute."""


def is_turn(command: str, every: int, counts: dict[str, int]) -> bool:
    """Count one run of a command; return whether it is one to check.

    Args:
        command: Its name.
        every: Check every so many runs, 1 and more; 1 counts nothing.
        counts: Runs since the last check, by command; changed.
    """
    if every == 1:
        return True
    count = counts.get(command, 0) + 1
    is_due = count >= every
    counts[command] = 0 if is_due else count
    return is_due


def advance(
    memory: AlertMemory,
    status: str,
    usage_ratio: float | None,
    config: AlertConfig,
    now: float,
    *,
    force: bool = False,
) -> bool:
    """Update a memory by a reading, and return whether to alert.

    Upwards a level is remembered when it alerts; downwards the memory falls rung by rung, each
    below its re-arm ratio. `stale` is no level and leaves the level alone.

    Args:
        memory: Of the filling of the window that the reading is of; changed.
        status: Of the reading.
        usage_ratio: Of the reading; None = unknown, for stale ones.
        config: The settings of alerts.
        now: Epoch seconds.
        force: Alert in any case.
    """
    ladder = config.ladder.resolve(None)
    # From 0: a clock that was set back must not make a session quiet until it has caught up.
    is_quiet = memory.alerted_at is not None and 0 <= now - memory.alerted_at < config.quiet_seconds
    if status == STALE:
        alerts = force or (memory.stale_alerted_at is None and not is_quiet)
        if alerts:
            memory.stale_alerted_at = memory.alerted_at = now
        return alerts
    stale_at = memory.stale_alerted_at
    # In both directions, as the clock may have been set back meanwhile.
    if stale_at is not None and abs(now - stale_at) >= STALE_AGAIN_SECONDS:
        memory.stale_alerted_at = None
    before, reached = ladder.rank(memory.level), ladder.rank(status)
    alerts = force or (
        reached > before
        and reached >= ladder.rank(config.minimum_status)
        and not (is_quiet and reached <= ladder.rank(memory.alerted_level))
    )
    held = next_level(memory.level, usage_ratio, ladder)
    # Upwards only with an alert: else one that the quiet period held back would never come.
    if alerts or ladder.rank(held) < before:
        memory.level = held
    if alerts:
        memory.alerted_at, memory.alerted_level = now, status
    return alerts
