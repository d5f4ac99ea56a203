"""Registrations in PostgreSQL, and the rows that the rules of routing read and write.

A transaction that moves an agent's epoch holds its row locked, so that the rules run one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import time as wall_clock
from typing import TYPE_CHECKING, Any

from ultramon.backends.sql_parts import SqlRegistry
from ultramon.backends.sql_rows import SqlRows
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from ultramon.backends.postgres.connection.database import Connection, Database
    from ultramon.backends.postgres.store.message_rows import MessageRows
    from ultramon.backends.postgres.store.states import States
    from ultramon.notices.message import Cancelled, Draft
    from ultramon.notices.rows import RouteRows

    Answer = TypeVar("Answer")


class PostgresRows(SqlRows):
    """The rows of routing in a transaction of PostgreSQL.

    Args:
        connection: Within that transaction.
        database: Whose.
        messages: The messages there.
        events: Those that are being stored: a cancel reaches back to when an epoch among them
            began; without one to now.
        is_kept: Whether they were kept on a machine until now. See `MessageRows.cancel`.
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
        super().__init__(connection, to_store=database.to_server, from_store=database.from_server)
        self._events = events
        self._is_kept = is_kept
        self._connection = connection
        self._database = database
        self._messages = messages

    def _insert(self, draft: Draft, now: float) -> object:
        return self._messages.insert(self._connection, draft, now)

    def cancel(self, sender: str, category: str) -> Cancelled:
        began = [
            parse_time(event["occurredAt"]) or 0.0
            for event in self._events
            if event["type"] == "context_epoch_started"
        ]
        at = max(began, default=None) or wall_clock()
        return self._messages.cancel(self._connection, sender, category, at, is_kept=self._is_kept)


@dataclass(frozen=True, slots=True)
class PostgresRegistry(SqlRegistry):
    """The rows of registrations, as `ultramon.backends.registry.Registry` states.

    Attributes:
        database: Where the registrations are.
        messages: The messages there.
        states: The rows of agents.
    """

    database: Database
    messages: MessageRows
    states: States

    def rows(
        self,
        connection: Connection,
        events: Sequence[dict[str, Any]] = (),
        *,
        is_kept: bool = False,
    ) -> PostgresRows:
        """Return what the rules work on, within a transaction. See `PostgresRows`."""
        return PostgresRows(connection, self.database, self.messages, events, is_kept=is_kept)

    def _read(self, read: Callable[[SqlRows], Answer]) -> Answer | None:
        with self.database.connection() as connection:
            return read(self.rows(connection))

    def _change(self, agent_id: str, rule: Callable[[RouteRows], Answer]) -> Answer:
        with self.database.transaction() as connection:
            self.states.hold(connection, agent_id)
            return rule(self.rows(connection))
