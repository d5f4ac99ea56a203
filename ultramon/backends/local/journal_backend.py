"""The part of a backend that its journal keeps, the same for files and for memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.backends.base import EventPage, Subscription
from ultramon.backends.local.claims import JournalClaims
from ultramon.backends.local.credentials import JournalCredentials
from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS
from ultramon.backends.local.queue import JournalQueue
from ultramon.backends.local.registry import JournalRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from ultramon.backends.local.journal import Journal
    from ultramon.state.record import StateRecord


class JournalBackend(JournalClaims):
    """Events, their consumers, claims of handoffs, queue, registrations and credentials.

    Args:
        journal: Where they are.
        guard: As for `JournalPart`.
        prepare: As for `JournalPart`.
    """

    def __init__(
        self,
        journal: Journal,
        guard: Callable[[], AbstractContextManager[object]],
        prepare: Callable[[], object],
    ) -> None:
        super().__init__(journal, guard, prepare)
        self.queue = JournalQueue(journal, guard, prepare)
        self.registry = JournalRegistry(journal, guard, prepare)
        self.credentials = JournalCredentials(journal, guard, prepare)

    def append_events(
        self, events: Sequence[dict[str, Any]], records: Sequence[StateRecord] = ()
    ) -> None:
        """See `Backend.append_events`."""
        self._prepare()
        with self._guard():
            self._journal.append(events, TOOL_TIMEOUT_SECONDS, known=records)

    def events(self, after: str | None = None, limit: int = 500) -> EventPage:
        """See `Backend.events`."""
        with self._guard():
            return EventPage(*self._journal.tail(after, limit))

    def subscribe(
        self, name: str, holder: str, *, now: float, lease_seconds: float
    ) -> Subscription | None:
        """See `Backend.subscribe`."""
        self._prepare()
        with self._guard():
            left = self._journal.subscribe(name, holder, now, lease_seconds)
        return None if left is None else Subscription(*left)

    def acknowledge(self, name: str, holder: str, cursor: str, memory: dict[str, Any]) -> bool:
        """See `Backend.acknowledge`."""
        self._prepare()
        with self._guard():
            return self._journal.acknowledge(name, holder, cursor, memory)

    def unsubscribe(self, name: str, holder: str) -> None:
        """See `Backend.unsubscribe`."""
        with self._guard():
            self._journal.unsubscribe(name, holder)
