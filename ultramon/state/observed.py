"""One agent as an observer shows it: its record and the verdict about its life."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.state.liveness import ENDED, LOST, STALE, judge
from ultramon.state.record import StateRecord
from ultramon.state.runway import Runway
from ultramon.system import compact_json
from ultramon.system.processes import process_started_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ultramon.state.liveness import Liveness
    from ultramon.system.processes import MachineIdentity


_RANKS = {"force_return": 1, "prepare_handoff": 2}
_NO_ACTION = 4


class ObservedAgent(NamedTuple):
    """A readable agent with the verdict about its life."""

    record: StateRecord
    liveness: Liveness

    @property
    def urgency(self) -> tuple[int, float, str]:
        """Sorts lost agents first, then by action, stale ones, by usage; ended ones last."""
        verdict, (rank, usage) = self.liveness.verdict, self.pressure
        if rank == _NO_ACTION and verdict == STALE:
            rank = 3
        return {LOST: 0, ENDED: 5}.get(verdict, rank), usage, self.record.agent_id

    @property
    def pressure(self) -> tuple[int, float]:
        """Sorts the agent nearest to its limit first: by action, then by usage."""
        record = self.record
        return _RANKS.get(record.action, _NO_ACTION), -(record.usage_ratio or 0.0)

    @property
    def runway(self) -> Runway | None:
        """Turns before the next rung, None when unknowable."""
        return _runway(self.record.forecast)

    @property
    def rungs_reached(self) -> dict[str, int]:
        """How often each rung was reached in this epoch."""
        rungs = self.record.announced.get("rungs")
        if not isinstance(rungs, dict):
            return {}
        return {name: count for name, count in rungs.items() if isinstance(count, int)}

    def to_json(self) -> dict[str, Any]:
        """Return the state as in its file, and the verdict."""
        return {**self.record.to_json(), **verdict_json(self.liveness)}


def verdict_json(liveness: Liveness) -> dict[str, Any]:
    """Return a verdict as commands and routes show it beside the state."""
    return {
        "liveness": liveness.verdict,
        "livenessReason": liveness.reason,
        "heartbeatAgeSeconds": liveness.heartbeat_age_seconds,
    }


class Unreadable(NamedTuple):
    """A stored agent that cannot be shown."""

    agent_id: str
    reason: str


_NOT_SHOWN = b"\t\n\r\x7f"
"""What JSON may hold of the characters that a terminal does not show."""
_SENSELESS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def observe(
    record: StateRecord,
    heartbeat_at: float | None,
    now: float,
    machine: MachineIdentity,
    *,
    whole: bool = True,
    started_at: Callable[[int], str | None] = process_started_at,
) -> ObservedAgent | Unreadable:
    """Judge one agent as of now.

    Args:
        record: Its state.
        heartbeat_at: Time of its heartbeat file, epoch seconds; None when there is none.
        now: Epoch seconds.
        machine: Where the observer runs.
        whole: Check every value; False = only what `ObservedAgent.urgency` needs, for an agent that
            may never be shown. `checked_json` does the rest.
        started_at: As for `judge`.
    """
    try:
        one = ObservedAgent(record, judge(record, heartbeat_at, now, machine, started_at))
        # Read for the error that a senseless value raises.
        one.urgency  # noqa: B018
    except _SENSELESS as error:
        return _unreadable(record, error)
    checked = checked_json(one) if whole else None
    return checked if isinstance(checked, Unreadable) else one


def checked_json(one: ObservedAgent) -> dict[str, Any] | Unreadable:
    """Decode all of an agent's state; return `ObservedAgent.to_json`, or why it cannot be shown."""
    try:
        one.runway  # noqa: B018
        return one.to_json()
    except _SENSELESS as error:
        return _unreadable(one.record, error)


def checked_line(one: ObservedAgent) -> bytes | Unreadable:
    """Return what `checked_json` does as one line of printable ASCII; a record stays undecoded.

    A text without line breaks is copied: to encode a state costs as much as to decode it.
    """
    text = one.record.undecoded_body
    # Text that a terminal may not get as it is, is decoded and written anew.
    if not text.isascii() or not text or any(map(text.__contains__, _NOT_SHOWN)):
        checked = checked_json(one)
        if isinstance(checked, Unreadable):
            return checked
        return _printable(checked)
    try:
        _runway(one.record.peek()["forecast"])
    except _SENSELESS as error:
        return _unreadable(one.record, error)
    return b"%s,%s" % (text, _printable(verdict_json(one.liveness))[1:])


def _printable(value: dict[str, Any]) -> bytes:
    return compact_json.dumps(value).replace("\x7f", "\\u007f").encode("ascii")


def _runway(forecast: dict[str, Any] | None) -> Runway | None:
    rungs = (forecast or {}).get("rungs")
    ahead = [Runway.of(rung) for rung in rungs.values()] if isinstance(rungs, dict) else []
    known = (runway for runway in ahead if runway is not None)
    return min(known, key=lambda runway: runway.turns, default=None)


def sort_observed(
    observed: Iterable[ObservedAgent | Unreadable],
) -> tuple[list[ObservedAgent], list[Unreadable]]:
    """Return the readable agents, most urgent first, and the others."""
    everyone = list(observed)
    seen = [one for one in everyone if isinstance(one, ObservedAgent)]
    seen.sort(key=lambda one: one.urgency)
    return seen, [one for one in everyone if isinstance(one, Unreadable)]


def without_ended(seen: list[ObservedAgent]) -> list[ObservedAgent]:
    """Return the agents that have not ended, lost ones among them."""
    return [one for one in seen if one.liveness.verdict != ENDED]


def agents_json(seen: list[ObservedAgent], unreadable: list[Unreadable]) -> dict[str, Any]:
    """Return agents as commands and routes show them."""
    return {"agents": [one.to_json() for one in seen], **unreadable_json(unreadable)}


def unreadable_json(unreadable: list[Unreadable]) -> dict[str, Any]:
    """Return agents that cannot be shown, as JSON beside those that can."""
    return {"unreadable": [{"agentId": one.agent_id, "reason": one.reason} for one in unreadable]}


def _unreadable(record: StateRecord, error: Exception) -> Unreadable:
    # A state with a right checksum can still hold numbers that no agent ever had.
    return Unreadable(record.agent_id, f"its values make no sense: {error}")
