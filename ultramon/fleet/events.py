"""The events that a fleet delivers to handlers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ultramon.state.events import ThresholdEvent

if TYPE_CHECKING:
    from datetime import datetime

    from ultramon.handoff import HandoffRecord
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


# An orchestrator that handles only one of `lost` and `ended` misses no end.
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
    """One event of an agent, as a handler gets it.

    Attributes:
        name: One of `EVENT_NAMES`.
        event: The event in the journal; its common fields are properties of this object.
        agent_id: The agent.
        state: The agent's state when the event is delivered; None when there is none to read.
        handoff: With ``handoff_ready`` and ``no_progress``; `HandoffRecord.claim` it. With ``lost``
            and ``ended``: the last one of that life, which was delivered before; None without one.
        handoff_follows: With ``ended``: whether the agent may still leave a handoff. Only where the
            outcome is ``expired``: the agent still runs; its life closes with an end of its own.
        outcome: With ``ended`` and ``lost``.
        exit: With ``ended`` and ``lost``: how an attached process ended (``returncode``,
            ``signal``, ``outOfMemory``), or the ``error`` that ended the agent.
    """

    name: str
    event: Event = field(repr=False)
    agent_id: str
    # Whole records: printed, one event would fill a screen.
    state: AgentState | None = field(default=None, repr=False)
    handoff: HandoffRecord | None = field(default=None, repr=False)
    handoff_follows: bool = False
    outcome: str | None = None
    exit: dict[str, Any] | None = None

    @property
    def event_id(self) -> str:
        """The same at every delivery of this event, for idempotent handlers."""
        return self.event.event_id

    @property
    def run(self) -> str:
        """The agent's run."""
        return self.event.run

    @property
    def generation(self) -> int:
        """The agent's life: 1 at its first start, +1 at each restart, 0 before one is stored."""
        return self.event.generation

    @property
    def epoch(self) -> int:
        """The filling of the agent's context window, from 1."""
        return self.event.epoch

    @property
    def occurred_at(self) -> datetime:
        """When it happened, UTC."""
        return self.event.occurred_at

    @property
    def reason(self) -> str | None:
        """Why, with ``lost``, ``stale`` and ``ended``; None without a reason."""
        return getattr(self.event, "reason", None)


def names_of(event: Event) -> tuple[str, ...]:
    """Return the names under which an event of the journal is delivered; often none."""
    if isinstance(event, ThresholdEvent):
        is_asked = event.type == "context_threshold_reached" and event.action in EVENT_NAMES
        return (event.action,) if is_asked else ()
    return _NAMES.get(event.type, ())
