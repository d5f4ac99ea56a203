"""Readings that are posted at the same time: one sync of the disk for all, their states later.

A post that no other overlaps writes its state before it is answered. Posts that overlap share the
log of `ultramon.server.reading_log`: each is answered when its reading is on disk there, and a
thread writes the states. What a killed server left in the log, the next one brings into the states.

Everything but a plain reading goes through `PostedAgents`, which has the state written first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.level_marks import mark_path
from ultramon.backends.registry import registry_of
from ultramon.backends.toolkit import find_record
from ultramon.errors import AgentNotFoundError, FencedError, StateError
from ultramon.notices.rules import decide
from ultramon.server.posted_agents import (
    HOST,
    MEMORY,
    answer_reading,
    check_reading,
    count_post,
    is_another,
    is_stale,
    take_reading,
)
from ultramon.server.reading_log import LogFullError, Reading, ReadingLog
from ultramon.state.record import encode_state
from ultramon.system import compact_json
from ultramon.system.files import read_private_file, sync_directory
from ultramon.system.locks import LockedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ultramon.backends.base import Backend
    from ultramon.context.gauge import Gauge
    from ultramon.server.posted_agents import PostedAgents
    from ultramon.state.record import StateRecord

    Stamp = tuple[int, int, int] | None

SHARED_SECONDS = 0.1
"""How long after two posts overlapped the log goes on being used."""
WRITE_SECONDS = 2.0
"""How long a state waits for more readings before it is written; an agent's own waits for 5 s."""
RETRY_SECONDS = 1.0
MAX_HELD = 2_048
"""States in memory; beyond them the least recently made one is read again at its next post."""
_THREADS = 4
_log = logging.getLogger("ultramon.server")


def _stamp(path: str) -> Stamp:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


class _Held:
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


class _Batch:
    """Readings that one write of the log makes durable."""

    __slots__ = ("durable", "held", "loop", "readings")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.durable: asyncio.Future[StateError | None] = loop.create_future()
        self.readings: list[Reading] = []
        self.held: list[_Held] = []


