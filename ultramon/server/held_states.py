"""The states of agents in memory: what posts read and change, before their files are written.

The file of a state that somebody else changed counts: the readings that were answered meanwhile are
brought into it.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from ultramon.backends.local.level_marks import mark_path
from ultramon.backends.registry import registry_of
from ultramon.backends.toolkit import find_record
from ultramon.errors import AgentNotFoundError, FencedError, StateError
from ultramon.notices.rules import decide
from ultramon.server.posted_agents import HOST, count_post, take_reading
from ultramon.state.record import encode_state
from ultramon.system import compact_json
from ultramon.system.files import read_private_file, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ultramon.backends.local.backend import LocalBackend
    from ultramon.context.gauge import Gauge
    from ultramon.server.posted_agents import PostedAgents
    from ultramon.server.reading_log import Reading
    from ultramon.state.record import StateRecord

    Stamp = tuple[int, int, int] | None

MAX_HELD = 2_048
"""States in memory; beyond them the least recently made one is read again at its next post."""
_log = logging.getLogger("ultramon.server")


def _stamp(path: str) -> Stamp:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


class HeldState:
    """The state of one agent in memory, with what decides whether somebody is notified."""

    __slots__ = (
        "announced",
        "is_registered",
        "ladder",
        "logged",
        "mark",
        "record",
        "watched",
        "written_seq",
    )

    def __init__(self, record: StateRecord, mark: Stamp) -> None:
        self.record = record
        self.mark = mark
        self.written_seq = record.seq
        self.logged: list[Reading] = []
        """Readings that were answered since the file was written."""
        self.watched: Stamp = None
        self.is_registered = False
        self.announced: tuple[int, str] | None = None
        self.ladder: dict[str, Any] | None = None
        """Of the registration; None = the agent's own."""

    def is_durable(self) -> bool:
        """Return whether a crash would lose none of its readings."""
        last = self.logged[-1].seq if self.logged else self.written_seq
        return last == self.record.seq

    def is_due(self) -> bool:
        """Return whether the state may lead to a notice."""
        if self.watched is None:
            return False
        return decide(self.ladder, self.record, self.announced) is not None


