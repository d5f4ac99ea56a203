"""The rules of routing: which notices follow from a stored state or event, and for whom.

`route` is called in the transaction that stores a state's events, so that a crossing and its
notices are stored together or not at all; `route_noted` in the one that stores events about an
agent that others detected. The rows are behind the port `RouteRows`.
"""

from __future__ import annotations

from ultramon.notices import texts
from ultramon.notices.levels import decide, least_ratio
from ultramon.notices.message_rules import MAX_HELD_SECONDS
from ultramon.system.timestamps import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ultramon.notices.message import Cancelled, Draft
    from ultramon.notices.registration import StoredRegistration
    from ultramon.notices.rows import RouteRows
    from ultramon.state.record import StateRecord


def route(
    rows: RouteRows, record: StateRecord, events: Sequence[dict[str, Any]], now: float
) -> StoredRegistration | None:
    """Queue the notices that follow from a state and the events that led to it.

    Args:
        rows: Within the transaction that stores the events.
        record: The state, as its owner stores it.
        events: The events that led to it and are stored for the first time.
        now: Epoch seconds.

    Returns:
        The agent's registration, as it is now.
    """
    registration = rows.registration(record.agent_id)
    for event in events:
        _notify(rows, event, record, registration, now)
    if registration is not None:
        registration = _follow_parent(rows, registration, record)
        if registration.is_enforced:
            _announce(rows, registration, record, now)
    return registration


def route_noted(
    rows: RouteRows, events: Sequence[dict[str, Any]], records: Sequence[StateRecord]
) -> None:
    """Queue the notices that follow from events that others than their agent store.

    They follow from the events alone, never from the level of a state: the given state may be older
    than the one that its owner stores meanwhile.

    Args:
        rows: Within the transaction that stores the events.
        events: Those that are stored for the first time.
        records: States of their agents, as far as they are known.
    """
    known = {record.agent_id: record for record in records}
    now = max((parse_time(event["occurredAt"]) or 0.0 for event in events), default=0.0)
    for event in events:
        if event["type"] in _NOTIFIED:
            agent_id = event["agentId"]
            _notify(rows, event, known.get(agent_id), rows.registration(agent_id), now)


_NOTIFIED = frozenset(("context_epoch_started", "handoff_ready", *texts.LIFE))


def _notify(
    rows: RouteRows,
    event: dict[str, Any],
    record: StateRecord | None,
    registration: StoredRegistration | None,
    now: float,
) -> None:
    """Queue the notice that follows from one event."""
    kind = event["type"]
    if kind == "context_epoch_started":
        if record is not None:
            _begin_epoch(rows, record, event, registration, now)
        return
    # An end that is stored late must not silence the next owner of the id.
    is_present = record is None or event["generation"] >= record.generation
    if kind in texts.ENDS and is_present and rows.cancel_levels(event["agentId"]):
        # A level whose notice was not delivered is announced again if the agent comes back.
        rows.forget_announcements(event["agentId"])
    if kind not in _NOTIFIED or registration is None:
        return
    recipient = registration.notify_id if record is None else registration.target(record)
    if recipient == event["agentId"]:
        return
    if kind == "agent_stopped" and record is not None and texts.is_clear(record):
        # Not an end: the session continues under another id, which `succeed` names.
        about = {**event, "reason": texts.CLEAR, "tokensBefore": record.estimated_tokens}
        cleared = texts.epoch_facts(record, about)
        _send(rows, cleared, record, recipient, now, held_seconds=MAX_HELD_SECONDS)
        return
    facts = texts.life_facts(record, event) if kind in texts.LIFE else texts.handoff_facts(event)
    if facts is not None:
        _send(rows, facts, record, recipient, now)


def _send(
    rows: RouteRows,
    facts: dict[str, Any],
    record: StateRecord | None,
    recipient: str,
    now: float,
    *,
    held_seconds: float = 0.0,
) -> None:
    """Queue a notice about an agent; the record is its state, where that is known."""
    text = texts.render(
        facts,
        recipient,
        name=facts["agentId"] if record is None else texts.describe(record),
        now=now,
        # A rung's name was checked when its ladder was made, so any of them may be shown.
        levels=(facts.get("level"),),
        is_running=record is not None and record.active,
    )
    if text is not None:
        rows.send(recipient, text, facts, now, held_seconds)


def _begin_epoch(
    rows: RouteRows,
    record: StateRecord,
    event: dict[str, Any],
    registration: StoredRegistration | None,
    now: float,
) -> None:
    """Move the sender to a new epoch: cancel its older notices, then queue the one about this."""
    at = (record.started_at, event["generation"], event["epoch"])
    newest = rows.sender(record.agent_id)
    # An epoch that is stored late must not cancel the notices of the one after it.
    if newest is not None and at <= newest[:3]:
        return
    rows.move_sender(record.agent_id, *at)
    _cancel(rows, record.agent_id)
    recipient = _epoch_recipient(record, event["reason"], registration)
    if recipient is not None:
        _send(rows, texts.epoch_facts(record, event), record, recipient, now)


def _cancel(rows: RouteRows, agent_id: str) -> Cancelled:
    rows.forget_announcements(agent_id)
    return rows.cancel(agent_id, texts.CONTEXT)


