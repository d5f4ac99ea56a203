"""The store's side of one agent: generation, waiting events and saves."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ultramon.backends.base import RecordsTogether, Save
from ultramon.backends.toolkit import find_record
from ultramon.errors import (
    AgentAlreadyRunningError,
    FencedError,
    StateError,
    StateSchemaError,
    StateWriteError,
    UltramonError,
)
from ultramon.monitor.background import AGENT_WAIT_SECONDS
from ultramon.monitor.late_models import load_models
from ultramon.state.record import SETTING_SOURCES
from ultramon.system.ids import random_hex
from ultramon.system.processes import this_machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend
    from ultramon.monitor.background import BackgroundSaver
    from ultramon.monitor.live_state import LiveState
    from ultramon.state.record import StateRecord

_log = logging.getLogger("ultramon.monitor")

RETRY_SECONDS = 0.1
"""Time between two tries with a store that refuses, while an agent waits for it."""
REPLACE_SECONDS = 30.0
"""A state is written at least this often, so that a poller of plain JSON sees a heartbeat."""
REPLACE_IN_DATABASE_SECONDS = 600.0
"""In a database no program polls plain JSON; there this would be most of its work."""


class StateWriter:
    """Stores the states and events of one agent in one backend, under its generation.

    Args:
        state: Gives the snapshots; its lock guards everything here.
        backend: None stores nothing (``ULTRAMON_DISABLED``).
        saver: Saves in the background.
        takeover: As for `Lifecycle`.

    Attributes:
        record: Of the state; its generation is the number of this owner, 0 until it is stored.
        muted: Whether nothing is stored or emitted: disabled, fenced, or a forked copy.
        save_lock: Held while a state is on its way to the store.
    """

    def __init__(
        self, state: LiveState, backend: Backend | None, saver: BackgroundSaver, *, takeover: bool
    ) -> None:
        self.record = state.record
        self.agent_id = state.record.agent_id
        self.backend: Backend = backend  # type: ignore[assignment]
        self.heartbeat_interval_seconds = state.config.heartbeat_interval_seconds
        self.muted = backend is None
        self.save_lock = threading.Lock()
        # Looked up once: later the process may have no descriptor left for it.
        self.machine = this_machine()
        self._state = state
        self._config = state.config
        self._raises = state.config.on_error == "raise"
        self._clock = state.clock
        self._takeover = takeover
        self._saver = saver
        self.record.start_id = random_hex(16)
        self.record.last_activity = state.clock.now()
        self._dirty = False
        self._snapshots = 0
        self._stored = 0
        """The last snapshot that reached the store, counted as they were taken."""
        self._outbox: list[dict[str, Any]] = []
        self._counts: dict[tuple[int, str, str], int] = {}
        self._has_tried = False
        self._resumed_from: tuple[int, int] | None = None
        self._error: UltramonError | None = None

    def start(self) -> None:
        """Store the first state and begin to beat; a store that fails or is slow is tried again.

        Raises:
            AgentAlreadyRunningError: Its owner provably lives.
            StateSchemaError: A newer ultramon wrote the stored state.
            StateError: The store refused and ``on_error`` is ``raise``.
        """
        if self.muted:
            return
        self._saver.add(self)
        seconds = self._config.store_timeout_seconds
        # A store that keeps to that time itself needs no thread that could be left waiting.
        longest = getattr(self.backend, "start_seconds", None)
        is_bounded = longest is not None and longest <= seconds
        try:
            if not self._saver.run_within(
                self._begin, None if self._raises or is_bounded else seconds
            ):
                raise StateWriteError(self.backend.url, f"the start is not stored in {seconds:g} s")
        except BaseException as error:
            is_final = self._raises or isinstance(error, StateSchemaError)
            if isinstance(error, StateError) and not is_final:
                self._retry_later(error)
                return
            self._saver.discard(self, saved=True)
            self._outbox.clear()
            self._counts.clear()
            raise

    def _begin(self) -> None:
        with self.save_lock:
            # A save in the background may have come first where this one had to wait.
            if not self.record.generation:
                self._store(durable=True)
                self._schedule_next()

    def end(self) -> bool:
        """Save the last state and stop beating; return whether it is stored."""
        try:
            return self.commit(patiently=True)
        finally:
            self._leave()

    def end_here(self) -> bool:
        """Do what `end` does in this thread, once: what the store refuses is tried again later."""
        if self.muted:
            return False
        with self._state.lock:
            self._dirty = True
        try:
            return self.save(durable=True) and self.is_stored
        finally:
            self._leave()

    def _leave(self) -> None:
        if not self.muted:
            self._saver.discard(self, saved=self.is_stored and not self._outbox)

    @property
    def is_stored(self) -> bool:
        """Whether the store has the newest state."""
        with self._state.lock:
            return self._stored == self._snapshots > 0 and not self._dirty

    def changed(self, delay_seconds: float | None = None) -> None:
        """Note progress, to be saved with others; None = within the save interval, 0 = now.

        In either case a thread in the background saves; the caller does no I/O.
        """
        self.record.last_activity = self._clock.now()
        if self.muted:
            return
        if not self._dirty or delay_seconds is not None:
            self._dirty = True
            delay = self._config.save_interval_seconds if delay_seconds is None else delay_seconds
            self._saver.schedule(self, delay)

    def commit(self, *, patiently: bool = False) -> bool:
        """Save now, durably.

        Args:
            patiently: Wait `store_timeout_seconds` and not 50 ms, and try a store that refuses
                again meanwhile. After that the save continues without the caller.

        Returns:
            Whether what there was to store is stored.

        Raises:
            UltramonError: The save failed and ``on_error`` is ``raise``.
        """
        self.record.last_activity = self._clock.now()
        if self.muted:
            return False
        with self._state.lock:
            self._dirty = True
            before = self._snapshots
        left = self._config.store_timeout_seconds if patiently else AGENT_WAIT_SECONDS
        deadline = time.monotonic() + left
        while True:
            wait_seconds = None if self._raises else left
            has_ended = self._saver.save_now(self, durable=True, wait_seconds=wait_seconds)
            if self._raises and self._error is not None:
                error, self._error = self._error, None
                raise error
            is_stored = has_ended and self._stored > before
            if is_stored or self.muted or not (patiently and self._saver.threaded):
                return is_stored
            left = deadline - time.monotonic()
            if left <= RETRY_SECONDS:
                return False
            time.sleep(RETRY_SECONDS)
            left -= RETRY_SECONDS

    def save(self, *, durable: bool) -> bool:
        """Store the newest state; True when nothing is left to store."""
        with self.save_lock:
            return self._saved(lambda: self._store(durable=durable))

    def is_taken(self) -> bool:
        """Whether the store has another owner for the agent; reads it, and believes no failure."""
        if self.muted or not self.record.generation:
            return False
        try:
            stored = find_record(self.backend, self.agent_id)
        except StateError:
            return False
        return stored is not None and stored.generation > self.record.generation

    def release(self) -> None:
        """Store nothing more, since another owner has the agent."""
        self.muted = True
        self._saver.discard(self, saved=True)

    def next_save(self, *, durable: bool) -> Save | None:
        """Take a snapshot and return what to store; None where only `save` can store it."""
        if self.muted or not self.record.generation:
            return None
        with self._state.lock:
            self.record.seq += 1
            events = list(self._outbox)
            return Save(self._snapshot(), events, durable or bool(events))

    def note_saved(self, save: Save, refusal: UltramonError | None) -> bool:
        """Finish a save that was stored or refused; True when nothing is left to store."""
        if refusal is None:
            return self._saved(lambda: self._note_stored(save))
        return self._saved(lambda: self._note_refused(refusal))

    def _saved(self, step: Callable[[], None]) -> bool:
        if self.muted:
            return True
        try:
            step()
        except StateError as error:
            self._retry_later(error)
            return False
        except UltramonError as error:
            self._error = error
            self.muted = True
            self._saver.discard(self, saved=True)
            self._state.fence(error)
            return True
        self._schedule_next()
        return not self._outbox

    def _schedule_next(self) -> None:
        # With nothing new to store the state is still replaced, for programs that poll plain JSON.
        if self._outbox:
            interval = min(self._config.save_interval_seconds, REPLACE_SECONDS)
            self._saver.schedule(self, interval)
        elif self.record.outcome is None:
            in_database = isinstance(self.backend, RecordsTogether)
            interval = REPLACE_IN_DATABASE_SECONDS if in_database else REPLACE_SECONDS
            self._saver.schedule(self, interval)

    def _retry_later(self, error: StateError) -> None:
        self._error = error
        with self._state.lock:
            self._dirty = True
        self._saver.warn("agent %s is not saved, it runs on: %s", self.agent_id, error)
        self._saver.schedule(self, self._config.save_interval_seconds)

    def event(self, kind: str, **details: Any) -> dict[str, Any]:
        """Make an event of this agent and keep it until it is stored."""
        count = (self.record.epoch, kind, str(details.get("level", "")))
        number = self._counts.get(count, 0)
        self._counts[count] = number + 1
        event = self.record.event(kind, at=self._clock.now(), n=number, **details)
        if not self.muted:
            self._outbox.append(event)
        return event

    def append(self, kind: str, **details: Any) -> bool:
        """Store an event that no state goes with, as `patiently` does; not kept for later.

        Args:
            kind: Its type.
            **details: Further members.

        Returns:
            Whether it is stored.

        Raises:
            StateError: As `patiently`.
        """
        self.record.last_activity = self._clock.now()
        if self.muted:
            return False
        # Counted, the numbers of two processes of an agent that is not stored yet would be equal.
        number = int(random_hex(6), 16)
        event = self.record.event(kind, at=self._clock.now(), n=number, **details)
        return self.patiently(lambda: self.backend.append_events([event]), f"{kind} is not stored")

    def patiently(self, work: Callable[[], object], problem: str) -> bool:
        """Do something with the store, again and again while it refuses.

        Args:
            work: What to do.
            problem: What to log where it could not be done.

        Returns:
            Whether it was done within `store_timeout_seconds`.

        Raises:
            StateError: The store refused and ``on_error`` is ``raise``.
        """
        deadline = time.monotonic() + self._config.store_timeout_seconds
        reason: StateError | str = "the store is too slow"
        while (left := deadline - time.monotonic()) > 0:
            try:
                if self._saver.run_within(work, None if self._raises else left):
                    return True
            except StateError as error:
                if self._raises:
                    raise
                reason = error
                if not self._saver.threaded:
                    break
                time.sleep(RETRY_SECONDS)
        self._saver.warn("agent %s: %s: %s", self.agent_id, problem, reason)
        return False

    def check_request(self) -> None:
        """Follow the request that an orchestrator left for this generation of the agent."""
        if self.muted or not self.record.generation:
            return
        try:
            request = self.backend.get_request(self.agent_id)
        except StateError as error:
            self._saver.warn("agent %s sees no requests: %s", self.agent_id, error)
            return
        asked = request is not None and request.get("generation") == self.record.generation
        if self._state.request_return(asked=asked):
            self.changed(0.0)

    def after_fork(self) -> None:
        """Mute this copy in a forked child: the agent belongs to the parent process."""
        # New locks: a thread of the parent that held one does not exist in the child.
        self._state.lock = threading.RLock()
        self.save_lock = threading.Lock()
        if not self.muted:
            self.muted = True
            _log.warning(
                "agent %s belongs to the parent process; what this forked copy tracks is not "
                "stored, create a monitor of its own here",
                self.agent_id,
            )

    def _move_epochs(self, steps: int) -> None:
        """Move the waiting events to later epochs: the state to continue has used theirs."""
        for event in self._outbox:
            event["epoch"] += steps
        self._counts = {
            (epoch + steps, kind, level): number
            for (epoch, kind, level), number in self._counts.items()
        }

    def _store(self, *, durable: bool) -> None:
        """Store the newest state, as a new owner where the agent is not stored yet.

        Raises:
            UltramonError: The store refused, or another owner has the agent.
        """
        if not self.record.generation:
            known = False
            # A store that cannot answer now refuses the next step, or accepts it.
            with suppress(StateError):
                known = self._recognise()
            if not known:
                self._register()
                return
        save = self.next_save(durable=durable)
        if save is None:
            return
        try:
            stored = self.backend.record(save.record, save.events, durable=save.durable)
        except UltramonError as error:
            self._note_refused(error)
        else:
            self._note_stored(save, events_stored=stored)

    def _snapshot(self, after: StateRecord | None = None) -> StateRecord:
        self._snapshots += 1
        self._dirty = False
        former = self.record.epoch
        taken = self._state.snapshot(after)
        if after is not None:
            self._move_epochs(self.record.epoch - former)
        return taken

    def _note_stored(self, save: Save, *, events_stored: bool = True) -> None:
        """Note that a snapshot, and maybe its events, reached the store."""
        with self._state.lock:
            del self._outbox[: len(save.events) if events_stored else 0]
        # No other snapshot can have been taken meanwhile: `save_lock` is held.
        self._stored = self._snapshots

    def _note_refused(self, refusal: UltramonError) -> None:
        """Start the agent again where its record was deleted, unless another owner did.

        Raises:
            UltramonError: The refusal, where it has another reason, or that of the new start.
        """
        if not isinstance(refusal, FencedError) or refusal.current_generation is not None:
            raise refusal
        self._takeover = False
        self._register()

    def _recognise(self) -> bool:
        """Continue as the owner where an earlier start was stored although it was refused.

        The agent would otherwise take its own state, with its own living process in it, for that
        of another owner.

        Raises:
            StateError: The store refused.
        """
        if not self._has_tried:
            return False
        stored = find_record(self.backend, self.agent_id)
        if stored is None or stored.start_id != self.record.start_id:
            return False
        with self._state.lock:
            self.record.generation = stored.generation
            self.record.seq = max(self.record.seq, stored.seq)
            own = {event["eventId"] for event in self._outbox}
            for event in self._outbox:
                event["generation"] = stored.generation
            waiting = [event for event in stored.pending or () if event["eventId"] not in own]
            self._outbox[:0] = waiting
        return True

    def _end_of_replaced(self, stored: StateRecord) -> list[dict[str, Any]]:
        """Return the events that end a life whose state this agent, of another run, replaces."""
        if not stored.active or stored.run == self.record.run:
            return []
        load_models()
        from ultramon.handoff import end_of_replaced

        return end_of_replaced(stored, self.record.run, self._clock.now())

    def _register(self) -> None:
        inherited: list[dict[str, Any]] = []
        own: list[dict[str, Any]] = []

        def build(
            stored: StateRecord | None, generation: int
        ) -> tuple[StateRecord, list[dict[str, Any]]]:
            with self._state.lock:
                after = None
                if stored is not None:
                    # What this owner says of itself wins: the stored sources are a former one's.
                    kept = {**stored.extra}
                    kept.pop(SETTING_SOURCES, None)
                    self.record.extra = kept | self.record.extra
                    self.record.seq = stored.seq + 1
                    inherited[:] = stored.pending or []
                    inherited.extend(self._end_of_replaced(stored))
                    found = stored.generation, stored.seq
                    # A start that was refused has come after this state already.
                    after = stored if self._resumed_from != found else None
                    self._resumed_from = found
                self.record.generation = generation
                for event in self._outbox:
                    event["generation"] = generation
                own[:] = self._outbox
                return self._snapshot(after), inherited + own

        has_tried, self._has_tried = self._has_tried, True
        try:
            stored_events = self.backend.start_agent(
                self.agent_id,
                build,
                takeover=self._takeover,
                now=self._clock.now(),
                machine=self.machine,
            )
        except AgentAlreadyRunningError:
            # The state that could not be read a moment ago may be its own after all.
            if not (has_tried and self._recognise()):
                self.record.generation = 0
                raise
            self._store(durable=True)
            return
        except BaseException:
            self.record.generation = 0
            raise
        with self._state.lock:
            self._outbox[: len(own)] = [] if stored_events else inherited + own
        self._stored = self._snapshots
