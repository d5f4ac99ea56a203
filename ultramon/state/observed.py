"""One agent as an observer shows it: its record and the verdict about its life."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.state.liveness import ENDED, LOST, STALE, judge
from ultramon.state.record import StateRecord

if TYPE_CHECKING:
    from ultramon.state.liveness import Liveness
    from ultramon.system.processes import HostIdentity


_URGENCY = {"force_return": 1, "prepare_handoff": 2}


class ObservedAgent(NamedTuple):
    """A readable agent with the verdict about its life."""

    record: StateRecord
    liveness: Liveness

    @property
    def urgency(self) -> tuple[int, float, str]:
        """Sorts the agent that needs somebody first: lost, then by level, then by usage."""
        record, verdict = self.record, self.liveness.verdict
        if verdict == LOST:
            rank = 0
        elif verdict == ENDED:
            rank = 5
        else:
            rank = _URGENCY.get(record.action, 3 if verdict == STALE else 4)
        return rank, -(record.usage_ratio or 0.0), record.agent_id

    @property
    def runway_turns(self) -> int | None:
        """Turns before the next rung, None when unknowable."""
        rungs = (self.record.forecast or {}).get("rungs")
        ahead = [rung.get("turns") for rung in rungs.values()] if isinstance(rungs, dict) else []
        return min((turns for turns in ahead if isinstance(turns, int)), default=None)

    @property
    def rungs_reached(self) -> dict[str, int]:
        """How often each rung was reached in this epoch."""
        rungs = self.record.announced.get("rungs")
        if not isinstance(rungs, dict):
            return {}
        return {name: count for name, count in rungs.items() if isinstance(count, int)}

    def to_json(self) -> dict[str, Any]:
        """Return the state as in its file, and the verdict."""
        return {
            **self.record.to_json(),
            "liveness": self.liveness.verdict,
            "livenessReason": self.liveness.reason,
            "heartbeatAgeSeconds": self.liveness.heartbeat_age_seconds,
        }


class Unreadable(NamedTuple):
    """A stored agent that cannot be shown."""

    agent_id: str
    reason: str


_SENSELESS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def observe(
    record: StateRecord,
    heartbeat_at: float | None,
    now: float,
    host: HostIdentity,
    *,
    whole: bool = True,
) -> ObservedAgent | Unreadable:
    """Judge one agent as of now.

    Args:
        record: Its state.
        heartbeat_at: Time of its heartbeat file, epoch seconds; None when there is none.
        now: Epoch seconds.
        host: Where the observer runs.
        whole: Check every value; False = only what `ObservedAgent.urgency` needs, for an agent that
            may never be shown. `checked_json` does the rest.
    """
    try:
        one = ObservedAgent(record, judge(record, heartbeat_at, now, host))
        one.urgency  # noqa: B018
    except _SENSELESS as error:
        return _unreadable(record, error)
    if whole:
        checked = checked_json(one)
        if isinstance(checked, Unreadable):
            return checked
    return one


def checked_json(one: ObservedAgent) -> dict[str, Any] | Unreadable:
    """Decode all of an agent's state; return `ObservedAgent.to_json`, or why it cannot be shown."""
    try:
        one.runway_turns  # noqa: B018
        return one.to_json()
    except _SENSELESS as error:
        return _unreadable(one.record, error)


def _unreadable(record: StateRecord, error: Exception) -> Unreadable:
    # A state with a right checksum can still hold numbers that no agent ever had.
    return Unreadable(record.agent_id, f"its values make no sense: {error}")
