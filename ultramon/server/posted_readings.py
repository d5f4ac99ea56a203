"""Readings that are posted at the same time: one sync of the disk for all, their states later.

A post that no other overlaps writes its state before it is answered. Posts that overlap share the
log of `ultramon.server.reading_log`: each is answered when its reading is on disk there, and a
thread writes the states. What a killed server left in the log, the next one brings into the states.

Everything but a plain reading goes through `PostedAgents`, which has the state written first.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import StateError
from ultramon.server.held_states import HeldStates
from ultramon.server.posted_agents import (
    MEMORY,
    answer_reading,
    check_reading,
    is_another,
    is_stale,
)
from ultramon.server.reading_log import LogFullError, Reading, ReadingLog
from ultramon.system.locks import LockedError

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.context.gauge import Gauge
    from ultramon.server.held_states import HeldState
    from ultramon.server.posted_agents import PostedAgents

SHARED_SECONDS = 0.1
"""How long after two posts overlapped the log goes on being used."""
WRITE_SECONDS = 2.0
"""How long a state waits for more readings before it is written; an agent's own waits for 5 s."""
RETRY_SECONDS = 1.0
_THREADS = 4
_log = logging.getLogger("ultramon.server")


class _Batch:
    """Readings that one write of the log makes durable."""

    __slots__ = ("durable", "held", "loop", "readings")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.durable: asyncio.Future[StateError | None] = loop.create_future()
        self.readings: list[Reading] = []
        self.held: list[HeldState] = []


