"""Registrations in PostgreSQL, and the rows that the rule book of routing reads and writes.

A transaction that moves an agent's epoch holds its row locked, so that the rules run one at a time.
"""

from __future__ import annotations

from time import time as wall_clock
from typing import TYPE_CHECKING, Any

from ultramon.backends.local.message_rows import IS_NOTICE, LEVEL_FACT
from ultramon.notices import router
from ultramon.notices.message_rules import DELIVERIES
from ultramon.notices.registration import StoredRegistration
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.backends.postgres.connection.database import Connection, Database
    from ultramon.backends.postgres.store.message_rows import MessageRows
    from ultramon.notices.message import Cancelled
    from ultramon.state.record import StateRecord

_COLUMNS = "agent_id, notify_id, source, ladder, registered_by, registered_at"


class PostgresRows:
    """See `ultramon.notices.rows.RouteRows`.

    Args:
        connection: Within a transaction.
        database: Whose.
        messages: The messages there.
        events: Those that are being stored: a cancel reaches back to when an epoch among them
            began; without one to now.
        is_kept: Whether they were kept on a host until now. See `MessageRows.cancel`.
    """

    def __init__(
        self,
        connection: Connection,
        database: Database,
        messages: MessageRows,
        events: Sequence[dict[str, Any]] = (),
        *,
        is_kept: bool = False,
    ) -> None:
        self._events = events
        self._is_kept = is_kept
        self._connection = connection
        self._database = database
        self._sql = database.sql
        self._messages = messages

    def _execute(self, statement: str, *arguments: Any) -> int:
        return self._connection.execute(self._sql(statement), arguments).rowcount

    def registrations(self, agent_id: str | None = None) -> list[StoredRegistration]:
        """Return one agent's registration, or all by agent id."""
        rows = self._connection.execute(
            self._sql(
                f"SELECT {_COLUMNS} FROM ultramon.registrations"
                " WHERE %s::text IS NULL OR agent_id = %s ORDER BY agent_id"
            ),
            (agent_id, agent_id),
        ).fetchall()
        return [self._registration(row) for row in rows]

    def registration(self, agent_id: str) -> StoredRegistration | None:
        """See `RouteRows.registration`."""
        row = self._connection.execute(
            self._sql(f"SELECT {_COLUMNS} FROM ultramon.registrations WHERE agent_id = %s"),
            (agent_id,),
        ).fetchone()
        return None if row is None else self._registration(row)

    def _registration(self, row: tuple[Any, ...]) -> StoredRegistration:
        columns = [*row[:5], self._database.from_server(row[5])]
        return StoredRegistration(*columns)

    def put_registration(self, registration: StoredRegistration) -> None:
        """See `RouteRows.put_registration`."""
        self._execute(
            "INSERT INTO ultramon.registrations VALUES (%s, %s, %s, %s, %s, %s)"
            " ON CONFLICT (agent_id) DO UPDATE SET notify_id = excluded.notify_id,"
            " source = excluded.source, ladder = excluded.ladder,"
            " registered_by = excluded.registered_by, registered_at = excluded.registered_at",
            registration.agent_id,
            registration.notify_id,
            registration.source,
            registration.ladder_json,
            registration.registered_by,
            self._database.to_server(registration.registered_at),
        )

    def delete_registration(self, agent_id: str) -> bool:
        """See `RouteRows.delete_registration`."""
        deleted = self._execute("DELETE FROM ultramon.registrations WHERE agent_id = %s", agent_id)
        return deleted == 1

    def sender(self, agent_id: str) -> tuple[float, int, int, float] | None:
        """See `RouteRows.sender`; the start is by the clock of the agent's owner."""
        row = self._connection.execute(
            self._sql(
                "SELECT started_at, generation, epoch, cleared_at FROM ultramon.senders"
                " WHERE agent_id = %s"
            ),
            (agent_id,),
        ).fetchone()
        if row is None:
            return None
        started_at, generation, epoch, cleared_at = row
        return started_at, generation, epoch, self._cleared(cleared_at)

    def _cleared(self, at: float) -> float:
        return self._database.from_server(at) if at else 0.0

    def move_sender(self, agent_id: str, started_at: float, generation: int, epoch: int) -> None:
        """See `RouteRows.move_sender`."""
        self._execute(
            "INSERT INTO ultramon.senders VALUES (%s, %s, %s, %s, 0)"
            " ON CONFLICT (agent_id) DO UPDATE SET started_at = excluded.started_at,"
            " generation = excluded.generation, epoch = excluded.epoch",
            agent_id,
            started_at,
            generation,
            epoch,
        )

    def note_clear(
        self, agent_id: str, started_at: float, generation: int, epoch: int, cleared_at: float
    ) -> None:
        """See `RouteRows.note_clear`."""
        self._execute(
            "INSERT INTO ultramon.senders VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT (agent_id) DO UPDATE SET cleared_at = excluded.cleared_at",
            agent_id,
            started_at,
            generation,
            epoch,
            self._database.to_server(cleared_at),
        )

    def announcement(self, agent_id: str, audience: str) -> tuple[int, str] | None:
        """See `RouteRows.announcement`."""
        row = self._connection.execute(
            self._sql(
                "SELECT epoch, level FROM ultramon.announcements"
                " WHERE agent_id = %s AND audience = %s"
            ),
            (agent_id, audience),
        ).fetchone()
        return None if row is None else (row[0], row[1])

    def announce(self, agent_id: str, audience: str, epoch: int, level: str, now: float) -> None:
        """See `RouteRows.announce`."""
        self._execute(
            "INSERT INTO ultramon.announcements VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT (agent_id, audience) DO UPDATE SET epoch = excluded.epoch,"
            " level = excluded.level, announced_at = excluded.announced_at",
            agent_id,
            audience,
            epoch,
            level,
            self._database.to_server(now),
        )

    def forget_announcements(self, agent_id: str) -> None:
        """See `RouteRows.forget_announcements`."""
        self._execute("DELETE FROM ultramon.announcements WHERE agent_id = %s", agent_id)

    def cancel(self, sender: str, category: str) -> Cancelled:
        """See `RouteRows.cancel`."""
        began = [
            parse_time(event["occurredAt"]) or 0.0
            for event in self._events
            if event["type"] == "context_epoch_started"
        ]
        at = max(began, default=None) or wall_clock()
        return self._messages.cancel(self._connection, sender, category, at, is_kept=self._is_kept)

    def cancel_levels(self, sender: str) -> bool:
        """See `RouteRows.cancel_levels`."""
        which = f"sender = %s AND {IS_NOTICE} AND strpos(facts, '{LEVEL_FACT}') > 0 AND state"
        deleted = self._execute(f"DELETE FROM ultramon.messages WHERE {which} = 0", sender)
        claimed = self._execute(f"UPDATE ultramon.messages SET state = 3 WHERE {which} = 1", sender)
        return deleted + claimed > 0

    def hasten(self, recipient: str, sender: str, delivery: str) -> None:
        """See `RouteRows.hasten`."""
        priority = DELIVERIES.index(delivery)
        self._execute(
            "UPDATE ultramon.messages SET priority = %s WHERE sender = %s"
            f" AND {IS_NOTICE} AND state IN (0, 1) AND recipient = %s AND priority > %s",
            priority,
            sender,
            recipient,
            priority,
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
        self._messages.insert(
            self._connection,
            recipient,
            text,
            now,
            sender=sender,
            category=category,
            delivery=delivery,
            facts=facts,
        )


class PostgresRegistry:
    """See `ultramon.backends.registry.Registry`.

    Args:
        database: Where the registrations are.
        messages: The messages there.
    """

    def __init__(self, database: Database, messages: MessageRows) -> None:
        self._database = database
        self._messages = messages

    def rows(
        self,
        connection: Connection,
        events: Sequence[dict[str, Any]] = (),
        *,
        is_kept: bool = False,
    ) -> PostgresRows:
        """Return what the rule book works on, within a transaction. See `PostgresRows`."""
        return PostgresRows(connection, self._database, self._messages, events, is_kept=is_kept)

    def _locked(self, connection: Connection, agent_id: str) -> PostgresRows:
        connection.execute(
            self._database.sql("SELECT 1 FROM ultramon.agents WHERE agent_id = %s FOR UPDATE"),
            (agent_id,),
        )
        return self.rows(connection)

    def register(self, registration: StoredRegistration) -> Cancelled:
        """See `Registry.register`."""
        with self._database.transaction() as connection:
            rows = self._locked(connection, registration.agent_id)
            return router.register(rows, registration)

    def unregister(self, agent_id: str) -> Cancelled | None:
        """See `Registry.unregister`."""
        with self._database.transaction() as connection:
            return router.unregister(self._locked(connection, agent_id), agent_id)

    def registrations(self, agent_id: str | None = None) -> list[StoredRegistration]:
        """See `Registry.registrations`."""
        with self._database.connection() as connection:
            return self.rows(connection).registrations(agent_id)

    def announcement(self, agent_id: str, audience: str) -> tuple[int, str] | None:
        """See `Registry.announcement`."""
        with self._database.connection() as connection:
            return self.rows(connection).announcement(agent_id, audience)

    def cancel_notices(
        self, record: StateRecord, *, requester: str | None, now: float
    ) -> Cancelled:
        """See `Registry.cancel_notices`."""
        with self._database.transaction() as connection:
            rows = self._locked(connection, record.agent_id)
            return router.cancel_notices(rows, record, requester, now)
