"""Validated models of states and tasks.

Attributes are snake_case; the JSON names are those of the state file (camelCase).
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ultramon.errors import StateError

if TYPE_CHECKING:
    from ultramon.state.record import StateRecord

_log = logging.getLogger("ultramon.fleet")


class Model(BaseModel):
    """Base of the models that cross process borders: frozen, camelCase in JSON."""

    # JSON has neither infinity nor NaN.
    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, ser_json_inf_nan="null"
    )


class TaskState(Model):
    """One item of a plan."""

    name: str
    status: str
    """``pending``, ``in_progress``, ``done`` or ``interrupted`` (may be half done)."""
    result: str | None = None
    """A reference to its result, e.g. a path."""
    id: str | None = None
    """The id of the task in the client's own task list; None = it is in none."""


class Anchor(Model):
    """The last token count that was no estimate."""

    tokens: Annotated[int, Field(ge=0)]
    is_report: bool
    """False after a compaction that reported only the tokens left."""
    reply_tokens: Annotated[int, Field(ge=0)] = 0
    exact_tokens: Annotated[int, Field(ge=0)] = 0
    calibration: Annotated[float, Field(ge=0.5, le=2.0)] = 1.0


class Announced(Model):
    """How often each rung was reached in one epoch."""

    epoch: Annotated[int, Field(ge=1)]
    rungs: dict[str, int]


class LimitCandidate(Model):
    """A candidate for the limit, with the verdict about it."""

    name: str
    """``window``, ``trigger`` (the host compacts there), ``refusal`` (the host sends no request
    beyond) or ``limit`` (the user's cap)."""
    source: str
    """``explicit``, ``host``, ``observed``, ``model`` or ``default``."""
    tokens: Annotated[int, Field(gt=0)]
    """The number as given; a window still includes the reserved output."""
    verdict: str
    """``binding`` (this is the limit), ``holds`` (another one is smaller), ``outranked`` (a window
    from a better source is known) or ``not_believed`` (more tokens than this were reported)."""


class RungForecast(Model):
    """Turns and time left before one rung.

    Of a likely compaction also the tokens near which the host was seen to compact, and how often.
    """

    turns: Annotated[int, Field(ge=0)]
    """How many still end below it: the middle."""
    turns_low: Annotated[int, Field(ge=0)] | None = None
    """The low end; None in a state of an earlier version."""
    turns_high: Annotated[int, Field(ge=0)] | None = None
    """The high end; None where measurements do not bear one out."""
    seconds: Annotated[float, Field(ge=0)]
    tokens: Annotated[int, Field(ge=1)] | None = None
    seen: Annotated[int, Field(ge=2)] | None = None


class Forecast(Model):
    """The pace of this epoch and what it means for the rungs still ahead."""

    tokens_per_turn: Annotated[float, Field(ge=0)]
    seconds_per_turn: Annotated[float, Field(ge=0)]
    limit: RungForecast | None = None
    """The context limit itself; None once it is reached, and in a state of an earlier version."""
    rungs: dict[str, RungForecast]


class AgentState(Model):
    """One agent's state, with the fields of its state file; see `docs/state-file.md`."""

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
    """Of the handoff that this agent claimed and confirmed; None = it continues no other agent."""
    handoff: dict[str, Any] | None
    pending: list[dict[str, Any]] | None

    @classmethod
    def from_record(cls, record: StateRecord) -> AgentState:
        """Validate a stored record.

        Raises:
            pydantic.ValidationError: A field is out of its range.
        """
        return cls.model_validate(record.to_json())


SubagentContextState = AgentState
"""`AgentState` under the name that the type has in other monitors of agents."""


def utc(epoch_seconds: float) -> datetime:
    """Return an aware UTC time for epoch seconds."""
    return datetime.fromtimestamp(epoch_seconds, UTC)


def is_whole(record: StateRecord) -> bool:
    """Return whether all of a state can be read; logs why not.

    A list of agents reads only the heads of their states (`ultramon.state.record_head`).
    """
    try:
        record.decode()
    except StateError as error:
        _log.warning("agent %s cannot be read: %s", record.agent_id, error)
        return False
    return True


def state_of(record: StateRecord) -> AgentState | None:
    """Return a state for handlers; None for an unreadable or impossible one."""
    if not is_whole(record):
        return None
    try:
        return AgentState.from_record(record)
    except ValidationError as error:
        _log.warning("agent %s has a state without meaning: %s", record.agent_id, error)
        return None
