"""What a fleet's handlers get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultramon.state.events import ThresholdEvent

if TYPE_CHECKING:
    from ultramon.monitor.handoff import HandoffRecord
    from ultramon.state.events import Event
    from ultramon.state.models import AgentState


EVENT_NAMES = (
    "prepare_handoff",
    "force_return",
    "handoff_ready",
    "ended",
    "stale",
    "recovered",
    "lost",
    "started",
    "no_progress",
)


_NAMES = {
    "agent_started": ("started",),
    "agent_stopped": ("ended",),
    "agent_stale": ("stale",),
    "agent_recovered": ("recovered",),
    "agent_lost": ("lost", "ended"),
    "agent_expired": ("ended",),
    "agent_refused": ("ended",),
    "handoff_ready": ("handoff_ready",),
}


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """One thing that happened, as a handler gets it.

    Attributes:
        name: One of `EVENT_NAMES`.
        event: The event as it stands in the journal; ``event.event_id`` is for idempotence.
        agent_id: The agent.
        state: The agent's state when the event is delivered; None when there is none to read.
        handoff: With ``handoff_ready`` and ``no_progress``; `HandoffRecord.claim` it. With ``lost``
            and ``ended``: the last one of that life, which was delivered before; None without one.
        handoff_follows: With ``ended``: whether the agent may still leave a handoff. Only where the
            outcome is ``expired``: the agent runs on, and its life closes with an end of its own.
        outcome: With ``ended`` and ``lost``.
        exit: With ``ended`` and ``lost``: how an attached process ended (``returncode``,
            ``signal``, ``outOfMemory``), or the ``error`` that ended the agent.
    """

    name: str
    event: Event
    agent_id: str
    state: AgentState | None = None
    handoff: HandoffRecord | None = None
    handoff_follows: bool = False
    outcome: str | None = None
    exit: dict[str, Any] | None = None


def names_of(event: Event) -> tuple[str, ...]:
    """Return the names under which an event of the journal is delivered; often none."""
    if isinstance(event, ThresholdEvent):
        told = event.type == "context_threshold_reached" and event.action in EVENT_NAMES
        return (event.action,) if told else ()
    return _NAMES.get(event.type, ())
