"""What is read, sent and received, validated: states, events, tasks. May import core only.

Attributes are snake_case; the JSON names are those of the state file (camelCase).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ultramon.core.record import StateRecord


class Model(BaseModel):
    """Base of everything that crosses a process border: frozen, camelCase in JSON."""

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, ser_json_inf_nan="null"
    )


class TaskState(Model):
    """One item of a plan."""

    name: str
    status: str
    """``pending``, ``in_progress``, ``done`` or ``interrupted`` (may be half done)."""
    result: str | None = None
    """A reference to what came out of it, e.g. a path."""


class Anchor(Model):
    """The last number that was not estimated."""

    tokens: Annotated[int, Field(ge=0)]
    is_report: bool
    """False after a compaction that only told how much it left."""
    reply_tokens: Annotated[int, Field(ge=0)] = 0
    exact_tokens: Annotated[int, Field(ge=0)] = 0
    calibration: Annotated[float, Field(ge=0.5, le=2.0)] = 1.0


class Announced(Model):
    """How often each rung was reached in one epoch."""

    epoch: Annotated[int, Field(ge=1)]
    rungs: dict[str, int]


class LimitCandidate(Model):
    """One number that could have been the limit, and what became of it."""

    name: str
    source: str
    tokens: Annotated[int, Field(gt=0)]
    verdict: str


class RungForecast(Model):
    """What remains before one rung."""

    turns: Annotated[int, Field(ge=0)]
    seconds: Annotated[float, Field(ge=0)]


class Forecast(Model):
    """The pace of this epoch and what it means for the rungs still ahead."""

    tokens_per_turn: Annotated[float, Field(ge=0)]
    seconds_per_turn: Annotated[float, Field(ge=0)]
    rungs: dict[str, RungForecast]


class AgentState(Model):
    """One agent's state, as it stands in its state file. `docs/state-file.md` is the contract."""

    model_config = ConfigDict(extra="allow")

    schema_version: Annotated[int, Field(alias="schema", ge=1)]
    agent_id: str
    run: str
    session_id: str
    parent_id: str | None
    predecessor_id: str | None
    label: str | None
    host: str
    model: str | None
    cwd: str | None
    active: bool
    phase: str
    outcome: str | None
    exit: dict[str, Any] | None
    started_at: datetime
    last_heartbeat: datetime
    last_activity: datetime
    heartbeat_interval_seconds: Annotated[float, Field(gt=0)] | None
    lost_after_seconds: Annotated[float, Field(gt=0)] | None
    grace_seconds: Annotated[float, Field(ge=0)]
    pid: Annotated[int, Field(gt=0)] | None
    pid_started_at: str | None
    boot_id: str
    hostname: str
    start_id: str | None
    generation: Annotated[int, Field(ge=0)]
    """0 until the agent is stored for the first time."""
    epoch: Annotated[int, Field(ge=1)]
    epoch_started_at: datetime
    seq: Annotated[int, Field(ge=0)]
    measured_at: datetime | None
    cumulative_chars: Annotated[int, Field(ge=0)]
    estimated_tokens: Annotated[int, Field(ge=0)]
    tokens_source: str
    anchor: Anchor | None
    by_source: dict[str, int] | None
    context_limit: Annotated[int, Field(gt=0)] | None
    context_window: Annotated[int, Field(gt=0)] | None
    reserved_output_tokens: Annotated[int, Field(ge=0)]
    limit_source: str
    limit_suspect: bool
    limit_candidates: list[LimitCandidate] | None = None
    usage_ratio: Annotated[float, Field(ge=0)] | None
    threshold_status: str | None
    action: str
    ladder: dict[str, Any]
    ladder_status: str
    announced: Announced
    forecast: Forecast | None
    current_task: str | None
    tasks_completed: Annotated[int, Field(ge=0)]
    tasks_total: Annotated[int, Field(ge=0)] | None
    tasks: list[TaskState] | None
    continues_handoff_id: str | None = None
    """Of the handoff whose claim this agent confirmed; None for one that continues nothing."""
    handoff: dict[str, Any] | None
    pending: list[dict[str, Any]] | None

    @classmethod
    def from_record(cls, record: StateRecord) -> AgentState:
        """Validate a stored record.

        Raises:
            pydantic.ValidationError: A field is out of its range.
        """
        return cls.model_validate(record.to_json())


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


class Registration(Model):
    """That somebody is told about an agent."""

    agent_id: str
    notify_id: str
    """Who is told."""
    source: str
    """``explicit``, or ``parent``: it follows when the agent's parent is another."""
    ladder: dict[str, Any] | None
    """The rungs at which; None = the agent's own."""
    ladder_status: str
    """``default``, ``custom``, or ``invalid``: what is stored is no ladder, and nothing is told."""
    registered_by: str
    registered_at: datetime

    @property
    def is_enforced(self) -> bool:
        """Whether levels are told."""
        return self.ladder_status != "invalid"


class Threshold(Model):
    """One rung as it stands against the present limit."""

    name: str
    ratio: Annotated[float, Field(gt=0)]


class ContextSnapshot(Model):
    """What is known of an agent's window, registered or not."""

    agent_id: str
    label: str | None
    host: str
    lifecycle: str
    """``alive``, ``stale``, ``lost``, or how the agent ended."""
    is_over: bool
    used_percentage: float | None
    """0.0 and more, one decimal; None before the first reading of this epoch."""
    tokens: int | None
    tokens_source: str
    context_limit: int | None
    sampled_at: datetime | None
    """By the clock of whoever measured."""
    measured_at: datetime | None
    """The same time, but for a posted reading: when it arrived, by the clock of the server."""
    state: str
    """A level, or ``compacting``, ``thresholds_unavailable``, ``unknown``."""
    thresholds: list[Threshold]
    threshold_source: str
    """``default``, ``custom`` or ``invalid``."""
    is_registered: bool
    notify_id: str | None
    compaction_active: bool
    handoff: dict[str, Any] | None
    last_handoff_path: str | None = None
    """Of the document that whoever posts for the agent noted; ours is a record, no file."""


class Notice(Model):
    """A message to an agent, mostly about another one."""

    message_id: int
    """The same at every delivery."""
    recipient: str
    agent_id: str | None
    """Whom it is about, or who sent it; None for a sender that gave no name."""
    category: str | None
    """``context_monitor``, ``handoff``, ``lifecycle``, or what the sender chose; None for free
    messages."""
    delivery: str
    """``urgent``, ``important`` or ``sequential``."""
    text: str
    facts: dict[str, Any]
    """What the text says, as typed values: ``kind`` is ``level``, ``epoch``, ``handoff``,
    ``ended``, ``lost``, ``expired`` or ``recovered``."""
    attempts: Annotated[int, Field(ge=0)]
    """How often it was claimed, this time included."""
    queued_at: datetime
    claim_token: str = Field("", repr=False, exclude=True)


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


def utc(epoch_seconds: float) -> datetime:
    """Return an aware UTC time for epoch seconds."""
    return datetime.fromtimestamp(epoch_seconds, UTC)