class PostedReadings:
    """Takes readings in an event loop.

    Args:
        backend: Where the agents are. One that keeps no files in a directory writes each state
            before its post is answered.
        posted: Writes everything else about the same agents.
    """

    def __init__(self, backend: Backend, posted: PostedAgents) -> None:
        self._posted = posted
        self._directory = backend.directory if isinstance(backend, LocalBackend) else None
        self._states = HeldStates(backend, posted) if isinstance(backend, LocalBackend) else None
        self._log: ReadingLog | None = None
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
        directory, states = self._directory, self._states
        if directory is None or states is None:
            return
        directory.prepare()
        try:
            log = ReadingLog(directory.path, states.is_written)
        except LockedError:
            _log.info("another server writes posts.lock: each post waits for its own state file")
            return
        with ExitStack() as undo:
            undo.callback(log.close)
            states.replay(log.recover())
            log.remove()
            undo.pop_all()
        self._log = log
        self._closing.clear()
        directory.unwritten = states
        self._posted.settle = states.settle

    def _start_threads(self, log: ReadingLog, states: HeldStates) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "ultramon-crossings")
        self._threads = [
            threading.Thread(target=run, args=(log, states), name=name, daemon=True)
            for run, name in (
                (self._write_log, "ultramon-reading-log"),
                (self._write_states, "ultramon-states"),
            )
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Write every state; the log is deleted when all of them are written."""
        log, directory, states = self._log, self._directory, self._states
        if log is None or directory is None or states is None:
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
        states.write_unwritten()
        try:
            if states.are_written:
                log.remove()
        except StateError as error:
            _log.warning("%s", error)  # it is replayed in vain at the next start
        self._log = None
        directory.unwritten = None
        log.close()

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
            states = self._states
            if states is not None and self._is_shared(states):
                answer = await self._take(states, agent_id, now, values)
                if answer is not None:
                    return answer
            return await run_in_threadpool(self._take_alone, agent_id, now, *values)
        finally:
            self._under_way -= 1

    def _is_shared(self, states: HeldStates) -> bool:
        if self._log is None:
            return False
        now = time.monotonic()
        if self._under_way > 1:
            self._shared_until = now + SHARED_SECONDS
            if not self._threads:
                self._start_threads(self._log, states)
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
        if self._states and self._threads and answer["status"] in ("ok", "not_registered"):
            self._states.hold(agent_id)
        return answer

    async def _take(
        self,
        states: HeldStates,
        agent_id: str,
        now: float,
        values: tuple[float | None, int | None, float | None],
    ) -> dict[str, Any] | None:
        """Take a reading into memory and the log; None where it has to go the long way."""
        used_percentage, total_input_tokens, emitted_at = values
        lock = self._posted.lock(agent_id)
        if not lock.acquire(blocking=False):
            return None
        is_kept = False
        try:
            held = states.find(agent_id)
            if held is None or not states.is_current(agent_id, held):
                return None
            record = held.record
            memory = record.extra[MEMORY]
            answer = answer_reading(held.is_registered, used_percentage)
            late = is_stale(memory, emitted_at)
            if late or not is_another(memory, used_percentage, total_input_tokens, emitted_at):
                # The reading that makes it a late one may be on its way to the disk, and fail yet.
                if not states.is_durable(held) or held.is_due():
                    return None
                return {"status": "stale_sample"} if late else answer
            if used_percentage is None:
                return answer
            gauge = states.take(held, now, used_percentage, total_input_tokens, emitted_at)
            loop = asyncio.get_running_loop()
            if gauge.events or record.pending or held.is_due():
                stored = loop.run_in_executor(self._pool, self._store, states, lock, held, gauge)
                is_kept = True
                # A client that leaves must not leave the lock behind.
                await asyncio.shield(stored)
                loop.run_in_executor(self._pool, states.hold, agent_id)
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
            batch = self._append(loop, states, held, reading)
        finally:
            if not is_kept:
                lock.release()
        refusal = await asyncio.shield(batch.durable)
        if refusal is not None:
            await run_in_threadpool(states.write_now, agent_id)
        if held.written_seq < reading.seq and states.find(agent_id) is not held:
            return None  # another process changed the state meanwhile
        return answer

    def _append(
        self,
        loop: asyncio.AbstractEventLoop,
        states: HeldStates,
        held: HeldState,
        reading: Reading,
    ) -> _Batch:
        with self._wanted:
            states.add_unwritten(reading.agent_id)
            batch = self._filling
            if batch is None:
                batch = self._filling = _Batch(loop)
                self._wanted.notify()
            batch.readings.append(reading)
            batch.held.append(held)
        return batch

    # --- threads

    def _write_log(self, log: ReadingLog, states: HeldStates) -> None:
        while True:
            with self._wanted:
                while self._filling is None and not self._closing.is_set():
                    self._wanted.wait()
                batch, self._filling = self._filling, None
                last_number = states.last_number
            if batch is None:
                return
            refusal: StateError | None = None
            try:
                log.write(batch.readings, last_number)
            except StateError as error:
                refusal = error
                if not isinstance(error, LogFullError):
                    _log.warning("posts wait for their state files: %s", error)
            if refusal is None:
                states.note_logged(zip(batch.held, batch.readings, strict=True))
            self._wake.set()
            try:
                batch.loop.call_soon_threadsafe(_answer, batch, refusal)
            except RuntimeError:
                continue  # the loop has ended, and with it every post

    def _write_states(self, log: ReadingLog, states: HeldStates) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            self._closing.wait(WRITE_SECONDS)
            if not states.write_unwritten():
                self._closing.wait(RETRY_SECONDS)
                self._wake.set()
            elif log.is_broken:
                self._mend(log, states)

    def _mend(self, log: ReadingLog, states: HeldStates) -> None:
        """Begin the log anew, once nothing in it is needed any more."""
        with self._wanted:
            if not states.are_written or self._filling is not None:
                return
        try:
            log.remove()
        except StateError as error:
            _log.warning("%s", error)

    def _store(
        self, states: HeldStates, lock: threading.Lock, held: HeldState, gauge: Gauge
    ) -> None:
        """Write a state whose level changed; releases the lock of its agent.

        Raises:
            StateError: It cannot be written yet, and is kept.
        """
        try:
            states.store(held, gauge)
        except StateError:
            self._wake.set()
            raise
        finally:
            lock.release()


def _answer(batch: _Batch, refusal: StateError | None) -> None:
    if not batch.durable.done():
        batch.durable.set_result(refusal)
