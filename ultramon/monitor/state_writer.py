"""The stored side of one monitor: whose agent it is, its generation, its events and its saves."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ultramon.backends.base import RecordsTogether, Save
from ultramon.errors import (
    AgentAlreadyRunningError,
    AgentNotFoundError,
    FencedError,
    StateError,
    StateSchemaError,
    StateWriteError,
    UltramonError,
)
from ultramon.monitor.background import AGENT_WAIT_SECONDS, background_saver_for
from ultramon.monitor.handoff import end_of_replaced
from ultramon.state.record import StateRecord
from ultramon.system.ids import random_hex
from ultramon.system.processes import process_started_at, this_host
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend
    from ultramon.context.config import ContextConfig
    from ultramon.system.clock import Clock

_log = logging.getLogger("ultramon.monitor")

HOST = "sdk"
REPLACE_SECONDS = 30.0
"""A state is written at least this often, so that a poller of plain JSON sees a heartbeat."""
REPLACE_IN_DATABASE_SECONDS = 600.0
"""In a database nobody polls plain JSON; there this would be most of its work."""


class StateWriter:
    """Owns one agent in one backend.

    Args:
        agent_id: The agent.
        identity: Fields of the state that never change: run, session, parent, label.
        config: Intervals and what to do about errors.
        backend: Where to store; None keeps everything in memory (``ULTRAMON_DISABLED``).
        clock: Gives the times.
        fill: Writes what the monitor knows into a state.
        resume: Called with the state of an owner that vanished, to continue it, or with the one
            of an agent that ended, to come after it; returns by how many epochs that moved it.
        obey: Called with the request left for the agent, None when there is none.
        yield_to: Called with the new owner, in words, when this one is fenced.
    """

    def __init__(
        self,
        agent_id: str,
        identity: dict[str, Any],
        config: ContextConfig,
        *,
        backend: Backend | None,
        clock: Clock,
        fill: Callable[[StateRecord], None],
        resume: Callable[[StateRecord], int],
        obey: Callable[[dict[str, Any] | None], None],
        yield_to: Callable[[str], None],
    ) -> None:
        self.agent_id = agent_id
        self.lock = threading.RLock()
        self.generation = 0
        self.heartbeat_interval_seconds = config.heartbeat_interval_seconds
        self.backend: Backend = backend  # type: ignore[assignment]
        self.started_at = self.last_activity = clock.now()
        self.takeover = False
        self.is_fenced = False
        self.muted = backend is None
        """True where nothing is stored or announced: disabled, fenced, or a forked copy."""
        self._identity = identity
        self._config = config
        self._clock = clock
        self._fill = fill
        self._resume = resume
        self._obey = obey
        self._yield_to = yield_to
        self._saver = background_saver_for(clock)
        self._host = this_host()
        # Looked up once: a system call under the lock lets go of the interpreter, and an event
        # loop that waits for the lock then stalls for tens of milliseconds (measured: 30).
        self._cwd = _working_directory()
        self._pid = os.getpid()
        self._pid_started_at = process_started_at(self._pid)
        self._raises = config.on_error == "raise"
        self.save_lock = threading.Lock()
        """Held while a state is on its way to the store."""
        self._start_id = random_hex(16)
        self._has_tried = False
        self._resumed_from: tuple[int, int] | None = None
        self._seq = 0
        self._dirty = False
        self._snapshots = 0
        self._stored = 0
        """The last snapshot of the state that reached the store, counted as they were taken."""
        self._ended_at: float | None = None
        self._outbox: list[dict[str, Any]] = []
        self._counts: dict[tuple[int, str, str], int] = {}
        self._extra: dict[str, Any] = {}
        self._error: UltramonError | None = None

    def event(self, kind: str, epoch: int, **details: Any) -> dict[str, Any]:
        """Make an event of this agent and keep it until it is stored."""
        count = (epoch, kind, str(details.get("level", "")))
        number = self._counts.get(count, 0)
        self._counts[count] = number + 1
        event = {
            "eventId": random_hex(16),
            "type": kind,
            "agentId": self.agent_id,
            "sessionId": self._identity["session_id"],
            "run": self._identity["run"],
            "generation": self.generation,
            "epoch": epoch,
            "source": f"agent:{self.agent_id}",
            "occurredAt": format_time(self._clock.now()),
            "n": number,
            **details,
        }
        if not self.muted:
            self._outbox.append(event)
        return event

    def start(self, *, takeover: bool) -> None:
        """Take the agent in the backend and begin to beat; wait for it `store_timeout_seconds`.

        Where the store refuses or is too slow, the agent runs on unsaved and is stored later.

        Raises:
            AgentAlreadyRunningError: Its owner provably lives.
            StateSchemaError: A newer ultramon wrote the stored state.
            StateError: The store refused and ``on_error`` is ``raise``.
        """
        if self.muted:
            return
        self.takeover = takeover
        self._saver.add(self)
        seconds = self._config.store_timeout_seconds
        try:
            if not self._saver.run_within(self._begin, None if self._raises else seconds):
                raise StateWriteError(self.backend.url, f"the start is not stored in {seconds:g} s")
        except StateError as error:
            if self._raises or isinstance(error, StateSchemaError):
                self._abandon()
                raise
            self._failed(error)
        except BaseException:
            self._abandon()
            raise

    def _begin(self) -> None:
        with self.save_lock:
            # A save in the background may have come first where this one had to wait.
            if not self.generation:
                self._store(durable=True)

    def _abandon(self) -> None:
        self._saver.discard(self, saved=True)
        self._outbox.clear()
        self._counts.clear()

    def _store(self, *, durable: bool) -> bool:
        """Store the newest state, as a new owner where it is none yet; see `save`."""
        if not self.generation:
            known = False
            # A store that cannot say so says it to the next question, and may keep what it is told.
            with suppress(StateError):
                known = self._recognise()
            if not known:
                return self._register()
        save = self.next_save(durable=durable)
        if save is None:
            return True
        try:
            stored = self.backend.record(save.record, save.events, durable=save.durable)
        except UltramonError as error:
            return self._note_refusal(error)
        return self._note_stored(save, events_stored=stored)

    def _recognise(self) -> bool:
        """Go on as the owner where an earlier try to start was refused after it had been stored.

        Otherwise the agent would take its own state, with its own living process in it, for that
        of another owner.

        Raises:
            StateError: The store refused.
        """
        if not self._has_tried:
            return False
        try:
            stored = self.backend.load(self.agent_id).record
        except AgentNotFoundError:
            return False
        if stored is None or stored.start_id != self._start_id:
            return False
        with self.lock:
            self.generation = stored.generation
            self._seq = max(self._seq, stored.seq)
            own = {event["eventId"] for event in self._outbox}
            for event in self._outbox:
                event["generation"] = stored.generation
            waiting = [event for event in stored.pending or () if event["eventId"] not in own]
            self._outbox[:0] = waiting
        return True

    def _register(self) -> bool:
        inherited: list[dict[str, Any]] = []
        own: list[dict[str, Any]] = []

        def build(
            stored: StateRecord | None, generation: int
        ) -> tuple[StateRecord, list[dict[str, Any]]]:
            with self.lock:
                if stored is not None:
                    self._extra = stored.extra
                    self._seq = stored.seq + 1
                    inherited.extend(stored.pending or [])
                    inherited.extend(
                        end_of_replaced(stored, self._identity["run"], self._clock.now())
                    )
                    found = stored.generation, stored.seq
                    # A try that was refused has come after this state already.
                    if self._resumed_from != found:
                        self._move_epochs(self._resume(stored))
                        self._resumed_from = found
                self.generation = generation
                self._dirty = False
                self._snapshots += 1
                for event in self._outbox:
                    event["generation"] = generation
                own.extend(self._outbox)
                return self.snapshot(), inherited + own

        tried, self._has_tried = self._has_tried, True
        try:
            stored_events = self.backend.start_agent(
                self.agent_id, build, takeover=self.takeover, now=self._clock.now(), host=self._host
            )
        except AgentAlreadyRunningError:
            # The state that could not be read a moment ago may be its own after all.
            if not (tried and self._recognise()):
                raise
            return self._store(durable=True)
        except BaseException:
            self.generation = 0
            raise
        with self.lock:
            self._outbox[: len(own)] = [] if stored_events else inherited + own
        self._saved()
        return not self._outbox

    def _move_epochs(self, steps: int) -> None:
        for event in self._outbox:
            event["epoch"] += steps
        self._counts = {
            (epoch + steps, kind, level): number
            for (epoch, kind, level), number in self._counts.items()
        }

    def snapshot(self) -> StateRecord:
        """Return the state as it is now, whether stored or not."""
        with self.lock:
            now = self._clock.now() if self._ended_at is None else self._ended_at
            config = self._config
            record = StateRecord(
                self.agent_id,
                **self._identity,
                extra=dict(self._extra),
                host=HOST,
                cwd=self._cwd,
                active=True,
                phase="working",
                started_at=self.started_at,
                last_heartbeat=now,
                last_activity=self.last_activity,
                heartbeat_interval_seconds=config.heartbeat_interval_seconds,
                lost_after_seconds=config.lost_after_seconds,
                grace_seconds=config.grace_seconds,
                pid=self._pid,
                pid_started_at=self._pid_started_at,
                boot_id=self._host.boot_id,
                hostname=self._host.hostname,
                generation=self.generation,
                start_id=self._start_id,
                seq=self._seq,
            )
            self._fill(record)
            return record

    def changed(self, delay_seconds: float | None = None) -> None:
        """Note progress, to be saved with others; None = within the save interval, 0 = now.

        In either case a thread in the background saves; the caller does no I/O.
        """
        self.last_activity = self._clock.now()
        if self.muted:
            return
        if not self._dirty or delay_seconds is not None:
            self._dirty = True
            delay = self._config.save_interval_seconds if delay_seconds is None else delay_seconds
            self._saver.schedule(self, delay)

    def look_for_request(self) -> None:
        """Look whether an orchestrator asks for something. See `saver.Kept`."""
        if self.muted or not self.generation:
            return
        try:
            request = self.backend.get_request(self.agent_id)
        except StateError as error:
            self._saver.warn("agent %s sees no requests: %s", self.agent_id, error)
        else:
            self._obey(request)

    @property
    def is_stored(self) -> bool:
        """Whether the store has everything that there is to store."""
        with self.lock:
            return self._stored == self._snapshots > 0 and not self._dirty

    def commit(self, wait_seconds: float = AGENT_WAIT_SECONDS) -> bool:
        """Save now, durably.

        Args:
            wait_seconds: Longest time to wait; the save goes on after it.

        Returns:
            Whether what there was to store is stored.

        Raises:
            UltramonError: The save failed and ``on_error`` is ``raise``.
        """
        self.last_activity = self._clock.now()
        if self.muted:
            return False
        with self.lock:
            self._dirty = True
            before = self._snapshots
        wait = None if self._raises else wait_seconds
        has_ended = self._saver.save_now(self, durable=True, wait_seconds=wait)
        self.raise_failure()
        return has_ended and self._stored > before

    def commit_patiently(self) -> bool:
        """Do what `commit` does for what must not be lost: wait `store_timeout_seconds`."""
        return self.commit(self._config.store_timeout_seconds)

    def guard(self, change: Callable[[], None]) -> None:
        """Do something in the store that the agent can do without.

        Raises:
            StateError: The store refused and ``on_error`` is ``raise``.
        """
        try:
            change()
        except StateError as error:
            if self._raises:
                raise
            self._saver.warn("agent %s is not registered: %s", self.agent_id, error)

    def raise_failure(self) -> None:
        """Raise what went wrong in the background, once, where ``on_error`` asks for it."""
        if self._raises and self._error is not None:
            error, self._error = self._error, None
            raise error

    def end(self) -> bool:
        """Save the last state and stop beating; return whether it is stored."""
        self._ended_at = self._clock.now()
        try:
            return self.commit_patiently()
        finally:
            if not self.muted:
                self._saver.discard(self, saved=self.is_stored and not self._outbox)

    def save(self, *, durable: bool) -> bool:
        """Store the newest state; True when nothing is left to store. See `saver.Kept`."""
        with self.save_lock:
            if self.muted:
                return True
            try:
                return self._store(durable=durable)
            except UltramonError as error:
                return self._refused(error)

    def next_save(self, *, durable: bool) -> Save | None:
        """Return what to store now, None without a generation. See `saver.Kept`."""
        if self.muted or not self.generation:
            return None
        with self.lock:
            self._seq += 1
            self._snapshots += 1
            self._dirty = False
            events = list(self._outbox)
            return Save(self.snapshot(), events, durable or bool(events))

    def note_saved(self, save: Save, refusal: UltramonError | None) -> bool:
        """Note what became of a save; True when nothing is left to store. See `saver.Kept`."""
        if refusal is None:
            return self._note_stored(save, events_stored=True)
        try:
            return self._note_refusal(refusal)
        except UltramonError as error:
            return self._refused(error)

    def _note_stored(self, save: Save, *, events_stored: bool) -> bool:
        with self.lock:
            del self._outbox[: len(save.events) if events_stored else 0]
        self._saved()
        return not self._outbox

    def _note_refusal(self, refusal: UltramonError) -> bool:
        if isinstance(refusal, FencedError) and refusal.current_generation is None:
            # Somebody deleted the record of a living agent: it starts again, unless another did.
            self.takeover = False
            return self._register()
        raise refusal

    def _refused(self, error: UltramonError) -> bool:
        if isinstance(error, StateError):
            self._failed(error)
            return False
        self._fence(error)
        return True

    def _saved(self) -> None:
        # Nobody can have taken another snapshot meanwhile: `save_lock` is held.
        self._stored = self._snapshots
        # With nothing new to store the state is still replaced for those who poll plain JSON.
        if self._outbox:
            interval = min(self._config.save_interval_seconds, REPLACE_SECONDS)
            self._saver.schedule(self, interval)
        elif self._ended_at is None:
            in_database = isinstance(self.backend, RecordsTogether)
            interval = REPLACE_IN_DATABASE_SECONDS if in_database else REPLACE_SECONDS
            self._saver.schedule(self, interval)

    def _failed(self, error: StateError) -> None:
        self._error = error
        with self.lock:
            self._dirty = True
        self._saver.warn("agent %s is not saved, it runs on: %s", self.agent_id, error)
        self._saver.schedule(self, self._config.save_interval_seconds)

    def _fence(self, error: UltramonError) -> None:
        self._error = error
        self.muted = self.is_fenced = True
        self._yield_to(_owner_of(error))
        _log.warning(
            "agent %s was taken over by another process (%s); this one writes nothing more",
            self.agent_id,
            error,
        )
        self._saver.discard(self, saved=True)

    def after_fork(self) -> None:
        """Become a mute copy: the agent belongs to the parent process."""
        self.lock = threading.RLock()
        self.save_lock = threading.Lock()
        if not self.muted:
            self.muted = True
            _log.warning(
                "agent %s belongs to the parent process; what this forked copy tracks is not "
                "stored, create a monitor of its own here",
                self.agent_id,
            )


def _owner_of(refusal: UltramonError) -> str:
    if isinstance(refusal, FencedError):
        return f"another process (generation {refusal.current_generation})"
    if isinstance(refusal, AgentAlreadyRunningError):
        return f"process {refusal.pid} on {refusal.hostname}"
    return "another process"


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None
