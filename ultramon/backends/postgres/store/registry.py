"""Registrations in PostgreSQL, and the rows that the rule book of routing reads and writes.

A transaction that moves an agent's epoch holds its row locked, so that the rules run one at a time.
"""

from __future__ import annotations

from functools import partial
from time import time as wall_clock
from typing import TYPE_CHECKING, Any

from ultramon.backends.local.route_rows import SqlRows
from ultramon.notices import router
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.backends.postgres.connection.database import Connection, Database
    from ultramon.backends.postgres.store.message_rows import MessageRows
    from ultramon.notices.message import Cancelled
    from ultramon.notices.registration import StoredRegistration
    from ultramon.state.record import StateRecord


class PostgresRows(SqlRows):
    """See `SqlRows`.

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
        super().__init__(
            lambda statement, values: connection.execute(
                statement.replace("main.", "ultramon.").replace("?", "%s"), values
            ),
            partial(messages.insert, connection),
            to_store=database.to_server,
            from_store=database.from_server,
        )
        self._events = events
        self._is_kept = is_kept
        self._connection = connection
        self._database = database
        self._messages = messages

    def cancel(self, sender: str, category: str) -> Cancelled:
        """See `RouteRows.cancel`."""
        began = [
            parse_time(event["occurredAt"]) or 0.0
            for event in self._events
            if event["type"] == "context_epoch_started"
        ]
        at = max(began, default=None) or wall_clock()
        return self._messages.cancel(self._connection, sender, category, at, is_kept=self._is_kept)


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
            "SELECT 1 FROM ultramon.agents WHERE agent_id = %s FOR UPDATE", (agent_id,)
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
