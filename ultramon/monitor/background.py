"""One background thread per process that saves and beats for all its monitors.

With another clock than the system's there is no thread: advancing that clock does what is due.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from ultramon.backends.base import RecordsTogether
from ultramon.errors import StateError
from ultramon.system.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ultramon.backends.base import Backend, Save
    from ultramon.errors import UltramonError

_log = logging.getLogger("ultramon.monitor")

AGENT_WAIT_SECONDS = 0.05
"""The longest time an agent waits for a save; after that the save goes on without it."""
WARN_EVERY_SECONDS = 60.0
REQUEST_SECONDS = 1.0
"""How often it is looked whether an orchestrator asks for something."""
_LONGEST_WAIT_SECONDS = 3600.0
_NEVER = float("inf")


class Kept(Protocol):
    """What the saver looks after; a `ContextMonitor`."""

    agent_id: str
    generation: int
    backend: Backend
    heartbeat_interval_seconds: float
    save_lock: threading.Lock
    """Held from `next_save` to `note_saved`."""

    def save(self, *, durable: bool) -> bool:
        """Store the newest state; True when nothing is left to store. Never raises StateError."""

    def next_save(self, *, durable: bool) -> Save | None:
        """Return what is to be stored now; None where only `save` knows what to do."""

    def note_saved(self, save: Save, refusal: UltramonError | None) -> bool:
        """Note what became of it; True when nothing is left to store. Never raises StateError."""

    def look_for_request(self) -> None:
        """Look whether an orchestrator asks for something. Never raises StateError."""

    def after_fork(self) -> None:
        """This is a copy in a forked child."""


class _Job:
    __slots__ = ("beat_at", "look_at", "save_at")

    def __init__(self, beat_at: float, look_at: float) -> None:
        self.beat_at = beat_at
        self.look_at = look_at
        self.save_at: float | None = None

    def next_due(self) -> float:
        """Return the monotonic time of the first thing to do."""
        first = min(self.beat_at, self.look_at)
        return first if self.save_at is None else min(first, self.save_at)


class BackgroundSaver:
    """Saves and beats for monitors when it is time.

    Args:
        clock: Gives the time; its owner advances it when it is not the system's.
        threaded: Whether a background thread does the work.
    """

    def __init__(self, clock: Clock, *, threaded: bool) -> None:
        self._clock = clock
        self._threaded = threaded
        self._condition = threading.Condition()
        self._jobs: weakref.WeakKeyDictionary[Kept, _Job] = weakref.WeakKeyDictionary()
        # A monitor that ended unsaved must not be collected before its last state is stored.
        self._unsaved: set[Kept] = set()
        self._urgent: list[tuple[Kept, bool, threading.Event]] = []
        self._thread: threading.Thread | None = None
        self._closing = False
        self._warned_at: float | None = None

    def add(self, monitor: Kept) -> None:
        """Look after a monitor from now on."""
        with self._condition:
            now = self._clock.monotonic()
            interval = monitor.heartbeat_interval_seconds
            self._jobs[monitor] = _Job(now + interval, now + REQUEST_SECONDS)
            self._wake()

    def discard(self, monitor: Kept, *, saved: bool) -> None:
        """Stop beating for a monitor that ended; go on saving until its last state is stored."""
        with self._condition:
            if saved:
                self._jobs.pop(monitor, None)
                self._unsaved.discard(monitor)
                return
            self._unsaved.add(monitor)
            job = self._jobs.setdefault(monitor, _Job(_NEVER, _NEVER))
            job.beat_at = job.look_at = _NEVER
            if job.save_at is None:
                job.save_at = self._clock.monotonic()
            self._wake()

    def schedule(self, monitor: Kept, delay_seconds: float) -> None:
        """Save a monitor after a delay, unless it is due earlier anyway."""
        with self._condition:
            job = self._jobs.get(monitor)
            due = self._clock.monotonic() + delay_seconds
            if job is not None and (job.save_at is None or job.save_at > due):
                job.save_at = due
                self._wake()

    def save_now(self, monitor: Kept, *, durable: bool, wait_seconds: float | None) -> bool:
        """Save a monitor at once, waiting at most so long (None = until it is done).

        Returns:
            Whether the save ended in time, whatever came of it.
        """
        if not self._threaded or threading.current_thread() is self._thread:
            monitor.save(durable=durable)
            return True
        done = threading.Event()
        with self._condition:
            self._urgent.append((monitor, durable, done))
            self._wake()
        return done.wait(wait_seconds)

    def run_within(self, work: Callable[[], object], wait_seconds: float | None) -> bool:
        """Do blocking work, waiting at most so long; after that it goes on in a thread of its own.

        Args:
            work: What to do. What it raises in time is raised here.
            wait_seconds: None = until it is done.

        Returns:
            Whether it ended in time.
        """
        if wait_seconds is None or not self._threaded:
            work()
            return True
        failures: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                work()
            except BaseException as failure:  # noqa: BLE001 - raised again where it is waited for
                failures.append(failure)
            finally:
                done.set()

        try:
            threading.Thread(target=run, name="ultramon-start", daemon=True).start()
        except RuntimeError:  # the process may have no more threads
            run()
        if not done.wait(wait_seconds):
            return False
        if failures:
            raise failures[0]
        return True

    def _wake(self) -> None:
        if not self._threaded:
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
                    if self._closing or (due is None and not self._jobs):
                        self._thread = None
                        return
                    if due is not None and due > now:
                        self._condition.wait(min(due - now, _LONGEST_WAIT_SECONDS))
                        continue
            self._save_urgent(urgent)
            self.run_due()

    @staticmethod
    def _save_urgent(urgent: list[tuple[Kept, bool, threading.Event]]) -> None:
        # A method of its own: a loop variable in the thread's frame would keep monitors alive.
        try:
            save_all([(monitor, durable) for monitor, durable, _ in urgent])
        finally:
            for _, _, done in urgent:
                done.set()
            urgent.clear()

    def next_due(self) -> float | None:
        """Return the monotonic time of the next thing to do, None when there is nothing."""
        return min((job.next_due() for job in list(self._jobs.values())), default=None)

    def run_due(self) -> None:
        """Do everything that is due."""
        now = self._clock.monotonic()
        with self._condition:
            jobs = list(self._jobs.items())
            saves = [
                monitor for monitor, job in jobs if job.save_at is not None and job.save_at <= now
            ]
            looks = [monitor for monitor, job in jobs if job.look_at <= now]
            beats: dict[Backend, list[Kept]] = {}
            for monitor, job in jobs:
                if job.beat_at <= now:
                    job.beat_at = now + monitor.heartbeat_interval_seconds
                    if monitor.generation:
                        beats.setdefault(monitor.backend, []).append(monitor)
            for monitor in saves:
                self._jobs[monitor].save_at = None
            for monitor in looks:
                self._jobs[monitor].look_at = now + REQUEST_SECONDS
        for monitor in looks:
            monitor.look_for_request()
        for backend, monitors in beats.items():
            self._beat(backend, monitors)
        for monitor in save_all([(monitor, monitor in self._unsaved) for monitor in saves]):
            if monitor in self._unsaved:
                self.discard(monitor, saved=True)

    def _beat(self, backend: Backend, monitors: list[Kept]) -> None:
        try:
            fenced = backend.heartbeat(
                [(monitor.agent_id, monitor.generation) for monitor in monitors], self._clock.now()
            )
        except StateError as error:
            self.warn("heartbeat failed: %s", error)
            return
        for monitor in monitors:
            if monitor.agent_id in fenced:
                # Taken over, or its record is gone: a save finds out, and deals with both.
                monitor.save(durable=False)

    def warn(self, message: str, *arguments: object) -> None:
        """Log a warning, one a minute; the rest only for those who debug."""
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
        for monitor, job in list(self._jobs.items()):
            if job.save_at is not None:
                monitor.save(durable=True)

    def after_fork(self) -> None:
        """Tell the copies in a forked child that their owner is the parent."""
        for monitor in list(self._jobs):
            monitor.after_fork()


def save_all(wanted: Sequence[tuple[Kept, bool]]) -> list[Kept]:
    """Save monitors, in one step those whose backend can; return those with nothing left to store.

    Args:
        wanted: Each with whether it has to survive a power cut.
    """
    together: dict[RecordsTogether, dict[Kept, bool]] = {}
    alone: list[tuple[Kept, bool]] = []
    for monitor, durable in wanted:
        if len(wanted) > 1 and monitor.generation and isinstance(monitor.backend, RecordsTogether):
            group = together.setdefault(monitor.backend, {})
            group[monitor] = durable or group.get(monitor, False)
        else:
            alone.append((monitor, durable))
    saved = []
    for backend, monitors in together.items():
        saved += _save_together(backend, monitors.items())
    saved += [monitor for monitor, durable in alone if monitor.save(durable=durable)]
    return saved


def _save_together(backend: RecordsTogether, wanted: Iterable[tuple[Kept, bool]]) -> list[Kept]:
    with ExitStack() as locks:
        begun: list[tuple[Kept, Save]] = []
        for monitor, durable in wanted:
            locks.enter_context(monitor.save_lock)
            save = monitor.next_save(durable=durable)
            if save is not None:
                begun.append((monitor, save))
        refusals: Sequence[UltramonError | None]
        try:
            refusals = backend.record_together([save for _, save in begun])
        except StateError as error:
            refusals = [error] * len(begun)
        outcomes = zip(begun, refusals, strict=True)
        return [
            monitor for (monitor, save), refusal in outcomes if monitor.note_saved(save, refusal)
        ]


_system = BackgroundSaver(SYSTEM_CLOCK, threaded=True)


def background_saver_for(clock: Clock) -> BackgroundSaver:
    """Return the process's saver, or the one that belongs to a clock of one's own."""
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
    former.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close() -> None:
    _system.close()
