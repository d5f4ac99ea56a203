"""The rows that the rule book of routing reads and writes, in the journal."""

from __future__ import annotations

from ultramon.backends.local.message_rows import (
    IS_NOTICE,
    delete_levels,
    delete_messages_from,
    insert_message,
)
from ultramon.notices.message_rules import DELIVERIES
from ultramon.notices.registration import StoredRegistration

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from typing import Any

    from ultramon.backends.local.level_marks import Mark
    from ultramon.notices.message import Cancelled

_COLUMNS = "agent_id, notify_id, source, ladder, registered_by, registered_at"


class JournalRows:
    """See `ultramon.notices.rows.RouteRows`.

    Args:
        connection: Within a transaction.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def registrations(self, agent_id: str | None = None) -> list[StoredRegistration]:
        """Return one agent's registration, or all by agent id."""
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} FROM registrations WHERE ? IS NULL OR agent_id = ?"
            " ORDER BY agent_id",
            (agent_id, agent_id),
        )
        return [StoredRegistration(*row) for row in rows]

    def registration(self, agent_id: str) -> StoredRegistration | None:
        """See `RouteRows.registration`."""
        row = self._connection.execute(
            f"SELECT {_COLUMNS} FROM registrations WHERE agent_id = ?", (agent_id,)
        ).fetchone()
        return None if row is None else StoredRegistration(*row)

    def mark(self, registration: StoredRegistration | None) -> Mark | None:
        """Return the mark of a registered agent, see `level_marks`; None without a registration."""
        if registration is None:
            return None
        ladder = registration.ladder if registration.is_enforced else {}
        return ladder, self.announcement(registration.agent_id, registration.notify_id)

    def put_registration(self, registration: StoredRegistration) -> None:
        """See `RouteRows.put_registration`."""
        self._connection.execute(
            "INSERT OR REPLACE INTO registrations VALUES (?, ?, ?, ?, ?, ?)",
            registration,
        )

    def delete_registration(self, agent_id: str) -> bool:
        """See `RouteRows.delete_registration`."""
        done = self._connection.execute("DELETE FROM registrations WHERE agent_id = ?", (agent_id,))
        return done.rowcount == 1

    def sender(self, agent_id: str) -> tuple[float, int, int, float] | None:
        """See `RouteRows.sender`."""
        row: tuple[float, int, int, float] | None = self._connection.execute(
            "SELECT started_at, generation, epoch, cleared_at FROM senders WHERE agent_id = ?",
            (agent_id,),
        ).fetchone()
        return row

    def move_sender(self, agent_id: str, started_at: float, generation: int, epoch: int) -> None:
        """See `RouteRows.move_sender`."""
        self._connection.execute(
            "INSERT INTO senders VALUES (?, ?, ?, ?, 0) ON CONFLICT (agent_id) DO UPDATE"
            " SET started_at = excluded.started_at, generation = excluded.generation,"
            " epoch = excluded.epoch",
            (agent_id, started_at, generation, epoch),
        )

    def note_clear(
        self, agent_id: str, started_at: float, generation: int, epoch: int, cleared_at: float
    ) -> None:
        """See `RouteRows.note_clear`."""
        self._connection.execute(
            "INSERT INTO senders VALUES (?, ?, ?, ?, ?) ON CONFLICT (agent_id) DO UPDATE"
            " SET cleared_at = excluded.cleared_at",
            (agent_id, started_at, generation, epoch, cleared_at),
        )

    def announcement(self, agent_id: str, audience: str) -> tuple[int, str] | None:
        """See `RouteRows.announcement`."""
        row: tuple[int, str] | None = self._connection.execute(
            "SELECT epoch, level FROM announcements WHERE agent_id = ? AND audience = ?",
            (agent_id, audience),
        ).fetchone()
        return row

    def announce(self, agent_id: str, audience: str, epoch: int, level: str, now: float) -> None:
        """See `RouteRows.announce`."""
        self._connection.execute(
            "INSERT OR REPLACE INTO announcements VALUES (?, ?, ?, ?, ?)",
            (agent_id, audience, epoch, level, now),
        )

    def forget_announcements(self, agent_id: str) -> None:
        """See `RouteRows.forget_announcements`."""
        self._connection.execute("DELETE FROM announcements WHERE agent_id = ?", (agent_id,))

    def cancel(self, sender: str, category: str) -> Cancelled:
        """See `RouteRows.cancel`."""
        return delete_messages_from(self._connection, sender, category)

    def cancel_levels(self, sender: str) -> bool:
        """See `RouteRows.cancel_levels`."""
        return delete_levels(self._connection, sender)

    def hasten(self, recipient: str, sender: str, delivery: str) -> None:
        """See `RouteRows.hasten`."""
        self._connection.execute(
            f"UPDATE messages SET priority = :priority WHERE sender = :sender AND {IS_NOTICE}"
            " AND state IN (0, 1) AND recipient = :recipient AND priority > :priority",
            {"priority": DELIVERIES.index(delivery), "sender": sender, "recipient": recipient},
        )

    def send(
        self,
        recipient: str,
        text: str,
        now: float,
        *,
        sender: str,
        category: str,
        delivery: str,
        facts: dict[str, Any],
    ) -> None:
        """See `RouteRows.send`."""
        insert_message(
            self._connection,
            recipient,
            text,
            now,
            sender=sender,
            category=category,
            delivery=delivery,
            facts=facts,
        )