def _epoch_recipient(
    record: StateRecord, reason: str, registration: StoredRegistration | None
) -> str | None:
    """Return the recipient of a notice that a window ended; of a compaction at least the parent."""
    if registration is None:
        return record.parent_id if reason == "compaction" else None
    recipient = registration.target(record)
    # A new window does not begin with a notice that it is new.
    return None if recipient == record.agent_id and reason != "compaction" else recipient


def _follow_parent(
    rows: RouteRows, registration: StoredRegistration, record: StateRecord
) -> StoredRegistration:
    target = registration.target(record)
    if target == registration.notify_id:
        return registration
    # Stored, as events of others are routed without the agent's state.
    followed = registration._replace(notify_id=target)
    rows.put_registration(followed)
    return followed


def _announce(
    rows: RouteRows, registration: StoredRegistration, record: StateRecord, now: float
) -> None:
    """Notify the recipient of a level that is new to it, unless the agent ended or moved on."""
    if not record.active:
        return
    # The state of an epoch that is over, or a reading from before a clear, is no news.
    newest = rows.sender(record.agent_id)
    if newest is not None and (
        (record.started_at, record.generation, record.epoch) < newest[:3]
        or (record.measured_at or 0.0) <= newest[3]
    ):
        return
    recipient = registration.notify_id
    announced = rows.announcement(record.agent_id, recipient)
    decision = decide(registration.ladder, record, announced)
    ratio = least_ratio(record)
    if decision is None or ratio is None:
        return
    # A fall too, although it leads to no notice: the rung that was left can be announced again.
    rows.announce(record.agent_id, recipient, record.epoch, decision.level, now)
    if decision.is_rise:
        ladder = registration.ladder or record.ladder
        facts = texts.level_facts(record, decision, ratio, rounds=bool(ladder.get("roundPercent")))
        _send(rows, facts, record, recipient, now)


def register(rows: RouteRows, registration: StoredRegistration) -> Cancelled:
    """Store a registration in place of the agent's older one; every rung is armed again.

    Permissions are not checked here: see `ultramon.notices.permissions`.

    Returns:
        The cancelled notices about the agent.
    """
    rows.put_registration(registration)
    return _cancel(rows, registration.agent_id)


def unregister(rows: RouteRows, agent_id: str) -> Cancelled | None:
    """End a registration; None when there is none, else how many notices it cancelled."""
    return _cancel(rows, agent_id) if rows.delete_registration(agent_id) else None


def cancel_notices(
    rows: RouteRows, record: StateRecord, requester: str | None, now: float
) -> Cancelled:
    """Cancel the notices about an agent that was cleared from outside: they are stale.

    Readings made up to now lead to no notice any more; later ones do, afresh.

    Args:
        rows: Within a transaction.
        record: The agent as it is stored.
        requester: The agent that cleared it, which is not notified; None = a person.
        now: Epoch seconds.
    """
    return _clear(rows, record, requester, None, now)


def _clear(
    rows: RouteRows,
    record: StateRecord,
    requester: str | None,
    successor_id: str | None,
    now: float,
) -> Cancelled:
    event = {
        "reason": texts.CLEAR,
        "epoch": record.epoch,
        "tokensBefore": record.estimated_tokens,
        "successorId": successor_id,
    }
    rows.note_clear(record.agent_id, record.started_at, record.generation, record.epoch, now)
    cancelled = _cancel(rows, record.agent_id)
    recipient = _epoch_recipient(record, "clear", rows.registration(record.agent_id))
    if recipient is not None and recipient != requester:
        _send(rows, texts.epoch_facts(record, event), record, recipient, now)
    return cancelled


def is_superseded(rows: RouteRows, draft: Draft) -> bool:
    """Return whether a message is stale: its sender has moved on since it said it."""
    newest = rows.sender(draft.sender) if draft.sender and draft.may_be_stale else None
    if newest is None:
        return False
    _, generation, epoch, cleared_at = newest
    # What a host kept on disk comes back as a list.
    said_in = draft.sender_epoch and tuple(draft.sender_epoch)
    is_of_old_epoch = said_in is not None and said_in < (generation, epoch)
    return is_of_old_epoch or (draft.said_at is not None and draft.said_at <= cleared_at)


def succeed(rows: RouteRows, record: StateRecord, successor_id: str, now: float) -> None:
    """Cancel the notices about an agent that continues under another id; move its registration.

    The notice of the clear that waited for the new id is replaced by one that names it. Idempotent.

    Args:
        rows: Within a transaction.
        record: The agent as it was stored under its old id.
        successor_id: Its new id.
        now: Epoch seconds.
    """
    # Both: a call that was cut off, or made twice, finds the registration moved already.
    registration, newer = rows.registration(record.agent_id), rows.registration(successor_id)
    if registration is None and newer is not None:
        return  # done before; clearing again would cancel the notice of the clear
    _clear(rows, record, None, successor_id, now)
    if registration is None or not registration.is_enforced:
        return
    rows.delete_registration(record.agent_id)
    if newer is not None:
        return  # the successor has one of its own

    def follow(agent_id: str) -> str:
        return successor_id if agent_id == record.agent_id else agent_id

    moved = registration._replace(
        agent_id=successor_id,
        notify_id=follow(registration.notify_id),
        registered_by=follow(registration.registered_by),
    )
    rows.put_registration(moved)
