"""The part of a backend that its journal keeps, the same for files and for memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.backends.base import EventPage, Subscription
from ultramon.backends.lease_holder import is_gone
from ultramon.backends.local.claims import JournalClaims
from ultramon.backends.local.credentials import JournalCredentials
from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS
from ultramon.backends.local.queue import JournalQueue
from ultramon.backends.local.registry import JournalRegistry
from ultramon.system import compact_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.backends.local.journal import Journal
    from ultramon.state.record import StateRecord


class JournalBackend(JournalClaims):
    """Events, their consumers, claims of handoffs, queue, registrations and credentials.

    Args:
        journal: Where they are.
    """

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.queue = JournalQueue(journal)
        self.registry = JournalRegistry(journal)
        self.credentials = JournalCredentials(journal)

    def append_events(
        self, events: Sequence[dict[str, Any]], records: Sequence[StateRecord] = ()
    ) -> None:
        """See `Backend.append_events`."""
        self._journal.make_directory()
        self._journal.append(events, TOOL_TIMEOUT_SECONDS, known=records)

    def events(self, after: str | None = None, limit: int = 500) -> EventPage:
        """See `Backend.events`."""
        return EventPage(*self._journal.tail(after, limit))

    def subscribe(
        self, name: str, holder: str, *, now: float, lease_seconds: float
    ) -> Subscription | None:
        """See `Backend.subscribe`."""
        self._journal.make_directory()
        with self._journal.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            held = connection.execute(
                "SELECT holder, lease_until, cursor, memory FROM consumers WHERE name = ?", (name,)
            ).fetchone()
            other, lease_until, cursor, memory = held or (None, 0.0, None, "{}")
            if other not in (None, holder) and lease_until > now and not is_gone(other):
                return None
            connection.execute(
                "INSERT INTO consumers VALUES (?, NULL, '{}', ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET holder = excluded.holder,"
                " lease_until = excluded.lease_until",
                (name, holder, now + lease_seconds),
            )
        return Subscription(cursor, compact_json.loads(memory))

    def acknowledge(self, name: str, holder: str, cursor: str, memory: dict[str, Any]) -> bool:
        """See `Backend.acknowledge`."""
        statement = "UPDATE consumers SET cursor = ?, memory = ? WHERE name = ? AND holder = ?"
        return (
            self._journal.execute(statement, cursor, compact_json.dumps(memory), name, holder) == 1
        )

    def unsubscribe(self, name: str, holder: str) -> None:
        """See `Backend.unsubscribe`."""
        statement = "UPDATE consumers SET holder = NULL WHERE name = ? AND holder = ?"
        self._journal.execute(statement, name, holder)
