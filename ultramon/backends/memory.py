"""A backend in this process's memory: for tests, replays and trials. Gone with the process."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ultramon.backends.base import Changes, StoredAgent
from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS, Journal
from ultramon.backends.local.journal_backend import JournalBackend
from ultramon.backends.local.route_rows import JournalRows
from ultramon.backends.local.schema import migrate
from ultramon.backends.toolkit import find_changes, is_over, refuse_living
from ultramon.errors import (
    AgentNotFoundError,
    FencedError,
    StateCorruptError,
    StateError,
)
from ultramon.state.record import decode_state, encode_request, encode_state, refuse_newer
from ultramon.system import compact_json

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from ultramon.backends.base import Build
    from ultramon.backends.local.level_marks import Mark
    from ultramon.state.record import StateRecord
    from ultramon.system.processes import HostIdentity


class _MemoryJournal(Journal):
    """The same tables in a database that is no file."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("")
        self.path = "memory:"

    def exists(self) -> bool:
        """A database in memory is there when it is needed."""
        return True

    def _open(self, timeout_seconds: float, *, to_write: bool) -> sqlite3.Connection:
        import sqlite3

        del timeout_seconds, to_write
        if self._connection is None:
            self._connection = sqlite3.connect(
                ":memory:", isolation_level=None, check_same_thread=False
            )
            self._pid = os.getpid()
            migrate(self._connection)
        return self._connection

    def make_directory(self) -> None:
        """There is none."""

    def is_due(self, record: StateRecord) -> bool:
        """To look is as cheap here as to ask whether to."""
        with self.transaction(TOOL_TIMEOUT_SECONDS, "DEFERRED") as connection:
            return JournalRows(connection).registration(record.agent_id) is not None

    def write_mark(self, agent_id: str, mark: Mark | None) -> None:
        """Nobody needs a mark."""

    @property
    def mark(self) -> int:
        """Differs after every change."""
        return 0 if self._connection is None else self._connection.total_changes


class MemoryBackend(JournalBackend):
    """States in dictionaries, by the same rules and with the same bytes as files."""

    _journal: _MemoryJournal

    def __init__(self) -> None:
        self.url = "memory:"
        self._lock = threading.RLock()
        super().__init__(_MemoryJournal())
        self._states: dict[str, bytes] = {}
        self._generations: dict[str, int] = {}
        self._beats: dict[str, float] = {}
        self._requests: dict[str, bytes] = {}

    def start_agent(
        self, agent_id: str, build: Build, *, takeover: bool, now: float, host: HostIdentity
    ) -> bool:
        """See `Backend.start_agent`."""
        with self._lock:
            data = self._states.get(agent_id)
            stored = None
            if data is not None:
                with suppress(StateCorruptError):
                    stored = decode_state(data, agent_id)
            if stored is not None:
                refuse_newer(stored, agent_id)
                if not takeover:
                    refuse_living(stored, self._beats.get(agent_id), now, host)
            record, events = build(stored, 1 if stored is None else stored.generation + 1)
            is_claimed = self._check_claim(record)
            self._put(record, events)
            if is_claimed:
                self._confirm_claim(record)
            self._beats[agent_id] = now
        return True

    def record(
        self, record: StateRecord, events: Sequence[dict[str, Any]], *, durable: bool
    ) -> bool:
        """See `Backend.record`."""
        del durable
        with self._lock:
            held = self._generations.get(record.agent_id)
            if held != record.generation:
                raise FencedError(record.agent_id, record.generation, held)
            refuse_newer(decode_state(self._states[record.agent_id], "memory:"), record.agent_id)
            self._put(record, events)
        return True

    def _put(self, record: StateRecord, events: Sequence[dict[str, Any]]) -> None:
        record.pending = None
        self._states[record.agent_id] = encode_state(record, record.agent_id)
        self._generations[record.agent_id] = record.generation
        self._journal.append(events, TOOL_TIMEOUT_SECONDS, record)

    def heartbeat(self, beats: Sequence[tuple[str, int]], now: float) -> list[str]:
        """See `Backend.heartbeat`."""
        with self._lock:
            held = [beat for beat in beats if self._generations.get(beat[0]) == beat[1]]
            self._beats.update((agent_id, now) for agent_id, _ in held)
            return [beat[0] for beat in beats if beat not in held]

    def load(self, agent_id: str) -> StoredAgent:
        """See `Backend.load`."""
        with self._lock:
            data = self._states.get(agent_id)
            if data is None:
                raise AgentNotFoundError(agent_id)
            return StoredAgent(agent_id, decode_state(data, agent_id), self._beats.get(agent_id))

    def list_agents(self, run: str | None = None) -> list[StoredAgent]:
        """See `Backend.list_agents`."""
        return sorted(self.changes(run, {}).changed, key=attrgetter("agent_id"))

    def changes(self, run: str | None, seen: dict[str, Any]) -> Changes:
        """See `Backend.changes`."""
        with self._lock:
            # The bytes of a state are its version: each write makes others, with its own `seq`.
            return find_changes(run, seen, self._states, self._beats, self._listed)

    def _listed(self, agent_id: str) -> StoredAgent | None:
        try:
            return self.load(agent_id)
        except AgentNotFoundError:
            return None
        except StateError as error:
            return StoredAgent(agent_id, None, self._beats.get(agent_id), error)

    def change_mark(self) -> object:
        """See `Backend.change_mark`."""
        return self._journal.mark

    def put_request(self, agent_id: str, request: dict[str, Any] | None) -> None:
        """See `Backend.put_request`."""
        with self._lock:
            if agent_id not in self._states:
                raise AgentNotFoundError(agent_id)
            if request is None:
                self._requests.pop(agent_id, None)
            else:
                self._requests[agent_id] = encode_request(request, self.url)

    def get_request(self, agent_id: str) -> dict[str, Any] | None:
        """See `Backend.get_request`."""
        data = self._requests.get(agent_id)
        request: dict[str, Any] | None = None if data is None else compact_json.loads(data)
        return request

    def prune(
        self,
        *,
        agents_before: float,
        events_before: float,
        now: float,
        host: HostIdentity,
        dry_run: bool,
    ) -> list[str]:
        """See `Backend.prune`."""
        with self._lock:
            pruned = [
                agent.agent_id
                for agent in self.list_agents()
                if is_over(agent, agents_before, now, host)
            ]
            if dry_run:
                return pruned
            for agent_id in pruned:
                del self._states[agent_id], self._generations[agent_id]
                self._beats.pop(agent_id, None)
                self._requests.pop(agent_id, None)
            self._journal.prune(events_before, pruned)
        return pruned

    def close(self) -> None:
        """See `Backend.close`."""
