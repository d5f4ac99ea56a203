"""One thread per store and process that sends messages and cancels, and empties the outbox.

A sender waits a moment for it and no longer. The outbox is that of this host, whichever process
filled it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.backends.postgres.connection.database import DatabaseAwayError, StoreNotReadyError
from ultramon.backends.postgres.outbox.outbox import LOOK_SECONDS
from ultramon.errors import StateError, UltramonError
from ultramon.system.locks import LockedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ultramon.backends.postgres.outbox.outbox import Entry, Outbox

    Deliver = Callable[[Sequence[Entry]], Sequence[Entry]]

_log = logging.getLogger("ultramon.backend")

SEND_WAIT_SECONDS = 0.04
"""How long an agent waits for its message to be stored: the rest of its 50 ms is the outbox's."""
RETRY_SECONDS = 1.0
_FAREWELL_SECONDS = 2.0
_NOT_NOW = (DatabaseAwayError, StoreNotReadyError)


class Order(NamedTuple):
    """A message or cancel for the database."""

    kind: str
    """As of an `Entry`."""
    agent_id: str
    """As of an `Entry`."""
    body: dict[str, Any]
    """JSON values."""


class _Job:
    """An order on its way."""

    __slots__ = ("answer", "done", "error", "order")

    def __init__(self, order: Order) -> None:
        self.order = order
        self.answer: Any = None
        self.error: UltramonError | None = DatabaseAwayError("outbox", "not sent yet")
        self.done = threading.Event()


class Sender:
    """Carries out orders one after the other, and empties the outbox.

    Args:
        outbox: Where entries wait during an outage.
        carry_out: Carries out an order; its result is returned to the sender.
        deliver: Stores entries of the outbox as one step; returns those that must stay there.
    """

    def __init__(
        self,
        outbox: Outbox,
        carry_out: Callable[[Order], Any],
        deliver: Deliver,
    ) -> None:
        self._outbox = outbox
        self._carry_out = carry_out
        self._deliver = deliver
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._thread: threading.Thread | None = None
        self._is_woken = False
        self._trouble = ""

    def send(self, order: Order, wait_seconds: float) -> Any:
        """Carry an order out now, or keep it on this host until the database takes it.

        Args:
            order: May be carried out twice: its outcome may be unknown when it is kept.
            wait_seconds: How long to wait for the database.

        Returns:
            The result of `carry_out`; 0 when it is kept.

        Raises:
            UltramonError: The database refused it, or this host's disk did.
        """
        job = _Job(order)
        with self._changed:
            self._jobs.append(job)
            self._wake()
        if not job.done.wait(wait_seconds):
            with self._changed:
                if job in self._jobs:
                    self._jobs.remove(job)
        if job.done.is_set() and not isinstance(job.error, _NOT_NOW):
            if job.error is not None:
                raise job.error
            return job.answer
        self._outbox.put(*order)
        self.wake()
        return 0

    def wake(self) -> None:
        """Look at the outbox soon."""
        with self._changed:
            self._is_woken = True
            self._wake()

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._work, name="ultramon-sender", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process may have no more threads
                _log.warning("nothing is sent for now: %s", error)
                return
            self._thread = thread
        self._changed.notify_all()

    def _work(self) -> None:
        is_clear = is_last = False
        while not is_last:
            is_last = self._rest(LOOK_SECONDS if is_clear else RETRY_SECONDS)
            is_clear = self.drain()
            while job := self._next():
                # Behind those that wait: orders arrive in the order in which they were given.
                is_clear = is_clear and self._do(job)
                job.done.set()

    def _rest(self, seconds: float) -> bool:
        """Wait for work; return whether the thread is to end."""
        with self._changed:
            me = threading.current_thread()
            if not self._jobs and not self._is_woken and self._thread is me:
                self._changed.wait(seconds)
            self._is_woken = False
            return self._thread is not me

    def _next(self) -> _Job | None:
        with self._changed:
            return self._jobs.popleft() if self._jobs else None

    def _do(self, job: _Job) -> bool:
        try:
            job.answer = self._carry_out(job.order)
            job.error = None
        except UltramonError as error:
            job.error = error
            return not isinstance(error, _NOT_NOW)
        return True

    def drain(self) -> bool:
        """Deliver the waiting entries, the oldest first, as long as the database takes them.

        Returns:
            Whether no entry is left that could be delivered now.
        """
        try:
            if not self._outbox.may_wait():
                return True
            with self._outbox.only_one():
                count = self._drain()
        except LockedError:
            return False  # another process of this host does it
        except _NOT_NOW:
            return False
        except StateError as error:
            self._complain(error)
            return False
        if count:
            _log.info("%d entries kept during an outage are stored now", count)
        return True

    def _drain(self) -> int:
        after = count = 0
        while entries := self._outbox.oldest(after):
            after = entries[-1].id
            count += self._pass_on(entries)
        return count

    def _pass_on(self, entries: Sequence[Entry]) -> int:
        try:
            staying = {entry.id for entry in self._deliver(entries)}
        except _NOT_NOW:
            raise
        except UltramonError as error:
            if len(entries) > 1:
                return sum(self._pass_on([entry]) for entry in entries)
            self._outbox.set_aside(entries[0], str(error))
            _log.warning("kept during an outage, and refused for good: %s", error)
            return 0
        done = [entry for entry in entries if entry.id not in staying]
        if done:
            self._outbox.forget(done)
        return len(done)

    def _complain(self, error: StateError) -> None:
        if str(error) != self._trouble:
            self._trouble = str(error)
            _log.warning("what was kept during an outage waits on: %s", error)

    def close(self) -> None:
        """Send what can be sent within two seconds, and end the thread."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None:
            thread.join(_FAREWELL_SECONDS)

    def after_fork(self) -> None:
        """Begin without a thread in a forked copy; orders under way are the parent's."""
        self._reset()
