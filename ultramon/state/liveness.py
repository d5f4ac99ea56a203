"""Liveness: the one verdict about an agent, for monitors, fleets and every face."""

from __future__ import annotations

from ultramon.system.processes import (
    MachineIdentity,
    boot_seconds,
    is_process_gone,
    process_started_at,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.state.record import StateRecord

ALIVE = "alive"
STALE = "stale"
LOST = "lost"
ENDED = "ended"
OUTCOMES = ("completed", "returned", "failed", "cancelled", "expired", "lost")
"""How an agent can end."""

STALE_AFTER_INTERVALS = 3
LOST_AFTER_INTERVALS = 10
LOST_AFTER_SECONDS = 600.0
CLOCK_SKEW_SECONDS = 5.0


class Liveness:
    """A verdict about one agent.

    Attributes:
        verdict: ``alive``, ``stale``, ``lost`` or ``ended``.
        reason: Why, for people.
        last_heartbeat_at: Epoch seconds; the start of an agent that never beat.
        heartbeat_age_seconds: Since the last heartbeat, >= 0; None for an agent without heartbeats.
        clock_skew: Whether the heartbeat lies more than 5 s in the future.
        is_gone: Whether its process provably ended; silence proves nothing.
    """

    __slots__ = (
        "clock_skew",
        "heartbeat_age_seconds",
        "is_gone",
        "last_heartbeat_at",
        "reason",
        "verdict",
    )

    def __init__(
        self,
        verdict: str,
        reason: str,
        last_heartbeat_at: float,
        now: float,
        *,
        beats: bool = True,
        is_gone: bool = False,
    ) -> None:
        self.verdict = verdict
        self.reason = reason
        self.last_heartbeat_at = last_heartbeat_at
        self.heartbeat_age_seconds = max(0.0, now - last_heartbeat_at) if beats else None
        self.clock_skew = last_heartbeat_at > now + CLOCK_SKEW_SECONDS
        self.is_gone = is_gone


def lost_after(record: StateRecord) -> float:
    """Return the silence in seconds after which an agent counts as lost."""
    return longest_silence(record.lost_after_seconds, record.heartbeat_interval_seconds)


def longest_silence(
    lost_after_seconds: float | None, heartbeat_interval_seconds: float | None
) -> float:
    """Return the silence in seconds after which an agent of these settings counts as lost."""
    if lost_after_seconds is not None:
        return float(lost_after_seconds)
    return max(LOST_AFTER_SECONDS, LOST_AFTER_INTERVALS * (heartbeat_interval_seconds or 0))


def _is_gone(
    record: StateRecord, machine: MachineIdentity, started_at: Callable[[int], str | None]
) -> bool:
    """Return whether the process of an agent provably ended."""
    if record.pid is None or not _is_local(record, machine):
        return False
    return is_process_gone(record.pid, record.pid_started_at, started_at)


def _is_local(record: StateRecord, machine: MachineIdentity) -> bool:
    # The boot id names the namespace of pids too. Containers have small pids of their own and may
    # share the machine's name.
    return record.hostname == machine.hostname and record.boot_id == machine.boot_id


def _was_before_boot(
    record: StateRecord, last: float, now: float, machine: MachineIdentity
) -> bool:
    """Return whether an agent was last heard of before its machine was started anew.

    A name and boot id cannot tell that from another machine of the same name, so it is no proof.
    """
    known, boot = (one.boot_id.partition(":")[0] for one in (record, machine))
    return (
        record.pid is not None
        and record.hostname == machine.hostname
        and bool(known and boot)
        and known != boot
        and now - last > boot_seconds()
    )


def is_beating(
    record: StateRecord,
    heartbeat_at: float | None,
    now: float,
    machine: MachineIdentity,
    started_at: Callable[[int], str | None] = process_started_at,
) -> bool:
    """Return whether an active agent is plainly alive: the cheap check for thousands of agents.

    True only where the verdict of `judge` is ``alive``.
    """
    interval, beat = record.heartbeat_interval_seconds, record.last_heartbeat
    if interval is None:
        return False
    if heartbeat_at is not None and heartbeat_at > beat:
        beat = heartbeat_at
    age, limit = now - beat, record.lost_after_seconds
    if age > STALE_AFTER_INTERVALS * interval or (limit is not None and age > limit):
        return False
    return not _is_gone(record, machine, started_at)


def beats_until(
    record: StateRecord, heartbeat_at: float | None, now: float, machine: MachineIdentity
) -> float | None:
    """Return the time until which an active agent is plainly alive, whatever happens.

    A heartbeat in the future, from before the clock was set back, counts as now.

    Returns:
        Epoch seconds, until which `is_beating` is true. None for an agent that must be checked each
        time: its process runs on this machine, or it has no heartbeat of its own.
    """
    interval, beat = record.heartbeat_interval_seconds, record.last_heartbeat
    if interval is None or (record.pid is not None and _is_local(record, machine)):
        return None
    if heartbeat_at is not None and heartbeat_at > beat:
        # A beat from the future must not keep an agent alive for longer.
        beat = min(heartbeat_at, now)
    limit = STALE_AFTER_INTERVALS * interval
    if record.lost_after_seconds is not None:
        limit = min(limit, record.lost_after_seconds)
    return beat + limit


def needs_heartbeat(record: StateRecord, liveness: Liveness) -> bool:
    """Return whether a heartbeat file may change a verdict that was found without it."""
    if liveness.verdict == ALIVE:
        return not record.last_heartbeat
    return liveness.verdict in (STALE, LOST) and not liveness.is_gone


def judge(
    record: StateRecord,
    heartbeat_at: float | None,
    now: float,
    machine: MachineIdentity,
    started_at: Callable[[int], str | None] = process_started_at,
) -> Liveness:
    """Return the verdict about an agent.

    Args:
        record: The agent's state.
        heartbeat_at: Time of the heartbeat file, epoch seconds; None = no file.
        now: Epoch seconds by the same clock.
        machine: This machine: a pid means something only on its own machine.
        started_at: As `process_started_at`; a cached one is faster for many agents.

    Returns:
        ``ended`` for an agent that stopped; ``lost`` when its process is gone or it was silent
        beyond its limit; ``stale`` after three of its own heartbeat intervals; else ``alive``.
        A waiting agent, and one without a heartbeat of its own, is never stale by silence; the
        latter is lost once its machine was started anew.
    """
    # A first heartbeat that never came counts from the start, not from 1970. Otherwise the start is
    # ignored: it is by the clock of the agent's machine, which may be ahead.
    last = record.last_heartbeat
    if heartbeat_at and (not last or heartbeat_at > last):
        last = heartbeat_at
    last = last or record.started_at or now
    if not record.active:
        return Liveness(ENDED, record.outcome or "ended", last, now, beats=False)
    age = max(0.0, now - last)
    if _is_gone(record, machine, started_at):
        return Liveness(LOST, f"process {record.pid} is gone", last, now, is_gone=True)
    interval = record.heartbeat_interval_seconds
    if interval is None:
        if _was_before_boot(record, last, now, machine):
            return Liveness(LOST, "the machine was started anew", last, now, beats=False)
        return Liveness(ALIVE, "has no heartbeat of its own", last, now, beats=False)
    # Elsewhere, or before a reboot, only beats can show that a waiting process is still there.
    if record.phase == "waiting" and (_is_local(record, machine) or age <= lost_after(record)):
        return Liveness(ALIVE, "waiting", last, now)
    if age > lost_after(record):
        return Liveness(LOST, f"no heartbeat for {age:.0f} s", last, now)
    if age > STALE_AFTER_INTERVALS * interval:
        return Liveness(STALE, f"no heartbeat for {age:.0f} s", last, now)
    return Liveness(ALIVE, "beating", last, now)
