"""The rows that the rule book of routing reads and writes, in the journal and in PostgreSQL."""

from __future__ import annotations

from ultramon.backends.local.message_rows import (
    IS_NOTICE,
    LEVEL_FACT,
    delete_messages_from,
    insert_message,
)
from ultramon.notices.message import Draft
from ultramon.notices.message_rules import DELIVERIES
from ultramon.notices.registration import StoredRegistration
from ultramon.notices.texts import category_of, delivery_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ultramon.backends.local.connection import JournalConnection
    from ultramon.backends.local.level_marks import Mark
    from ultramon.notices.message import Cancelled

_COLUMNS = "agent_id, notify_id, source, ladder, registered_by, registered_at"


class SqlRows:
    """See `ultramon.notices.rows.RouteRows`; all of it but `cancel`.

    The statements are of the SQL that both databases speak, in the form of SQLite: the tables lie
    in the schema ``main``, and values are ``?``.

    Args:
        execute: Executes a statement with values, within a transaction; returns the cursor.
        insert: Adds a message there, at a time.
        to_store: Returns a time of this host's clock by that of the database.
        from_store: The reverse.
    """

    def __init__(
        self,
        execute: Callable[[str, tuple[Any, ...]], Any],
        insert: Callable[[Draft, float], object],
        *,
        to_store: Callable[[float], float] = float,
        from_store: Callable[[float], float] = float,
    ) -> None:
        self._execute = execute
        self._insert = insert
        self._to_store = to_store
        self._from_store = from_store

    def registrations(self, agent_id: str | None = None) -> list[StoredRegistration]:
        """Return one agent's registration, or all by agent id."""
        which, values = ("", ()) if agent_id is None else ("WHERE agent_id = ?", (agent_id,))
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM main.registrations {which} ORDER BY agent_id", values
        )
        return [self._registration(row) for row in rows.fetchall()]

    def registration(self, agent_id: str) -> StoredRegistration | None:
        """See `RouteRows.registration`."""
        return next(iter(self.registrations(agent_id)), None)

    def _registration(self, row: tuple[Any, ...]) -> StoredRegistration:
        return StoredRegistration._make((*row[:5], self._from_store(row[5])))

    def put_registration(self, registration: StoredRegistration) -> None:
        """See `RouteRows.put_registration`."""
        *columns, registered_at = registration
        self._execute(
            "INSERT INTO main.registrations VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (agent_id) DO UPDATE SET notify_id = excluded.notify_id,"
            " source = excluded.source, ladder = excluded.ladder,"
            " registered_by = excluded.registered_by, registered_at = excluded.registered_at",
            (*columns, self._to_store(registered_at)),
        )

    def delete_registration(self, agent_id: str) -> bool:
        """See `RouteRows.delete_registration`."""
        done = self._execute("DELETE FROM main.registrations WHERE agent_id = ?", (agent_id,))
        return bool(done.rowcount == 1)

    def sender(self, agent_id: str) -> tuple[float, int, int, float] | None:
        """See `RouteRows.sender`; the start is by the clock of the agent's owner."""
        row = self._execute(
            "SELECT started_at, generation, epoch, cleared_at FROM main.senders WHERE agent_id = ?",
            (agent_id,),
        ).fetchone()
        return None if row is None else (*row[:3], self._cleared(row[3]))

    def _cleared(self, at: float) -> float:
        return self._from_store(at) if at else 0.0

    def move_sender(self, agent_id: str, started_at: float, generation: int, epoch: int) -> None:
        """See `RouteRows.move_sender`."""
        self._execute(
            "INSERT INTO main.senders VALUES (?, ?, ?, ?, 0) ON CONFLICT (agent_id) DO UPDATE"
            " SET started_at = excluded.started_at, generation = excluded.generation,"
            " epoch = excluded.epoch",
            (agent_id, started_at, generation, epoch),
        )

    def note_clear(
        self, agent_id: str, started_at: float, generation: int, epoch: int, cleared_at: float
    ) -> None:
        """See `RouteRows.note_clear`."""
        self._execute(
            "INSERT INTO main.senders VALUES (?, ?, ?, ?, ?) ON CONFLICT (agent_id) DO UPDATE"
            " SET cleared_at = excluded.cleared_at",
            (agent_id, started_at, generation, epoch, self._to_store(cleared_at)),
        )

    def announcement(self, agent_id: str, audience: str) -> tuple[int, str] | None:
        """See `RouteRows.announcement`."""
        row: tuple[int, str] | None = self._execute(
            "SELECT epoch, level FROM main.announcements WHERE agent_id = ? AND audience = ?",
            (agent_id, audience),
        ).fetchone()
        return row

    def announce(self, agent_id: str, audience: str, epoch: int, level: str, now: float) -> None:
        """See `RouteRows.announce`."""
        self._execute(
            "INSERT INTO main.announcements VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (agent_id, audience) DO UPDATE SET epoch = excluded.epoch,"
            " level = excluded.level, announced_at = excluded.announced_at",
            (agent_id, audience, epoch, level, self._to_store(now)),
        )

    def forget_announcements(self, agent_id: str) -> None:
        """See `RouteRows.forget_announcements`."""
        self._execute("DELETE FROM main.announcements WHERE agent_id = ?", (agent_id,))

    def cancel_levels(self, sender: str) -> bool:
        """See `RouteRows.cancel_levels`."""
        # To find a text in another the two databases have functions of different names.
        is_level = f"{IS_NOTICE} AND replace(facts, '{LEVEL_FACT}', '') <> facts"
        which = f"WHERE sender = ? AND {is_level} AND state"
        deleted = self._execute(f"DELETE FROM main.messages {which} = 0", (sender,))
        claimed = self._execute(f"UPDATE main.messages SET state = 3 {which} = 1", (sender,))
        return bool(deleted.rowcount + claimed.rowcount > 0)

    def send(self, recipient: str, text: str, facts: dict[str, Any], now: float) -> None:
        """See `RouteRows.send`."""
        sender, delivery = facts["agentId"], delivery_of(facts)
        self._hasten(recipient, sender, DELIVERIES.index(delivery))
        category = category_of(facts)
        draft = Draft(recipient, text, sender, category=category, delivery=delivery, facts=facts)
        self._insert(draft, now)

    def _hasten(self, recipient: str, sender: str, priority: int) -> None:
        self._execute(
            f"UPDATE main.messages SET priority = ? WHERE sender = ? AND {IS_NOTICE}"
            " AND state IN (0, 1) AND recipient = ? AND priority > ?",
            (priority, sender, recipient, priority),
        )


class JournalRows(SqlRows):
    """See `SqlRows`.

    Args:
        connection: Within a transaction.
    """

    def __init__(self, connection: JournalConnection) -> None:
        super().__init__(
            connection.execute, lambda draft, now: insert_message(connection, draft, now)
        )
        self._connection = connection

    def mark(self, registration: StoredRegistration | None) -> Mark | None:
        """Return the mark of a registered agent, see `level_marks`; None without a registration."""
        if registration is None:
            return None
        ladder = registration.ladder if registration.is_enforced else {}
        return ladder, self.announcement(registration.agent_id, registration.notify_id)

    def cancel(self, sender: str, category: str) -> Cancelled:
        """See `RouteRows.cancel`."""
        return delete_messages_from(self._connection, sender, category)
