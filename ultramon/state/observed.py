"""One agent as an observer sees it: its record with the verdict about its life."""

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


def see(
    record: StateRecord, heartbeat_at: float | None, now: float, host: HostIdentity
) -> ObservedAgent | Unreadable:
    """Judge one agent as of now."""
    try:
        one = ObservedAgent(record, judge(record, heartbeat_at, now, host))
        one.urgency, one.runway_turns, one.to_json()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A state with a right checksum can still hold numbers that no agent ever had.
        return Unreadable(record.agent_id, f"its values make no sense: {error}")
    return one
