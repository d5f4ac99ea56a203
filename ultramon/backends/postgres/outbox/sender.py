"""One thread per store and process that sends messages and cancels, and empties the outbox.

A sender waits a moment for it and no longer. The outbox is that of this machine, whichever process
filled it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from ultramon.backends.postgres.connection.database import DatabaseAwayError, StoreNotReadyError
from ultramon.backends.postgres.outbox.outbox import LOOK_SECONDS, Entry
from ultramon.errors import StateError, UltramonError
from ultramon.system.locks import LockedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ultramon.backends.postgres.outbox.outbox import Outbox

    Deliver = Callable[[Sequence[Entry]], Sequence[Entry]]

_log = logging.getLogger("ultramon.backend")

SEND_WAIT_SECONDS = 0.04
"""How long an agent waits for its message to be stored: the rest of its 50 ms is the outbox's."""
RETRY_SECONDS = 1.0
_LOCKED_PAUSE_SECONDS = 0.02
"""Between two looks at the outbox while another process delivers what is in it."""
_FAREWELL_SECONDS = 2.0
_NOT_NOW = (DatabaseAwayError, StoreNotReadyError)
_CLEAR, _LOCKED, _AWAY = "clear", "locked", "away"


class Sender:
    """Carries out orders one after the other, and empties the outbox.

    Args:
        outbox: Where entries wait during an outage.
        carry_out: Carries out an order, an entry that is not kept; its result is returned to the
            sender.
        deliver: Stores entries of the outbox as one step; returns those that must stay there.
    """

    def __init__(self, outbox: Outbox, carry_out: Callable[[Entry], Any], deliver: Deliver) -> None:
        self._outbox = outbox
        self._carry_out = carry_out
        self._deliver = deliver
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Entry, Future[Any]]] = deque()
        self._thread: threading.Thread | None = None
        self._is_woken = False
        self._trouble = ""
        self._begun = self._done = 0
        self._outcome = _CLEAR

    def send(self, kind: str, agent_id: str, body: dict[str, Any], wait_seconds: float) -> Any:
        """Carry an order out now, or keep it on this machine until the database takes it.

        It may be carried out twice: its outcome may be unknown when it is kept.

        Args:
            kind: As of an `Entry`.
            agent_id: As of an `Entry`.
            body: JSON values.
            wait_seconds: How long to wait for the database.

        Returns:
            The result of `carry_out`; 0 when it is kept.

        Raises:
            UltramonError: The database refused it, or this machine's disk did.
        """
        done: Future[Any] = Future()
        with self._changed:
            self._jobs.append((Entry(0, kind, agent_id, body), done))
            self._wake()
        wait([done], wait_seconds)
        # What is cancelled in time is not carried out, and kept instead.
        if not done.cancel() and done.done() and not isinstance(done.exception(), _NOT_NOW):
            return done.result()
        self._outbox.put(kind, agent_id, body)
        self.wake()
        return 0

    def deliver(self, within_seconds: float) -> bool:
        """Have what waits on this machine delivered now, by this process or the one that is at it.

        Args:
            within_seconds: How long to wait for that; what is left follows later.

        Returns:
            Whether no entry is left that could be delivered. Entries of agents that never were
            stored stay as long as their processes run.
        """
        deadline = time.monotonic() + within_seconds
        try:
            while self._outbox.may_wait():
                outcome = self._wait_for_delivery(deadline - time.monotonic())
                if outcome != _LOCKED or time.monotonic() >= deadline:
                    return outcome == _CLEAR
                time.sleep(_LOCKED_PAUSE_SECONDS)
        except StateError as error:
            _log.info("what may wait on this machine cannot be read: %s", error)
            return False
        return True

    def _wait_for_delivery(self, seconds: float) -> str:
        with self._changed:
            wanted = self._begun + 1
            self._is_woken = True
            self._wake()
            is_done = self._changed.wait_for(lambda: self._done >= wanted, max(seconds, 0.0))
            return self._outcome if is_done else _AWAY

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
            is_clear = self._drain_once()
            while job := self._next():
                order, done = job
                if not done.set_running_or_notify_cancel():
                    continue
                try:
                    # Behind those that wait: orders arrive in the order in which they were given.
                    if not is_clear:
                        raise DatabaseAwayError("outbox", "not sent yet")
                    done.set_result(self._carry_out(order))
                except UltramonError as error:
                    is_clear = not isinstance(error, _NOT_NOW)
                    done.set_exception(error)

    def _rest(self, seconds: float) -> bool:
        """Wait for work; return whether the thread is to end."""
        with self._changed:
            me = threading.current_thread()
            if not self._jobs and not self._is_woken and self._thread is me:
                self._changed.wait(seconds)
            self._is_woken = False
            return self._thread is not me

    def _next(self) -> tuple[Entry, Future[Any]] | None:
        with self._changed:
            return self._jobs.popleft() if self._jobs else None

    def _drain_once(self) -> bool:
        with self._changed:
            self._begun += 1
            number = self._begun
        outcome = self._drain()
        with self._changed:
            self._done, self._outcome = number, outcome
            self._changed.notify_all()
        return outcome == _CLEAR

    def _drain(self) -> str:
        """Deliver the waiting entries, the oldest first, as long as the database takes them.

        Returns:
            ``clear`` when no entry is left that could be delivered now, ``locked`` when another
            process of this machine delivers them, else ``away``.
        """
        try:
            if not self._outbox.may_wait():
                return _CLEAR
            after = count = 0
            with self._outbox.only_one():
                while entries := self._outbox.oldest(after):
                    after = entries[-1].id
                    count += self._pass_on(entries)
        except LockedError:
            return _LOCKED
        except _NOT_NOW:
            return _AWAY
        except StateError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("what was kept during an outage waits on: %s", error)
            return _AWAY
        if count:
            _log.info("%d entries kept during an outage are stored now", count)
        return _CLEAR

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