class PostedReadings:
    """Takes readings in an event loop.

    Args:
        backend: Where the agents are. One that keeps no files in a directory writes each state
            before its post is answered.
        posted: Writes everything else about the same agents.
    """

    def __init__(self, backend: Backend, posted: PostedAgents) -> None:
        self._backend = backend
        self._posted = posted
        self._directory = backend.directory if isinstance(backend, LocalBackend) else None
        self._log: ReadingLog | None = None
        self._held: dict[str, _Held] = {}
        self._unwritten: dict[str, int] = {}
        """Agents with readings that their files lack, the longest waiting first, with the number
        of the first of these."""
        self._numbers = 0
        self._memory = threading.Lock()
        """Guards the states in memory, between the loop and readers in threads."""
        self._under_way = 0
        self._shared_until = 0.0
        self._filling: _Batch | None = None
        self._wanted = threading.Condition(threading.Lock())
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._pool: ThreadPoolExecutor | None = None

    # --- life

    def open(self) -> None:
        """Bring what a killed server left in the log into the states, then use the log.

        Where another server takes posts for the same directory, the log is not used.

        Raises:
            StateError: The log cannot be read, or a state not be written; nothing is lost.
        """
        if self._directory is None:
            return
        self._directory.prepare()
        try:
            log = ReadingLog(self._directory.path, self._is_written)
        except LockedError:
            _log.info("another server writes posts.lock: each post waits for its own state file")
            return
        try:
            self._replay(log.recover())
            log.remove()
        except BaseException:
            log.close()
            raise
        self._log = log
        self._closing.clear()
        self._directory.unwritten = self
        self._posted.settle = self._settle

    def _start_threads(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "ultramon-crossings")
        self._threads = [
            threading.Thread(target=self._write_log, name="ultramon-reading-log", daemon=True),
            threading.Thread(target=self._write_states, name="ultramon-states", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Write every state; the log is deleted when all of them are written."""
        log = self._log
        if log is None:
            return
        self._closing.set()
        self._wake.set()
        with self._wanted:
            self._wanted.notify_all()
        for thread in self._threads:
            thread.join()
        if self._pool is not None:
            self._pool.shutdown()
        self._threads, self._pool = [], None
        self._write_unwritten()
        try:
            if not self._unwritten:
                log.remove()
        except StateError as error:
            _log.warning("%s", error)  # it is replayed in vain at the next start
        self._log = None
        if self._directory is not None:
            self._directory.unwritten = None
        log.close()

    def _replay(self, readings: Iterable[Reading]) -> None:
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

    # --- the loop

    async def report(
        self,
        agent_id: str,
        now: float,
        *,
        used_percentage: float | None,
        total_input_tokens: int | None = None,
        emitted_at: float | None = None,
    ) -> dict[str, Any]:
        """Take a reading; see `PostedAgents.report_usage`."""
        check_reading(used_percentage, total_input_tokens)
        self._under_way += 1
        try:
            values = (used_percentage, total_input_tokens, emitted_at)
            if self._is_shared():
                answer = await self._take(agent_id, now, *values)
                if answer is not None:
                    return answer
            return await run_in_threadpool(self._take_alone, agent_id, now, *values)
        finally:
            self._under_way -= 1

    def _is_shared(self) -> bool:
        if self._log is None:
            return False
        now = time.monotonic()
        if self._under_way > 1:
            self._shared_until = now + SHARED_SECONDS
            if not self._threads:
                self._start_threads()
        return now < self._shared_until

    def _take_alone(
        self,
        agent_id: str,
        now: float,
        used_percentage: float | None,
        total_input_tokens: int | None,
        emitted_at: float | None,
    ) -> dict[str, Any]:
        answer = self._posted.report_usage(
            agent_id,
            now,
            used_percentage=used_percentage,
            total_input_tokens=total_input_tokens,
            emitted_at=emitted_at,
        )
        if self._threads and answer["status"] in ("ok", "not_registered"):
            self._hold(agent_id)
        return answer

    async def _take(
        self,
        agent_id: str,
        now: float,
        used_percentage: float | None,
        total_input_tokens: int | None,
        emitted_at: float | None,
    ) -> dict[str, Any] | None:
        """Take a reading into memory and the log; None where it has to go the long way."""
        lock = self._posted.lock(agent_id)
        if not lock.acquire(blocking=False):
            return None
        is_kept = False
        try:
            held = self._held.get(agent_id)
            if held is None or not self._is_current(agent_id, held):
                return None
            record = held.record
            memory = record.extra[MEMORY]
            answer = answer_reading(held.is_registered, used_percentage)
            late = is_stale(memory, emitted_at)
            if late or not is_another(memory, used_percentage, total_input_tokens, emitted_at):
                # The reading that makes it a late one may be on its way to the disk, and fail yet.
                with self._memory:
                    is_durable = held.is_durable()
                if not is_durable or held.is_due():
                    return None
                return {"status": "stale_sample"} if late else answer
            if used_percentage is None:
                return answer
            with self._memory:
                gauge = self._posted.gauge(record, now)
                take_reading(gauge, used_percentage, total_input_tokens, emitted_at, now)
                count_post(record, now)
            loop = asyncio.get_running_loop()
            if gauge.events or record.pending or held.is_due():
                stored = loop.run_in_executor(self._pool, self._store, lock, held, gauge)
                is_kept = True
                # A client that leaves must not leave the lock behind.
                await asyncio.shield(stored)
                loop.run_in_executor(self._pool, self._hold, agent_id)
                return answer
            reading = Reading(
                agent_id,
                record.started_at,
                record.generation,
                record.seq,
                now,
                used_percentage,
                total_input_tokens,
                emitted_at,
            )
            batch = self._append(loop, held, reading)
        finally:
            if not is_kept:
                lock.release()
        refusal = await asyncio.shield(batch.durable)
        if refusal is not None:
            await run_in_threadpool(self._write_now, agent_id)
        if held.written_seq < reading.seq and self._held.get(agent_id) is not held:
            return None  # another process changed the state meanwhile
        return answer

    def _is_current(self, agent_id: str, held: _Held) -> bool:
        """Return whether neither the state nor the registration was changed elsewhere."""
        assert self._directory is not None
        return held.mark == _stamp(self._directory.file(agent_id)) and held.watched == _stamp(
            mark_path(self._directory.path, agent_id)
        )

    def _append(self, loop: asyncio.AbstractEventLoop, held: _Held, reading: Reading) -> _Batch:
        with self._wanted:
            self._numbers += 1
            self._unwritten.setdefault(reading.agent_id, self._numbers)
            batch = self._filling
            if batch is None:
                batch = self._filling = _Batch(loop)
                self._wanted.notify()
            batch.readings.append(reading)
            batch.held.append(held)
        return batch

    # --- threads

    def _write_log(self) -> None:
        while True:
            with self._wanted:
                while self._filling is None and not self._closing.is_set():
                    self._wanted.wait()
                batch, self._filling = self._filling, None
                last_number = self._numbers
            if batch is None:
                return
            refusal: StateError | None = None
            assert self._log is not None
            try:
                self._log.write(batch.readings, last_number)
            except StateError as error:
                refusal = error
                if not isinstance(error, LogFullError):
                    _log.warning("posts wait for their state files: %s", error)
            with self._memory:
                if refusal is None:
                    for held, reading in zip(batch.held, batch.readings, strict=True):
                        if reading.seq > held.written_seq:
                            held.logged.append(reading)
            self._wake.set()
            try:
                batch.loop.call_soon_threadsafe(_answer, batch, refusal)
            except RuntimeError:
                continue  # the loop has ended, and with it every post

    def _write_states(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            self._closing.wait(WRITE_SECONDS)
            if not self._write_unwritten():
                self._closing.wait(RETRY_SECONDS)
                self._wake.set()
            elif self._log is not None and self._log.is_broken:
                self._mend()

    def _write_unwritten(self) -> bool:
        """Write the states that lag; False where one of them could not be written."""
        with self._wanted:
            agents = list(self._unwritten)
        problem: StateError | None = None
        for agent_id in agents:
            with self._posted.lock(agent_id):
                try:
                    self._settle(agent_id)
                except StateError as error:
                    problem = error
        if problem is not None:
            _log.warning("states are written later than their readings: %s", problem)
        return problem is None

    def _mend(self) -> None:
        """Begin the log anew, once nothing in it is needed any more."""
        assert self._log is not None
        with self._wanted:
            if self._unwritten or self._filling is not None:
                return
        try:
            self._log.remove()
        except StateError as error:
            _log.warning("%s", error)

    # --- one agent, under its lock

    def _hold(self, agent_id: str) -> None:
        """Keep the state of an agent in memory for its next post."""
        assert self._directory is not None
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
                held = _Held(record, mark)
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

    def _settle(self, agent_id: str) -> None:
        """Write the state of an agent if its file lacks readings.

        Raises:
            StateError: It cannot be written yet; the readings are kept.
        """
        held = self._held.get(agent_id)
        if held is None or agent_id not in self._unwritten:
            return
        assert self._directory is not None
        try:
            if held.mark != _stamp(self._directory.file(agent_id)) and not self._merge(held):
                self._forget(agent_id)
                return
            self._save(held.record)
        except FencedError:
            self._forget(agent_id)  # another process has taken the agent over, or pruned it
        else:
            self._note_written(agent_id, held)

    def _merge(self, held: _Held) -> bool:
        """Bring the readings that were answered into what another process stored.

        Returns:
            False where these are not needed: the stored one is newer, or another agent of its id.
        """
        agent_id = held.record.agent_id
        assert self._directory is not None
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

    def _store(self, lock: threading.Lock, held: _Held, gauge: Gauge) -> None:
        """Write a state whose level changed; releases the lock of its agent.

        Raises:
            StateError: It cannot be written yet, and is kept.
        """
        record = held.record
        agent_id = record.agent_id
        try:
            record.pending = [*(record.pending or ()), *gauge.events] or None
            with self._wanted:
                self._numbers += 1
                self._unwritten.setdefault(agent_id, self._numbers)
            self._settle(agent_id)
        except StateError:
            self._wake.set()
            raise
        finally:
            lock.release()

    def _write_now(self, agent_id: str) -> None:
        with self._posted.lock(agent_id):
            self._settle(agent_id)

    def _note_written(self, agent_id: str, held: _Held) -> None:
        assert self._directory is not None
        held.mark = _stamp(self._directory.file(agent_id))
        with self._memory:
            held.written_seq = held.record.seq
            held.logged.clear()
        with self._wanted:
            self._unwritten.pop(agent_id, None)

    def _forget(self, agent_id: str) -> None:
        with self._memory:
            self._held.pop(agent_id, None)
        with self._wanted:
            self._unwritten.pop(agent_id, None)

    def _is_written(self, number: int) -> bool:
        """See `ReadingLog`."""
        with self._wanted:
            first = next(iter(self._unwritten.values()), None)
        if first is not None and first <= number:
            return False
        if self._directory is not None:
            sync_directory(self._directory.folder)
        return True

    # --- readers of this process

    def read(self, agent_id: str) -> bytes | None:
        """See `Unwritten.read`."""
        if agent_id not in self._unwritten:
            return None
        with self._memory:
            held = self._held.get(agent_id)
            return None if held is None else encode_state(held.record, "")

    def versions(self) -> dict[str, tuple[int, ...]]:
        """See `Unwritten.versions`."""
        with self._wanted:
            agents = list(self._unwritten)
        with self._memory:
            found = ((agent_id, self._held.get(agent_id)) for agent_id in agents)
            return {
                agent_id: (-held.record.generation, held.record.seq)
                for agent_id, held in found
                if held is not None
            }


def _answer(batch: _Batch, refusal: StateError | None) -> None:
    if not batch.durable.done():
        batch.durable.set_result(refusal)
