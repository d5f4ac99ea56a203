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
    """``agent:<id>`` of the one that noticed it."""
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
    tokens: Annotated[int, Field(ge=0)] | None
    """With the limit None where a share of a window of unknown size was posted."""
    context_limit: Annotated[int, Field(gt=0)] | None
    tokens_source: str
    level_from: float | None = None
    """Usage ratio at which the level begins; None for the base level."""
    level_below: float | None = None
    """Of the base level: the usage ratio at which the next one begins."""


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
    """An agent left a handoff record; ``handoff`` is the record of its state file."""

    handoff: dict[str, Any]
    ended_with: dict[str, Any] | None = None
    """The end of an agent without a handoff, where a fleet made the record; else None."""


class CheckpointEvent(Event):
    """An agent stored its work and continues; ``handoff`` is offered to no successor."""

    handoff: dict[str, Any]


class EnforcementEvent(Event):
    """A hook ended an agent that was asked to return and did not, or would have in a dry run."""

    reason: str
    """The text that the user is shown."""
    checkpoint: str | None
    """Commit and ref of the working tree; None without one."""
    dry_run: bool


class AssignmentEvent(Event):
    """An orchestrator assigned work to an agent before its start: items, or a handoff."""

    items: list[str] | None = None
    handoff: dict[str, Any] | None = None
    supervisor: str | None = None
    """With `Fleet.supervise`: the one process that may start the agent."""
    steps: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """With `Fleet.supervise`: results of steps that agents before it have done, by item and name.

    Only items with such steps are in it.
    """


class ItemsEvent(Event):
    """Items of a supervised run were added, claimed, verified, rejected, set aside or reopened."""

    items: list[str]
    reasons: dict[str, str] = Field(default_factory=dict)
    """Why, by item, where there is a reason."""
    final: list[str] = Field(default_factory=list)
    """Of those rejected the ones that no other context is to try."""
    attempt: Annotated[int, Field(ge=1)] = 1
    """Counts the rejections of a claim, or how often items of the run were reopened."""


class StepEvent(Event):
    """An agent has done a step inside an item."""

    item: str
    step: str
    result: Any = None
    """JSON; all steps of an item together take at most 64 KiB."""


class SpawnEvent(Event):
    """The process of a supervised context was started."""

    pid: int
    pid_started_at: str | None
    boot_id: str
    hostname: str
    process_group: int | None = None
    """The number of the group that it leads; None = it leads none."""


class CloseEvent(Event):
    """A supervised context is over, and what it left is put back."""

    reason: str
    died: bool
    killed: bool
    progress: bool
    begun: list[str]
    """Items that were in work."""
    blamed: list[str]
    """Items on which it made no progress."""
    killed_outside: list[str] = Field(default_factory=list)
    """Items that were in work when it was killed from outside: no attempt on them."""


class AlertEvent(Event):
    """A command-line tool alerted its agent; ``n`` is the time in milliseconds."""

    level: str
    """``warning``, ``caution``, ``critical``, ``emergency`` or ``stale``; ``ok`` when forced."""
    usage_ratio: Annotated[float, Field(ge=0)]
    tokens: Annotated[int, Field(ge=0)] | None
    context_limit: Annotated[int, Field(gt=0)] | None
    command: str | None
    """The command of the tool; None = unnamed."""
    forced: bool
    directory: str | None
    """The project directory of the reading; None for an agent's state."""


class PlanEvent(Event):
    """A limit of a plan reached a level, once per account and period; about no agent.

    ``agent_id`` is ``plan:`` and the account, ``run`` is empty.
    """

    key: str
    """``plan:<account>:<limit>:<reset>:<level>``."""
    level: str
    account: str
    """The host's configuration directory."""
    host: str
    limit: str
    """``five_hour``, ``seven_day``, or the host's name for another one."""
    level_from: float
    """Used ratio at which the level begins."""
    used_ratio: Annotated[float, Field(ge=0)]
    resets_at: datetime
    measured_at: datetime


class BudgetEvent(Event):
    """A budget of the user reached a level, once per period; about no agent.

    ``agent_id`` is ``budget:`` and its name, ``run`` is empty. Its limit and what is spent of it
    are in US dollars or in tokens, the other two are None.
    """

    key: str
    """``budget:<name>:<period>:<level>``."""
    level: str
    budget: str
    scope: dict[str, str]
    """Whose spending counts: ``project``, ``run``, ``agent``; empty = all."""
    period: str
    """``day``, ``week``, ``month`` or ``none``."""
    period_key: str
    starts_at: datetime
    ends_at: datetime | None
    level_from: float
    """Used ratio at which the level begins."""
    used_ratio: Annotated[float, Field(ge=0)]
    limit_usd: float | None = None
    spent_usd: float | None = None
    limit_tokens: int | None = None
    spent_tokens: int | None = None
    is_whole: bool
    """False where more was spent than that: something has no price or no time."""
    empties_at: datetime | None
    """When it is used up at this pace; None = unknown, or not in this period."""
    is_enforced: bool
    measured_at: datetime


class AuditEvent(Event):
    """An authenticated caller of a server, `agent_id`, tried a request that it may not make."""

    action: str
    """Method and path."""
    target: str | None
    """The agent that the request was about; None = no agent."""
    claimed: str | None
    """The agent in whose name it was made; None = its own."""
    reason: str


_EVENT_TYPES: dict[str, type[Event]] = {
    "context_threshold_reached": ThresholdEvent,
    "context_relaxed": ThresholdEvent,
    "context_epoch_started": EpochEvent,
    "checkpoint_stored": CheckpointEvent,
    "handoff_ready": HandoffEvent,
    "return_enforced": EnforcementEvent,
    "agent_assigned": AssignmentEvent,
    "step_completed": StepEvent,
    "items_added": ItemsEvent,
    "items_claimed": ItemsEvent,
    "items_verified": ItemsEvent,
    "items_rejected": ItemsEvent,
    "items_set_aside": ItemsEvent,
    "items_reopened": ItemsEvent,
    "context_spawned": SpawnEvent,
    "context_closed": CloseEvent,
    "context_alert": AlertEvent,
    "plan_threshold_reached": PlanEvent,
    "budget_threshold_reached": BudgetEvent,
    "audit": AuditEvent,
}


def parse_event(payload: dict[str, Any]) -> Event:
    """Validate an event of the journal.

    Raises:
        pydantic.ValidationError: It is not an event that ultramon wrote.
    """
    return _EVENT_TYPES.get(payload.get("type", ""), AgentEvent).model_validate(payload)
