"""Reads the events of one run into its pool, those too that other readers have to wait for.

In a store of many writers `Backend.events` withholds an event as long as any program has an older
transaction open. A run must not stand still for it: what is committed is read at once. Where an
event appears before what was read, the pool is made anew, so that it is always what the events add
up to in their one order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.backends.toolkit import withholds_events
from ultramon.fleet.journal_event import JournalEvent
from ultramon.fleet.supervise.pool import ItemPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.backends.base import Backend
    from ultramon.fleet.supervise.result import SupervisorEvent

_PAGE_EVENTS = 500


class RunLog:
    """The events of a run, and the pool that they add up to.

    Args:
        backend: The store.
        run: The run.
        max_attempts: As for `ItemPool`.

    Attributes:
        pool: The items and contexts, as far as the journal was read.
    """

    def __init__(self, backend: Backend, run: str, max_attempts: int) -> None:
        self.pool = ItemPool(max_attempts)
        self._backend = backend
        self._run = run
        self._withholds = withholds_events(backend)
        self._max_attempts = max_attempts
        self._cursor: str | None = None
        """The end of what is in its final place."""
        self._ahead: list[str] = []
        """The ids of the events that were read behind it."""

    def read(self) -> list[SupervisorEvent]:
        """Read on to the end, and return the steps that were not there before.

        Raises:
            StateError: The store refused.
        """
        steps: list[SupervisorEvent] = []
        for before, event, cursor in self._final(self._cursor):
            if event["run"] == self._run:
                if not self._ahead:
                    steps += self.pool.read(JournalEvent.of(event), before)
                elif event["eventId"] == self._ahead[0]:
                    del self._ahead[0]
                else:
                    return steps + self._read_anew()
            self._cursor = cursor
        return steps + self._read_ahead() if self._withholds else steps

    def _final(self, cursor: str | None) -> Iterator[tuple[str | None, dict[str, Any], str]]:
        """Yield events that no other one can appear before, with the cursors around each."""
        is_full = True
        while is_full:
            page = self._backend.events(cursor, _PAGE_EVENTS)
            is_full = len(page.events) == _PAGE_EVENTS
            for event, behind in zip(page.events, page.cursors, strict=True):
                yield cursor, event, behind
                cursor = behind

    def _read_ahead(self) -> list[SupervisorEvent]:
        """Read on in what is committed, unless something appeared before what was read of it."""
        page = self._backend.committed_events(self._cursor, run=self._run)
        ids = [event["eventId"] for event in page.events]
        known = len(self._ahead)
        if ids[:known] != self._ahead:
            return self._read_anew()
        self._ahead = ids
        befores = [self._cursor, *page.cursors]
        steps: list[SupervisorEvent] = []
        for event, before in zip(page.events[known:], befores[known:], strict=False):
            steps += self.pool.read(JournalEvent.of(event), before)
        return steps

    def _read_anew(self) -> list[SupervisorEvent]:
        """Make the pool of all events in the order that they have now."""
        was_read, known = self._cursor, set(self._ahead)
        anew = RunLog(self._backend, self._run, self._max_attempts)
        steps: list[SupervisorEvent] = []
        is_new = was_read is None
        for before, event, cursor in anew._final(None):
            if event["run"] == self._run:
                follows = list(anew.pool.read(JournalEvent.of(event), before))
                steps += follows if is_new and event["eventId"] not in known else ()
            anew._cursor = cursor
            is_new = is_new or cursor == was_read
        page = self._backend.committed_events(anew._cursor, run=self._run)
        for event, before in zip(page.events, [anew._cursor, *page.cursors], strict=False):
            follows = list(anew.pool.read(JournalEvent.of(event), before))
            steps += follows if event["eventId"] not in known else ()
            anew._ahead.append(event["eventId"])
        self.pool, self._cursor, self._ahead = anew.pool, anew._cursor, anew._ahead
        return steps