class HeldStates:
    """Keeps states in memory and writes them, from the event loop and from threads.

    `take`, `store` and `settle` are called under the lock of the agent.

    Args:
        backend: Where the agents are.
        posted: Has the locks of agents, and writes everything else about them.
    """

    def __init__(self, backend: LocalBackend, posted: PostedAgents) -> None:
        self._backend = backend
        self._posted = posted
        self._directory = backend.directory
        self._held: dict[str, HeldState] = {}
        self._unwritten: dict[str, int] = {}
        """Agents with readings that their files lack, the longest waiting first, with the number
        of the first of these."""
        self._numbers = 0
        self._waiting = threading.Lock()
        """Guards which agents are unwritten, and the numbers."""
        self._memory = threading.Lock()
        """Guards the states in memory, between the loop and readers in threads."""

    @property
    def last_number(self) -> int:
        """How many readings there were that a file lacked."""
        with self._waiting:
            return self._numbers

    @property
    def are_written(self) -> bool:
        """Whether no file lacks a reading."""
        with self._waiting:
            return not self._unwritten

    def find(self, agent_id: str) -> HeldState | None:
        """Return the state of an agent as it is in memory."""
        return self._held.get(agent_id)

    def is_durable(self, held: HeldState) -> bool:
        """Return whether a crash would lose none of the readings of a state."""
        with self._memory:
            return held.is_durable()

    def take(
        self,
        held: HeldState,
        now: float,
        used_percentage: float,
        total_input_tokens: int | None,
        emitted_at: float | None,
    ) -> Gauge:
        """Take a reading into a state; return the gauge with the events of the crossings."""
        with self._memory:
            gauge = self._posted.gauge(held.record, now)
            take_reading(gauge, used_percentage, total_input_tokens, emitted_at, now)
            count_post(held.record, now)
        return gauge

    def add_unwritten(self, agent_id: str) -> None:
        """Note that the file of an agent lacks one more reading."""
        with self._waiting:
            self._numbers += 1
            self._unwritten.setdefault(agent_id, self._numbers)

    def note_logged(self, logged: Iterable[tuple[HeldState, Reading]]) -> None:
        """Note that readings are on disk in the log."""
        with self._memory:
            for held, reading in logged:
                if reading.seq > held.written_seq:
                    held.logged.append(reading)

    def store(self, held: HeldState, gauge: Gauge) -> None:
        """Write a state whose level changed.

        Raises:
            StateError: It cannot be written yet, and is kept.
        """
        record = held.record
        record.pending = [*(record.pending or ()), *gauge.events] or None
        self.add_unwritten(record.agent_id)
        self.settle(record.agent_id)

    def is_current(self, agent_id: str, held: HeldState) -> bool:
        """Return whether neither the state nor the registration was changed elsewhere."""
        return held.mark == _stamp(self._directory.file(agent_id)) and held.watched == _stamp(
            mark_path(self._directory.path, agent_id)
        )

    def replay(self, readings: Iterable[Reading]) -> None:
        """Bring readings from the log into the stored states that lack them, and write these.

        Raises:
            StateError: A state cannot be written.
        """
        found: dict[str, list[Reading]] = {}
        for reading in readings:
            found.setdefault(reading.agent_id, []).append(reading)
        for agent_id, of_one in found.items():
            with self._posted.lock(agent_id):
                try:
                    record = find_record(self._backend, agent_id)
                except StateError as error:
                    _log.warning("readings of agent %s are lost: %s", agent_id, error)
                    continue
                newer = [] if record is None else [one for one in of_one if one.seq > record.seq]
                if record is not None and self._redo(record, newer):
                    self._save(record)
                    _log.info("agent %s: %d readings from the log", agent_id, len(newer))

    def _redo(self, record: StateRecord, readings: Iterable[Reading]) -> bool:
        """Take readings again that a state lacks; False where none of them is about this agent."""
        events, is_changed = record.pending or [], False
        for one in readings:
            known = (record.started_at, record.generation)
            if (one.started_at, one.generation) != known or not record.active:
                continue
            is_changed = True
            gauge = self._posted.gauge(record, one.at)
            take_reading(gauge, one.used_percentage, one.total_input_tokens, one.emitted_at, one.at)
            count_post(record, one.at)
            events = [*events, *gauge.events]
        record.pending = events or None
        return is_changed

    def _save(self, record: StateRecord) -> None:
        events = record.pending or []
        self._backend.record(record, events, durable=bool(events))

    def write_unwritten(self) -> bool:
        """Write the states that lag; False where one of them could not be written."""
        with self._waiting:
            agents = list(self._unwritten)
        problem: StateError | None = None
        for agent_id in agents:
            with self._posted.lock(agent_id):
                try:
                    self.settle(agent_id)
                except StateError as error:
                    problem = error
        if problem is not None:
            _log.warning("states are written later than their readings: %s", problem)
        return problem is None

    def hold(self, agent_id: str) -> None:
        """Keep the state of an agent in memory for its next post."""
        with self._posted.lock(agent_id):
            if agent_id in self._unwritten:
                return
            # Before the reads: what changes meanwhile is read again at the next post.
            mark = _stamp(self._directory.file(agent_id))
            path = mark_path(self._directory.path, agent_id)
            watched = _stamp(path)
            try:
                record = find_record(self._backend, agent_id)
                if record is None or record.host != HOST or not record.active:
                    return
                held = HeldState(record, mark)
                if watched is not None:
                    stored = compact_json.loads(read_private_file(path)[0])
                    last = stored["told"]
                    held.announced = None if last is None else (last[0], last[1])
                    held.ladder = stored["ladder"]
            except (StateError, OSError, ValueError, LookupError, TypeError):
                return
            held.watched = watched
            held.is_registered = bool(registry_of(self._backend).registrations(agent_id))
            with self._memory:
                self._held.pop(agent_id, None)
                self._held[agent_id] = held
                for oldest in list(self._held)[: max(0, len(self._held) - MAX_HELD)]:
                    if oldest not in self._unwritten:
                        del self._held[oldest]

    def settle(self, agent_id: str) -> None:
        """Write the state of an agent if its file lacks readings.

        Raises:
            StateError: It cannot be written yet; the readings are kept.
        """
        held = self._held.get(agent_id)
        if held is None or agent_id not in self._unwritten:
            return
        try:
            if held.mark != _stamp(self._directory.file(agent_id)) and not self._merge(held):
                self._forget(agent_id)
                return
            self._save(held.record)
        except FencedError:
            self._forget(agent_id)  # another process has taken the agent over, or pruned it
        else:
            self._note_written(agent_id, held)

    def _merge(self, held: HeldState) -> bool:
        """Bring the readings that were answered into what another process stored.

        Returns:
            False where these are not needed: the stored one is newer, or another agent of its id.
        """
        agent_id = held.record.agent_id
        try:
            stored = self._directory.read_to_replace(agent_id)
        except AgentNotFoundError:
            return False
        with self._memory:
            # What another server took later is newer than what is known here.
            since = stored.measured_at or 0.0
            if not self._redo(stored, [one for one in held.logged if one.at > since]):
                return False
            held.record = stored
        return True

    def write_now(self, agent_id: str) -> None:
        """Write the state of an agent as `settle`, under its lock."""
        with self._posted.lock(agent_id):
            self.settle(agent_id)

    def _note_written(self, agent_id: str, held: HeldState) -> None:
        held.mark = _stamp(self._directory.file(agent_id))
        with self._memory:
            held.written_seq = held.record.seq
            held.logged.clear()
        with self._waiting:
            self._unwritten.pop(agent_id, None)

    def _forget(self, agent_id: str) -> None:
        with self._memory:
            self._held.pop(agent_id, None)
        with self._waiting:
            self._unwritten.pop(agent_id, None)

    def is_written(self, number: int) -> bool:
        """See `ReadingLog`."""
        with self._waiting:
            first = next(iter(self._unwritten.values()), None)
        if first is not None and first <= number:
            return False
        sync_directory(self._directory.folder)
        return True

    def read(self, agent_id: str) -> bytes | None:
        """See `Unwritten.read`."""
        if agent_id not in self._unwritten:
            return None
        with self._memory:
            held = self._held.get(agent_id)
            return None if held is None else encode_state(held.record, "")

    def versions(self) -> dict[str, tuple[int, ...]]:
        """See `Unwritten.versions`."""
        with self._waiting:
            agents = list(self._unwritten)
        with self._memory:
            found = ((agent_id, self._held.get(agent_id)) for agent_id in agents)
            return {
                agent_id: (-held.record.generation, held.record.seq)
                for agent_id, held in found
                if held is not None
            }
