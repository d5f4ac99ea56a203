"""A backend in this process's memory: for tests, replays and trials. Gone with the process."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from ultramon.backends.local.backend import DirectoryBackend
from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS, Journal
from ultramon.backends.local.route_rows import JournalRows
from ultramon.backends.local.schema import migrate
from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import AgentNotFoundError
from ultramon.state.history_ring import add_point, encode_point
from ultramon.state.record import decode_state, encode_request, encode_state
from ultramon.system import compact_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.local.connection import JournalConnection
    from ultramon.backends.local.level_marks import Mark as LevelMark
    from ultramon.backends.local.state_files import Mark
    from ultramon.state.record import StateRecord


class _MemoryJournal(Journal):
    """The tables of the journal in a database that is no file."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("")
        self.path = "memory:"

    def exists(self) -> bool:
        """A database in memory is there when it is needed."""
        return True

    def _open(self, timeout_seconds: float, *, to_write: bool) -> JournalConnection:
        from ultramon.backends.local.connection import JournalConnection

        del timeout_seconds, to_write
        if self._connection is None:
            # From any thread: `lock` keeps them apart.
            self._connection = JournalConnection(
                ":memory:", isolation_level=None, check_same_thread=False
            )
            self._pid = os.getpid()
            migrate(self._connection)
        return self._connection

    def make_directory(self) -> None:
        """Create nothing: there is no directory."""

    def is_due(self, record: StateRecord) -> bool:
        """To look is as cheap here as to ask whether to."""
        with self.transaction(TOOL_TIMEOUT_SECONDS, "DEFERRED") as connection:
            return JournalRows(connection).registration(record.agent_id) is not None

    def write_mark(self, agent_id: str, mark: LevelMark | None) -> None:
        """No writer needs a mark here: see `is_due`."""

    def acquire(self, timeout_seconds: float) -> None:
        """No other process writes, and threads of this one are never long."""
        self.lock.acquire()

    def change_mark(self) -> int:
        """Differs after every change."""
        return 0 if self._connection is None else self._connection.total_changes


class _MemoryDirectory(StateDirectory):
    """The bytes of a state directory in dictionaries."""

    __slots__ = ("_lock", "beats", "histories", "requests", "states")

    def __init__(self) -> None:
        self.path = self.folder = "memory:"
        self._lock = threading.RLock()
        self.states: dict[str, bytes] = {}
        self.beats: dict[str, float] = {}
        self.histories: dict[str, bytes] = {}
        self.requests: dict[str, bytes] = {}

    def prepare(self) -> None:
        """Create nothing: there is no directory."""

    def sweep(self, now: float) -> list[str]:
        """No write leaves a part of it behind."""
        return []

    def scan(self) -> dict[str, Mark]:
        """The bytes of a state are its mark: each write makes others, with its own `seq`."""
        return dict(self.states)

    def _read(
        self,
        agent_id: str,
        decode: Callable[[bytes, str], StateRecord] = decode_state,
        *,
        is_regular: bool = False,
    ) -> StateRecord:
        data = self.states.get(agent_id)
        if data is None:
            raise AgentNotFoundError(agent_id)
        return decode_state(data, self.file(agent_id))

    def locked(self, agent_id: str, timeout_seconds: float) -> threading.RLock:
        """One lock is enough for all agents."""
        return self._lock

    def replace(self, record: StateRecord, *, durable: bool) -> None:
        self.states[record.agent_id] = encode_state(record, self.file(record.agent_id))
        points = self.histories.get(record.agent_id, b"")
        self.histories[record.agent_id] = add_point(points, encode_point(record))

    def read_history(self, agent_id: str) -> bytes:
        return self.histories.get(agent_id, b"")

    def beat(self, agent_id: str, at: float) -> None:
        self.beats[agent_id] = at

    def heartbeat_at(self, agent_id: str) -> float | None:
        return self.beats.get(agent_id)

    def put_request(
        self, agent_id: str, request: dict[str, Any] | None, timeout_seconds: float
    ) -> None:
        with self._lock:
            if agent_id not in self.states:
                raise AgentNotFoundError(agent_id)
            self.requests.pop(agent_id, None)
            if request is not None:
                self.requests[agent_id] = encode_request(request, self.file(agent_id, ".request"))

    def get_request(self, agent_id: str) -> dict[str, Any] | None:
        data = self.requests.get(agent_id)
        request: dict[str, Any] | None = None if data is None else compact_json.loads(data)
        return request

    def quarantine(self, agent_id: str) -> str | None:
        """Delete an unreadable state; it is not kept as evidence."""
        self.states.pop(agent_id, None)
        return None

    def remove(self, agent_id: str) -> None:
        for kept in (self.states, self.beats, self.requests, self.histories):
            kept.pop(agent_id, None)


class MemoryBackend(DirectoryBackend):
    """States in dictionaries, by the same rules and with the same bytes as files."""

    directory: _MemoryDirectory
    _journal: _MemoryJournal

    def __init__(self) -> None:
        self.url = "memory:"
        super().__init__(_MemoryDirectory(), _MemoryJournal())

    def change_mark(self) -> object:
        return self._journal.change_mark()

    def close(self) -> None:
        """Keep everything: it lives as long as the process."""
