"""One background thread per process saves states and sends heartbeats for all its agents.

A test's own clock has no thread: advancing the clock does the work that is due.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from concurrent.futures import Future, wait
from contextlib import ExitStack
from heapq import heappop, heappush
from itertools import count
from math import ceil
from typing import TYPE_CHECKING, Protocol

from ultramon.backends.base import RecordsTogether
from ultramon.errors import StateError
from ultramon.system.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ultramon.backends.base import Backend, Save
    from ultramon.errors import UltramonError
    from ultramon.state.record import StateRecord

_log = logging.getLogger("ultramon.monitor")

AGENT_WAIT_SECONDS = 0.05
"""The longest time an agent waits for a save; after that the save continues without it."""
WARN_EVERY_SECONDS = 60.0
REQUEST_SECONDS = 1.0
"""Time between two checks for a request of an orchestrator."""
GRID_SECONDS = 0.05
"""Work that falls due within this time is done together: fewer wakes, fewer steps of a store."""
SLICE = 100
"""Writers served before the thread pauses, so that agents that wait for the interpreter get it."""
TOGETHER = 25
"""Saves in one step of the store. A step holds the locks of all its writers until its end."""
PAUSE_SECONDS = 0.0005
_LONGEST_WAIT_SECONDS = 3600.0
_NEVER = float("inf")


class Writer(Protocol):
    """What is saved here: the state of one agent."""

    agent_id: str
    record: StateRecord
    backend: Backend
    heartbeat_interval_seconds: float
    save_lock: threading.Lock

    def save(self, *, durable: bool) -> bool:
        """Store the newest state; True when nothing is left to store."""

    def next_save(self, *, durable: bool) -> Save | None:
        """Take a snapshot and return what to store; None where only `save` can store it."""

    def note_saved(self, save: Save, refusal: UltramonError | None) -> bool:
        """Finish a save that was stored or refused; True when nothing is left to store."""

    def check_request(self) -> None:
        """Follow the request that an orchestrator left."""

    def after_fork(self) -> None:
        """Store nothing more in a forked child."""


class _Job:
    """When something is due for one writer, in monotonic seconds.

    Attributes:
        queued_at: The time of its entry in the queue that counts; later ones are stale.
    """

    __slots__ = ("beat_at", "check_at", "queued_at", "save_at")

    def __init__(self, beat_at: float, check_at: float) -> None:
        self.beat_at = beat_at
        self.check_at = check_at
        self.save_at = self.queued_at = _NEVER

    @property
    def due_at(self) -> float:
        return min(self.beat_at, self.check_at, self.save_at)


class BackgroundSaver:
    """Saves states, sends heartbeats and checks for requests when they are due.

    Args:
        clock: Gives the time; a test advances its own.
        threaded: Whether a background thread does the work.
    """

    def __init__(self, clock: Clock, *, threaded: bool) -> None:
        self._clock = clock
        self.threaded = threaded
        self._condition = threading.Condition()
        # Weak: an agent whose program dropped its monitor must not beat for ever.
        self._jobs: weakref.WeakKeyDictionary[Writer, _Job] = weakref.WeakKeyDictionary()
        # By time; the number keeps those of one time in their order, as writers do not compare.
        self._queue: list[tuple[float, int, weakref.ref[Writer]]] = []
        self._numbers = count()
        # A writer with an unsaved end must not be collected before its last state is stored.
        self._unsaved: set[Writer] = set()
        self._urgent: list[tuple[Writer, bool, threading.Event]] = []
        self._thread: threading.Thread | None = None
        self._closing = False
        self._looks_at = _NEVER
        """Until when the thread waits; never while it works: then it looks when it is done."""
        self._warned_at: float | None = None

    def add(self, writer: Writer) -> None:
        """Begin to save states and send heartbeats for a writer."""
        with self._condition:
            now = self._clock.monotonic()
            beat_at = self._align(now + writer.heartbeat_interval_seconds)
            self._jobs[writer] = job = _Job(beat_at, self._align(now + REQUEST_SECONDS))
            self._enqueue(writer, job)
            self._wake(job.due_at)

    def discard(self, writer: Writer, *, saved: bool) -> None:
        """Stop beating for a writer whose agent ended; retry its last state until it is saved."""
        with self._condition:
            if saved:
                self._jobs.pop(writer, None)
                self._unsaved.discard(writer)
                return
            self._unsaved.add(writer)
            job = self._jobs.setdefault(writer, _Job(_NEVER, _NEVER))
            job.beat_at = job.check_at = _NEVER
            if job.save_at == _NEVER:
                job.save_at = self._clock.monotonic()
            self._enqueue(writer, job)
            self._wake(job.save_at)

    def schedule(self, writer: Writer, delay_seconds: float) -> None:
        """Save a state after a delay, unless it is due earlier anyway."""
        with self._condition:
            job = self._jobs.get(writer)
            due = self._clock.monotonic() + delay_seconds
            if job is not None and job.save_at > due:
                job.save_at = self._align(due) if delay_seconds else due
                self._enqueue(writer, job)
                self._wake(job.save_at)

    def save_now(self, writer: Writer, *, durable: bool, wait_seconds: float | None) -> bool:
        """Save a state at once, waiting at most so long (None = until it is done).

        Returns:
            Whether the save ended in time, whatever came of it.
        """
        if not self.threaded or threading.current_thread() is self._thread:
            writer.save(durable=durable)
            return True
        done = threading.Event()
        with self._condition:
            self._urgent.append((writer, durable, done))
            self._wake(-_NEVER)
        return done.wait(wait_seconds)

    def run_within(self, work: Callable[[], object], wait_seconds: float | None) -> bool:
        """Do blocking work, waiting at most so long; then it continues in a thread of its own.

        Args:
            work: What to do. What it raises in time is raised here.
            wait_seconds: None = until it is done.

        Returns:
            Whether it ended in time.
        """
        if wait_seconds is None or not self.threaded:
            work()
            return True
        future: Future[object] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as failure:  # noqa: BLE001 - raised again where it is waited for
                future.set_exception(failure)

        # A thread of its own, not the saver's: no start waits behind another agent's disk.
        try:
            threading.Thread(target=run, name="ultramon-start", daemon=True).start()
        except RuntimeError:  # the process may have no more threads
            run()
        has_ended = bool(wait([future], wait_seconds).done)
        if has_ended:
            future.result()
        return has_ended

    def _align(self, due: float) -> float:
        """Return the time at which work that is due then is done, with all that is due near it."""
        return ceil(due / GRID_SECONDS) * GRID_SECONDS if self.threaded else due

    def _enqueue(self, writer: Writer, job: _Job) -> None:
        due_at = job.due_at
        if due_at < job.queued_at:
            job.queued_at = due_at
            heappush(self._queue, (due_at, next(self._numbers), weakref.ref(writer)))

    def _first(self) -> tuple[float, Writer, _Job] | None:
        """Return what is due first, and when; None when there is nothing."""
        while self._queue:
            at, _, reference = self._queue[0]
            writer = reference()
            job = None if writer is None else self._jobs.get(writer)
            if writer is not None and job is not None and at == job.queued_at:
                if at == job.due_at:
                    return at, writer, job
                # Due later since it was queued: moving an entry within a heap would cost a search.
                job.queued_at = _NEVER
                heappop(self._queue)
                self._enqueue(writer, job)
            else:
                heappop(self._queue)
        return None

    def _wake(self, due: float) -> None:
        """Have the thread look, unless it looks anyway before something is due."""
        if not self.threaded or due >= self._looks_at:
            return
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._work, name="ultramon", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process may have no more threads
                self.warn("nothing is saved for now: %s", error)
                return
            self._thread = thread
        self._condition.notify()

    def _work(self) -> None:
        while True:
            with self._condition:
                urgent, self._urgent = self._urgent, []
                if not urgent:
                    due = self.next_due()
                    now = self._clock.monotonic()
                    if self._closing or due is None:
                        self._thread = None
                        return
                    if due > now:
                        seconds = min(due - now, _LONGEST_WAIT_SECONDS)
                        self._looks_at = now + seconds
                        self._condition.wait(seconds)
                        self._looks_at = _NEVER
                        continue
            self._save_urgent(urgent)
            if self.run_due():
                # Agents that wait for the interpreter get it before the next slice.
                time.sleep(PAUSE_SECONDS)

    @staticmethod
    def _save_urgent(urgent: list[tuple[Writer, bool, threading.Event]]) -> None:
        # A method of its own: a loop variable in the thread's frame would keep writers alive.
        try:
            save_all([(writer, durable) for writer, durable, _ in urgent])
        finally:
            for _, _, done in urgent:
                done.set()
            urgent.clear()

    def next_due(self) -> float | None:
        """Return the monotonic time of the next thing to do, None when there is nothing."""
        first = self._first()
        return None if first is None else first[0]

    def run_due(self) -> bool:
        """Do what is due: all of it, in a thread a slice; return whether there may be more."""
        now = self._clock.monotonic()
        saves, checks = [], []
        beats: dict[Backend, list[Writer]] = {}
        with self._condition:
            if not self._queue or self._queue[0][0] > now:
                return False
            due = self._take_due(now)
            for writer, job in due:
                if job.save_at <= now:
                    saves.append(writer)
                    job.save_at = _NEVER
                if job.check_at <= now:
                    checks.append(writer)
                    job.check_at = self._align(now + REQUEST_SECONDS)
                if job.beat_at <= now:
                    job.beat_at = self._align(now + writer.heartbeat_interval_seconds)
                    if writer.record.generation:
                        beats.setdefault(writer.backend, []).append(writer)
                self._enqueue(writer, job)
        for writer in checks:
            writer.check_request()
        for backend, writers in beats.items():
            self._beat(backend, writers)
        for writer in save_all([(writer, writer in self._unsaved) for writer in saves]):
            if writer in self._unsaved:
                self.discard(writer, saved=True)
        return len(due) >= SLICE

    def _take_due(self, now: float) -> list[tuple[Writer, _Job]]:
        """Take the writers for which something is due out of the queue."""
        taken: list[tuple[Writer, _Job]] = []
        most = SLICE if self.threaded else len(self._jobs)
        while len(taken) < most and (first := self._first()) is not None and first[0] <= now:
            _, writer, job = first
            heappop(self._queue)
            job.queued_at = _NEVER
            taken.append((writer, job))
        return taken

    def _beat(self, backend: Backend, writers: list[Writer]) -> None:
        try:
            fenced = backend.heartbeat(
                [(writer.agent_id, writer.record.generation) for writer in writers],
                self._clock.now(),
            )
        except StateError as error:
            self.warn("heartbeat failed: %s", error)
            return
        for writer in writers:
            if writer.agent_id in fenced:
                # Taken over, or its record is gone: a save finds out which, and reacts.
                writer.save(durable=False)

    def warn(self, message: str, *arguments: object) -> None:
        """Log a warning, at most one a minute; the others at DEBUG."""
        now = self._clock.monotonic()
        if self._warned_at is None or now - self._warned_at >= WARN_EVERY_SECONDS:
            self._warned_at = now
            _log.warning(message, *arguments)
        else:
            _log.debug(message, *arguments)

    def close(self) -> None:
        """Store what is not stored yet; for the end of the process."""
        with self._condition:
            self._closing = True
            thread = self._thread
            self._condition.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5.0)
        for writer, job in list(self._jobs.items()):
            if job.save_at < _NEVER:
                writer.save(durable=True)


def save_all(wanted: Sequence[tuple[Writer, bool]]) -> list[Writer]:
    """Save states, together where the backend can; return the writers that stored everything.

    Args:
        wanted: Writers, each with whether its state has to survive a power cut.
    """
    together: dict[RecordsTogether, dict[Writer, bool]] = {}
    alone: list[tuple[Writer, bool]] = []
    for writer, durable in wanted:
        # The first state of an agent needs `start_agent`, which takes one agent at a time.
        store, is_stored = writer.backend, writer.record.generation > 0
        if len(wanted) > 1 and is_stored and isinstance(store, RecordsTogether):
            group = together.setdefault(store, {})
            group[writer] = durable or group.get(writer, False)
        else:
            alone.append((writer, durable))
    saved = []
    for backend, writers in together.items():
        begun = list(writers.items())
        for start in range(0, len(begun), TOGETHER):
            saved += _save_together(backend, begun[start : start + TOGETHER])
    saved += [writer for writer, durable in alone if writer.save(durable=durable)]
    return saved


def _save_together(backend: RecordsTogether, wanted: Iterable[tuple[Writer, bool]]) -> list[Writer]:
    with ExitStack() as locks:
        begun: list[tuple[Writer, Save]] = []
        for writer, durable in wanted:
            locks.enter_context(writer.save_lock)
            save = writer.next_save(durable=durable)
            if save is not None:
                begun.append((writer, save))
        refusals: Sequence[UltramonError | None]
        try:
            refusals = backend.record_together([save for _, save in begun])
        except StateError as error:
            refusals = [error] * len(begun)
        outcomes = zip(begun, refusals, strict=True)
        return [writer for (writer, save), refusal in outcomes if writer.note_saved(save, refusal)]


_system = BackgroundSaver(SYSTEM_CLOCK, threaded=True)


def background_saver_for(clock: Clock) -> BackgroundSaver:
    """Return the process's saver, or that of a test's own clock."""
    if clock is SYSTEM_CLOCK:
        return _system
    saver: BackgroundSaver | None = getattr(clock, "saver", None)
    if saver is None:
        saver = BackgroundSaver(clock, threaded=False)
        clock.saver = saver  # type: ignore[attr-defined]
    return saver


def _after_fork() -> None:
    global _system
    former, _system = _system, BackgroundSaver(SYSTEM_CLOCK, threaded=True)
    for writer in list(former._jobs):  # their agents belong to the parent
        writer.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close() -> None:
    _system.close()
