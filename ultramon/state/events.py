"""Events of the journal as frozen models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from ultramon.state.models import Model


class Event(Model):
    """Something that happened to one agent; immutable, stored once under its key."""

    event_id: str
    type: str
    agent_id: str
    session_id: str
    run: str
    generation: Annotated[int, Field(ge=0)]
    """0 for an agent that could not be stored yet."""
    epoch: Annotated[int, Field(ge=1)]
    source: str
    """``agent:<id>`` of whoever noticed it."""
    occurred_at: datetime
    n: Annotated[int, Field(ge=0)] = 0
    """Counts repetitions of the same fact in one epoch."""
    stored: Annotated[bool, Field(exclude=True)] = True
    """False in a handler that runs before the fact is stored: the store was too slow or refused."""


class ThresholdEvent(Event):
    """The level changed: ``context_threshold_reached`` upwards, ``context_relaxed`` downwards."""

    level: str
    previous_level: str | None
    action: str
    usage_ratio: Annotated[float, Field(ge=0)]
    tokens: Annotated[int, Field(ge=0)]
    context_limit: Annotated[int, Field(gt=0)]
    tokens_source: str


class EpochEvent(Event):
    """A window was compacted or cleared, or the reports say that it must have been."""

    reason: str
    """``compaction``, ``clear``, ``fall`` or ``handoff``."""
    tokens_before: Annotated[int, Field(ge=0)]
    tokens_after: Annotated[int, Field(ge=0)] | None


class AgentEvent(Event):
    """An agent started, ended, was refused at its start, or judged stale, recovered or lost."""

    outcome: str | None = None
    reason: str | None = None


class HandoffEvent(Event):
    """An agent left a handoff record; ``handoff`` is the record as it stands in the state file."""

    handoff: dict[str, Any]
    ended_with: dict[str, Any] | None = None
    """Where a fleet made the record because an agent ended without it: the event of that end."""


class AssignmentEvent(Event):
    """An orchestrator gave an agent its work, before it started it; one of the two is set."""

    items: list[str] | None = None
    handoff: dict[str, Any] | None = None


class AlertEvent(Event):
    """A command-line tool told its agent how full the window is; ``n`` is when, in milliseconds."""

    level: str
    """``warning``, ``caution``, ``critical``, ``emergency`` or ``stale``; ``ok`` when forced."""
    usage_ratio: Annotated[float, Field(ge=0)]
    tokens: Annotated[int, Field(ge=0)] | None
    context_limit: Annotated[int, Field(gt=0)] | None
    command: str | None
    """What the tool was doing, where it says so."""
    forced: bool
    directory: str | None
    """The project directory that the numbers are from; None for an agent's state."""


class AuditEvent(Event):
    """Somebody proved to a server who it is, and tried what it may not; `agent_id` is who."""

    action: str
    """Method and path."""
    target: str | None
    """The agent that it was about, where one was named."""
    claimed: str | None
    """In whose name, where it was not its own."""
    reason: str


_EVENT_TYPES: dict[str, type[Event]] = {
    "context_threshold_reached": ThresholdEvent,
    "context_relaxed": ThresholdEvent,
    "context_epoch_started": EpochEvent,
    "handoff_ready": HandoffEvent,
    "agent_assigned": AssignmentEvent,
    "context_alert": AlertEvent,
    "audit": AuditEvent,
}


def parse_event(payload: dict[str, Any]) -> Event:
    """Validate an event as it stands in the journal.

    Raises:
        pydantic.ValidationError: It is not an event that ultramon wrote.
    """
    return _EVENT_TYPES.get(payload.get("type", ""), AgentEvent).model_validate(payload)
