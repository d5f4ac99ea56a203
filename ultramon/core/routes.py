"""Registrations and what follows from them, as rows of the journal.

`route` is called in the transaction that stores a state's events, so that a crossing and its
notices are stored together or not at all, whoever writes the state.
"""

from __future__ import annotations

from ultramon.core import codec, notices
from ultramon.core.messages import delete_messages_from, insert_message
from ultramon.core.registration import Registration, decide, usage_ratio
from ultramon.core.schema import QUEUE_VERSION
from ultramon.core.thresholds import FORCE_RETURN

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence
    from typing import Any

    from ultramon.core.journal import Journal
    from ultramon.core.record import StateRecord

_TIMEOUT_SECONDS = 5.0
_COLUMNS = "agent_id, notify_id, source, ladder, registered_by, registered_at"


def _registration(row: tuple[Any, ...]) -> Registration:
    agent_id, notify_id, source, ladder, registered_by, registered_at = row
    return Registration(
        agent_id,
        notify_id,
        source=source,
        ladder=ladder,
        registered_by=registered_by,
        registered_at=registered_at,
    )


def find_registration(connection: sqlite3.Connection, agent_id: str) -> Registration | None:
    """Return an agent's registration within a transaction."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM registrations WHERE agent_id = ?", (agent_id,)
    ).fetchone()
    return None if row is None else _registration(row)


def find_announcement(
    connection: sqlite3.Connection, agent_id: str, audience: str
) -> tuple[int, str] | None:
    """Return epoch and level that a recipient was told last, within a transaction."""
    row: tuple[int, str] | None = connection.execute(
        "SELECT epoch, level FROM announcements WHERE agent_id = ? AND audience = ?",
        (agent_id, audience),
    ).fetchone()
    return row


def route(
    connection: sqlite3.Connection,
    record: StateRecord,
    events: Sequence[dict[str, Any]],
    now: float,
) -> Registration | None:
    """Queue the notices that follow from a state and the events that led to it.

    Args:
        connection: Within the transaction that stores the events.
        record: The state as its owner stores it.
        events: Those of them that are stored for the first time.
        now: Epoch seconds.

    Returns:
        The agent's registration, as it is now.
    """
    registration = find_registration(connection, record.agent_id)
    for event in events:
        if event["type"] == "context_epoch_started":
            _begin_epoch(connection, record, event, registration, now)
        elif event["type"] == "handoff_ready" and registration is not None:
            recipient = registration.target(record)
            if recipient != record.agent_id:
                said = notices.handoff_notice(record, event)
                _send(connection, record, recipient, said, now=now, category=notices.HANDOFF)
    if registration is not None:
        _follow_parent(connection, registration, record)
        if registration.is_enforced:
            _announce(connection, registration, record, now)
    return registration


def _send(
    connection: sqlite3.Connection,
    record: StateRecord,
    recipient: str,
    said: tuple[str, dict[str, Any]],
    *,
    now: float,
    category: str = notices.CONTEXT,
) -> None:
    text, facts = said
    delivery = "urgent" if facts.get("action") == FORCE_RETURN else "sequential"
    insert_message(
        connection,
        recipient,
        text,
        now,
        sender=record.agent_id,
        category=category,
        delivery=delivery,
        facts=facts,
    )


def _begin_epoch(
    connection: sqlite3.Connection,
    record: StateRecord,
    event: dict[str, Any],
    registration: Registration | None,
    now: float,
) -> None:
    """Move the sender on, cancel what it said before, and only then tell of the new epoch."""
    at = (record.started_at, event["generation"], event["epoch"])
    newest = connection.execute(
        "SELECT started_at, generation, epoch FROM senders WHERE agent_id = ?", (record.agent_id,)
    ).fetchone()
    if newest is not None and at <= newest:
        return
    connection.execute(
        "INSERT INTO senders VALUES (?1, ?2, ?3, ?4, 0) ON CONFLICT (agent_id) DO UPDATE"
        " SET started_at = ?2, generation = ?3, epoch = ?4",
        (record.agent_id, *at),
    )
    _silence(connection, record.agent_id)
    recipient = _told_of_epochs(record, event["reason"], registration)
    if recipient is not None:
        _send(
            connection, record, recipient, notices.epoch_notice(record, event, recipient), now=now
        )


def _silence(connection: sqlite3.Connection, agent_id: str) -> tuple[int, int]:
    connection.execute("DELETE FROM announcements WHERE agent_id = ?", (agent_id,))
    return delete_messages_from(connection, agent_id, notices.CONTEXT)


def _told_of_epochs(
    record: StateRecord, reason: str, registration: Registration | None
) -> str | None:
    """Return who is told that a window ended: of a compaction the parent at least."""
    if registration is None:
        return record.parent_id if reason == "compaction" else None
    recipient = registration.target(record)
    # A fresh window is not to begin with the news that it is fresh.
    return None if recipient == record.agent_id and reason != "compaction" else recipient


def _follow_parent(
    connection: sqlite3.Connection, registration: Registration, record: StateRecord
) -> None:
    target = registration.target(record)
    if target != registration.notify_id:
        registration.notify_id = target
        connection.execute(
            "UPDATE registrations SET notify_id = ? WHERE agent_id = ?", (target, record.agent_id)
        )


def _announce(
    connection: sqlite3.Connection, registration: Registration, record: StateRecord, now: float
) -> None:
    """Tell the recipient a level that is new to it, unless the state is older than the sender."""
    newest = connection.execute(
        "SELECT started_at, generation, epoch, cleared_at FROM senders WHERE agent_id = ?",
        (record.agent_id,),
    ).fetchone()
    if newest is not None and (
        (record.started_at, record.generation, record.epoch) < newest[:3]
        or (record.measured_at or 0.0) <= newest[3]
    ):
        return
    recipient = registration.notify_id
    told = find_announcement(connection, record.agent_id, recipient)
    decision = decide(registration.ladder, record, told)
    ratio = usage_ratio(record)
    if decision is None or ratio is None or not decision.is_change:
        return
    connection.execute(
        "INSERT OR REPLACE INTO announcements VALUES (?, ?, ?, ?, ?)",
        (record.agent_id, recipient, record.epoch, decision.level, now),
    )
    if decision.is_rise:
        said = notices.level_notice(record, decision, ratio, recipient)
        _send(connection, record, recipient, said, now=now)


class Routes:
    """The verbs of registration, each a transaction of its own. Not thread-safe.

    Rights are not checked here: see `ultramon.core.registration`.

    Args:
        journal: Where the registrations are.
    """

    __slots__ = ("_journal",)

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def register(
        self,
        agent_id: str,
        notify_id: str,
        *,
        source: str,
        ladder: dict[str, Any] | None,
        registered_by: str,
        now: float,
    ) -> tuple[int, int]:
        """Register, or replace a registration; every rung can be told anew.

        Returns:
            How many undelivered notices about the agent were cancelled, and are in flight.
        """
        text = None if ladder is None else codec.dumps(ladder)
        # Before the commit: a mark without a registration does no harm, one missing is deafness.
        self._journal.watch(agent_id, ladder, None)
        with self._journal.transaction(_TIMEOUT_SECONDS) as connection:
            connection.execute(
                "INSERT OR REPLACE INTO registrations VALUES (?, ?, ?, ?, ?, ?)",
                (agent_id, notify_id, source, text, registered_by, now),
            )
            return _silence(connection, agent_id)

    def unregister(self, agent_id: str) -> tuple[int, int] | None:
        """End a registration; None when there is none, else as for `register`."""
        if not self._journal.exists():
            return None
        with self._journal.transaction(_TIMEOUT_SECONDS) as connection:
            done = connection.execute("DELETE FROM registrations WHERE agent_id = ?", (agent_id,))
            cancelled = _silence(connection, agent_id) if done.rowcount else None
        self._journal.unwatch(agent_id)
        return cancelled

    def registrations(self, agent_id: str | None = None) -> list[Registration]:
        """Return one agent's registration, or all by agent id."""
        journal = self._journal
        if not journal.exists():
            return []
        with journal.transaction(_TIMEOUT_SECONDS, "DEFERRED") as connection:
            if journal.version(connection) < QUEUE_VERSION:
                return []
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM registrations WHERE ?1 IS NULL OR agent_id = ?1"
                " ORDER BY agent_id",
                (agent_id,),
            ).fetchall()
        return [_registration(row) for row in rows]

    def announcement(self, agent_id: str, audience: str) -> tuple[int, str] | None:
        """Return epoch and level that a recipient was told last about an agent."""
        journal = self._journal
        if not journal.exists():
            return None
        with journal.transaction(_TIMEOUT_SECONDS, "DEFERRED") as connection:
            if journal.version(connection) < QUEUE_VERSION:
                return None
            return find_announcement(connection, agent_id, audience)

    def clear(self, record: StateRecord, requester: str | None, now: float) -> tuple[int, int]:
        """Note that an agent was cleared from outside: what it said before is stale.

        Readings made up to now tell nobody anything any more; later ones do, afresh.

        Args:
            record: The agent as it is stored.
            requester: Who cleared it, and need not be told; None = a person.
            now: Epoch seconds.

        Returns:
            How many undelivered notices about it were cancelled, and are in flight.
        """
        event = {"reason": "clear", "epoch": record.epoch, "tokensBefore": record.estimated_tokens}
        with self._journal.transaction(_TIMEOUT_SECONDS) as connection:
            connection.execute(
                "INSERT INTO senders VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (agent_id) DO UPDATE"
                " SET cleared_at = ?5",
                (record.agent_id, record.started_at, record.generation, record.epoch, now),
            )
            cancelled = _silence(connection, record.agent_id)
            registration = find_registration(connection, record.agent_id)
            recipient = _told_of_epochs(record, "clear", registration)
            if recipient is not None and recipient != requester:
                said = notices.epoch_notice(record, event, recipient)
                _send(connection, record, recipient, said, now=now)
        if registration is not None:
            self._journal.watch(record.agent_id, registration.ladder, None)
        return cancelled
