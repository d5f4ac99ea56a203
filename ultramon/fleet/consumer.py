"""A consumer of the journal: cursor and memory under a name, held by one reader on a lease."""

from __future__ import annotations

import logging
import os
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from ultramon.backends.lease_holder import name_holder
from ultramon.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend
    from ultramon.system.clock import Clock

Item = TypeVar("Item")

_log = logging.getLogger("ultramon.fleet")

LEASE_SECONDS = 30.0
"""A fleet that vanished without proof keeps its consumer name for this long."""
RENEW_SECONDS = LEASE_SECONDS / 3
PAGE_EVENTS = 100
"""The number of events that are read from the store at a time."""


def has_news(backend: Backend, mark: object) -> bool:
    """Return whether events may have been stored since a change mark; None = no mark was taken.

    While the store refuses there are none: the next poll says what is wrong.
    """
    try:
        return mark is not None and backend.change_mark() != mark
    except StateError:
        return False


class Consumer:
    """A reader of the journal under a name that one reader holds at a time.

    Args:
        backend: The store.
        name: Owns cursor and memory.
        clock: For the lease.
        remember: Called with the stored memory when another holder moved the cursor.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        clock: Clock,
        remember: Callable[[dict[str, Any]], None],
    ) -> None:
        self._backend = backend
        self._name = name
        self._clock = clock
        self._remember = remember
        self._pid = os.getpid()
        self._holder = name_holder()
        self._held_at: float | None = None
        self._cursor: str | None = None
        self._page: deque[tuple[dict[str, Any], str]] = deque()
        self._acknowledged: str | None = None

    @property
    def holder(self) -> str:
        """The name of this reader among all."""
        self._start_anew_after_fork()
        return self._holder

    @property
    def cursor(self) -> str | None:
        """The position after the last event done."""
        return self._cursor

    def holds(self) -> bool:
        """Return whether this reader holds the name and the lease is not due for renewal."""
        self._start_anew_after_fork()
        held_at = self._held_at
        return held_at is not None and 0 <= self._clock.now() - held_at < RENEW_SECONDS

    def _start_anew_after_fork(self) -> None:
        # The parent may keep the name, or end; neither may free the child's hold.
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._holder = name_holder()
            self._held_at = None

    def take_hold(self) -> bool:
        """Become or stay the holder of the name; False while another one's lease runs."""
        if self.holds():
            return True
        now = self._clock.now()
        left = self._backend.subscribe(
            self._name, self._holder, now=now, lease_seconds=LEASE_SECONDS
        )
        if left is None:
            self._held_at = None
            return False
        # Another holder may have read further meanwhile: what was read here is read again.
        if self._held_at is None or left.cursor != self._acknowledged:
            self._page.clear()
            self._cursor = self._acknowledged = left.cursor
            self._remember(left.memory)
        self._held_at = now
        return True

    def read(self) -> dict[str, Any] | None:
        """Return the next event, None when there is none yet; the same one until `move_on`."""
        if not self._page:
            page = self._backend.events(self._cursor, PAGE_EVENTS)
            self._page.extend(zip(page.events, page.cursors, strict=True))
        return self._page[0][0] if self._page else None

    def begin_at(self, cursor: str) -> None:
        """Pass over everything before a cursor of the store; to be acknowledged."""
        self._page.clear()
        self._cursor = cursor

    def move_on(self) -> None:
        """Finish the event read last."""
        _, self._cursor = self._page.popleft()

    def acknowledge(self, memory: dict[str, Any], *, is_new: bool = False) -> bool:
        """Store how far was read, with what to remember; False when the name is lost.

        Args:
            memory: JSON values only.
            is_new: Store the memory even where nothing was read since.
        """
        self._start_anew_after_fork()
        cursor = self._cursor
        if cursor is None or (cursor == self._acknowledged and not is_new):
            return True
        if not self._backend.acknowledge(self._name, self._holder, cursor, memory):
            self._held_at = None
            return False
        self._acknowledged = cursor
        return True

    def close(self) -> None:
        """Give the name up; where the store refuses, the lease runs out by itself."""
        self._start_anew_after_fork()
        if self._held_at is None:
            return
        self._held_at = None
        try:
            self._backend.unsubscribe(self._name, self._holder)
        except StateError as error:
            _log.warning("consumer %s stays taken for a while: %s", self._name, error)
