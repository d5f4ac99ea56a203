"""One thread per store and process that sends what nobody may wait for.

Messages of agents, which wait for it a moment and no longer, and what the outbox of this host
holds since the database did not answer, whichever process put it there.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from ultramon.backends.postgres.database import DatabaseAwayError, StoreNotReadyError
from ultramon.backends.postgres.outbox import LOOK_SECONDS
from ultramon.core.locks import LockedError
from ultramon.errors import StateError, UltramonError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ultramon.backends.postgres.outbox import Entry, Outbox

    Message = dict[str, Any]
    Deliver = Callable[[Sequence[Entry]], Sequence[Entry]]

_log = logging.getLogger("ultramon.backend")

SEND_WAIT_SECONDS = 0.04
"""How long an agent waits for its message to be stored; it has 50 ms, the outbox needs the rest."""
RETRY_SECONDS = 1.0
_FAREWELL_SECONDS = 2.0
_NOT_NOW = (DatabaseAwayError, StoreNotReadyError)


class _Job:
    """A message on its way."""

    __slots__ = ("done", "error", "message", "message_id")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.message_id: int | None = None
        self.error: UltramonError | None = DatabaseAwayError("outbox", "not sent yet")
        self.done = threading.Event()


class Courier:
    """Sends messages, and empties the outbox.

    Args:
        outbox: Where things wait while the database takes nothing.
        send: Stores a message; returns its id, None when it is refused as stale.
        deliver: Stores entries of the outbox as one step; returns those that have to stay there.
    """

    def __init__(
        self,
        outbox: Outbox,
        send: Callable[[Message], int | None],
        deliver: Deliver,
    ) -> None:
        self._outbox = outbox
        self._send = send
        self._deliver = deliver
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._thread: threading.Thread | None = None
        self._is_woken = False
        self._trouble = ""

    def send(self, message: Message, wait_seconds: float) -> int | None:
        """Store a message now, or keep it on this host until the database takes it.

        Args:
            message: With a dedupe key: what became of it may be unknown when it is kept.
            wait_seconds: How long to wait for the database.

        Returns:
            As `Queue.queue_message`.

        Raises:
            UltramonError: The database refused it, or this host's disk did.
        """
        job = _Job(message)
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
            return job.message_id
        self._outbox.put_message(message["recipient"], message)
        self.wake()
        return 0

    def wake(self) -> None:
        """Have the outbox looked at soon."""
        with self._changed:
            self._is_woken = True
            self._wake()

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._work, name="ultramon-courier", daemon=True)
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
                # Behind those that wait: messages arrive in the order in which they were sent.
                is_clear = is_clear and self._do(job)
                job.done.set()

    def _rest(self, seconds: float) -> bool:
        """Wait until there is something to do; return whether it is the last time."""
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
            job.message_id = self._send(job.message)
            job.error = None
        except UltramonError as error:
            job.error = error
            return not isinstance(error, _NOT_NOW)
        return True

    def drain(self) -> bool:
        """Pass on what waits, the oldest first, as long as the database takes it.

        Returns:
            Whether nothing waits any more that could be passed on now.
        """
        try:
            if not self._outbox.may_wait():
                return True
            with self._outbox.only_one():
                count = self._drain()
        except LockedError:
            return False  # another process of this host is at it
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
        """Begin without a thread in a forked copy; what was under way is the parent's."""
        self._reset()
