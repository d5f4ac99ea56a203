"""A snapshot of one agent's context window: reading, level, recipient of notices."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from ultramon.context.gauge import is_lower_bound, known_tokens
from ultramon.context.ladder import Ladder
from ultramon.errors import AgentNotFoundError, ConfigurationError
from ultramon.notices.levels import CUSTOM, DEFAULT, INVALID
from ultramon.state.liveness import ENDED, judge
from ultramon.state.models import Model, utc
from ultramon.state.record import StateRecord
from ultramon.state.usage_percent import percent_down, usage_ratio, whole_percent
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.processes import this_machine
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from ultramon.backends.base import StoredAgent
    from ultramon.notices.registration import StoredRegistration
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock

COMPACTING = "compacting"
UNAVAILABLE = "thresholds_unavailable"
UNKNOWN = "unknown"


def take_snapshot(
    stored: StoredAgent, registration: StoredRegistration | None, clock: Clock = SYSTEM_CLOCK
) -> ContextSnapshot:
    """Return the snapshot of an agent, registered or not.

    Args:
        stored: The agent, as a backend has loaded it.
        registration: The subscription to its notices; None = none.
        clock: For tests.

    Raises:
        StateError: Its state cannot be read.
    """
    record = stored.record
    if record is None:
        raise stored.problem or AgentNotFoundError(stored.agent_id)
    verdict = judge(record, stored.heartbeat_at, clock.now(), this_machine()).verdict
    ladder, source = _ladder(record, registration)
    rounds = ladder is not None and ladder.round_percent
    measured_at = record.measured_at
    ratio = None if measured_at is None else usage_ratio(record)
    posted = record.extra.get("posted") or {}
    taken_at = measured_at and (parse_time(posted.get("takenAt")) or measured_at)
    is_compacting = bool(posted.get("compacting"))
    return ContextSnapshot(
        agent_id=record.agent_id,
        label=record.label,
        host=record.host,
        lifecycle=verdict if verdict != ENDED else record.outcome or ENDED,
        is_over=not record.active,
        used_percentage=None if ratio is None else percent_down(ratio),
        whole_percent=None if ratio is None else whole_percent(ratio, rounds=rounds),
        tokens=known_tokens(record),
        is_lower_bound=measured_at is not None and is_lower_bound(record),
        tokens_source=record.tokens_source,
        context_limit=record.context_limit,
        sampled_at=None if taken_at is None else utc(taken_at),
        measured_at=None if measured_at is None else utc(measured_at),
        state=_state(record, ladder, ratio, is_compacting=is_compacting),
        thresholds=[
            Threshold(name=rung.name, ratio=rung.nominal_ratio)
            for rung in (ladder.resolve(record.context_limit).rungs if ladder else ())
        ],
        threshold_source=source,
        is_registered=registration is not None,
        notify_id=None if registration is None else registration.target(record),
        compaction_active=is_compacting,
        handoff=record.handoff,
        last_handoff_path=posted.get("handoffPath"),
    )


def _ladder(
    record: StateRecord, registration: StoredRegistration | None
) -> tuple[Ladder | None, str]:
    source = DEFAULT if registration is None else registration.ladder_status
    if source == INVALID:
        return None, INVALID
    own = registration.ladder if registration is not None and source == CUSTOM else None
    try:
        return Ladder.from_json(record.ladder if own is None else own), source
    except ConfigurationError:
        return None, INVALID


def _state(
    record: StateRecord, ladder: Ladder | None, ratio: float | None, *, is_compacting: bool
) -> str:
    if is_compacting:
        return COMPACTING
    if ladder is None:
        return UNAVAILABLE
    if ratio is None:
        return record.threshold_status or UNKNOWN
    resolved = ladder.resolve(record.context_limit)
    return resolved.names[resolved.rank_at(ratio)]


class Threshold(Model):
    """One rung, resolved against the present limit."""

    name: str
    ratio: Annotated[float, Field(gt=0)]


class ContextSnapshot(Model):
    """One agent's context window, registered or not."""

    agent_id: str
    label: str | None
    host: str
    lifecycle: str
    """``alive``, ``stale``, ``lost``, or how the agent ended."""
    is_over: bool
    used_percentage: float | None
    """0.0 and more, one decimal, rounded down; None before the first reading of this epoch."""
    whole_percent: Annotated[int | None, Field(exclude=True)]
    """The same for people, as the ladder decides."""
    tokens: int | None
    """None before the first reading of this epoch, and where a share alone was posted."""
    is_lower_bound: bool
    """Whether there may be more tokens: since a compaction of unknown size only text counts."""
    tokens_source: str
    context_limit: int | None
    sampled_at: datetime | None
    """By the clock of the process that measured."""
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
    """Path of a handoff document noted in a post; ultramon's own handoff is a record, no file."""
