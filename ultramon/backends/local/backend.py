"""States in a directory and a journal beside them: the default backend, on this machine's disk."""

from __future__ import annotations

import logging
import os
import weakref
from operator import attrgetter
from time import time as wall_clock
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ultramon.backends.base import Changes, EventPage, StoredAgent
from ultramon.backends.local.claims import JournalClaims
from ultramon.backends.local.credentials import JournalCredentials
from ultramon.backends.local.event_rows import position_of
from ultramon.backends.local.journal import (
    AGENT_TIMEOUT_SECONDS,
    SECOND_NAME,
    TOOL_TIMEOUT_SECONDS,
    Journal,
)
from ultramon.backends.local.journal_clock import skew_in
from ultramon.backends.local.queue import JournalQueue
from ultramon.backends.local.registry import JournalRegistry
from ultramon.backends.local.state_files import StateDirectory
from ultramon.backends.store_time import bounded
from ultramon.backends.toolkit import (
    find_changes,
    is_over,
    is_taken,
    read_subscription,
    refuse_living,
)
from ultramon.errors import (
    AgentNotFoundError,
    InvalidAgentIdError,
    StateCorruptError,
    StateError,
    StateSchemaError,
    StateWriteError,
)
from ultramon.state.record import refuse_newer
from ultramon.system import compact_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ultramon.backends.base import Build, Claim, Follow, Subscription
    from ultramon.backends.local.state_files import Mark
    from ultramon.state.history import HistoryPoint
    from ultramon.state.record import StateRecord
    from ultramon.system.processes import MachineIdentity

_log = logging.getLogger("ultramon.backend")

START_TIMEOUT_SECONDS = 1.0
"""How long a start waits for another writer of the same agent."""

_alive: weakref.WeakSet[LocalBackend] = weakref.WeakSet()


class DirectoryBackend(JournalClaims):
    """States in a directory, each under its lock; everything else in a journal.

    Args:
        directory: Where the states are.
        journal: Where everything else is.
    """

    events_are_final = True
    """A transaction ends before the next one begins, so no older event can still come."""

    def __init__(self, directory: StateDirectory, journal: Journal) -> None:
        super().__init__(journal)
        self.queue = JournalQueue(journal)
        self.registry = JournalRegistry(journal)
        self.credentials = JournalCredentials(journal)
        self.directory = directory
        self._swept = False

    def start_agent(
        self, agent_id: str, build: Build, *, takeover: bool, now: float, machine: MachineIdentity
    ) -> bool:
        self.directory.prepare()
        # Once in a process: it lists the whole folder.
        if not self._swept:
            self._swept = True
            self.directory.sweep(wall_clock())
            if self._journal.has_second_name():
                _log.warning("the journal %s %s", self._journal.path, SECOND_NAME)
        with self.directory.locked(agent_id, START_TIMEOUT_SECONDS):
            stored: StateRecord | None = None
            try:
                stored = self.directory.read_to_replace(agent_id)
            except AgentNotFoundError:
                pass
            except StateCorruptError as error:
                # Only an owner sets a state aside; readers report it.
                kept = self.directory.quarantine(agent_id)
                _log.warning("agent %s: %s; set aside as %s", agent_id, error, kept)
            if stored is not None:
                refuse_newer(stored, self.directory.file(agent_id))
                if not takeover:
                    refuse_living(stored, self.directory.heartbeat_at(agent_id), now, machine)
            record, events = build(stored, 1 if stored is None else stored.generation + 1)
            is_claimed = self._check_claim(record)
            self.directory.beat(agent_id, now)
            is_stored = self._store(record, events, durable=True)
            if is_claimed:
                try:
                    self._confirm_claim(record)
                except StateError as error:
                    # The state says it all the same; `settle_claim` looks there, under this lock.
                    _log.info("agent %s: its claim is confirmed later: %s", agent_id, error)
            return is_stored

    def record(
        self, record: StateRecord, events: Sequence[dict[str, Any]], *, durable: bool
    ) -> bool:
        with self.directory.locked(record.agent_id, AGENT_TIMEOUT_SECONDS):
            self.directory.check_generation(record)
            return self._store(record, events, durable=durable)

    def _store(
        self, record: StateRecord, events: Sequence[dict[str, Any]], *, durable: bool
    ) -> bool:
        stored = self._append(events, record)
        record.pending = None if stored else list(events)
        self.directory.replace(record, durable=durable)
        return stored

    def _append(self, events: Sequence[dict[str, Any]], record: StateRecord) -> bool:
        try:
            self._journal.append(events, AGENT_TIMEOUT_SECONDS, record)
        except StateCorruptError as error:
            _log.warning("%s", self._journal.set_aside(error))
            return not events  # without events nothing has to be passed again
        except StateWriteError as error:
            _log.info("events wait in the state file: %s", error)
            return not events
        return True

    def heartbeat(self, beats: Sequence[tuple[str, int]], now: float) -> list[str]:
        fenced = []
        refused: StateWriteError | None = None
        for agent_id, generation in beats:
            try:
                held = self.directory.read(agent_id).generation == generation
            except (AgentNotFoundError, StateSchemaError):
                held = False
            except StateCorruptError:
                held = True  # the owner's next save sets the file aside
            if not held:
                fenced.append(agent_id)
                continue
            try:
                self.directory.beat(agent_id, now)
            except StateWriteError as error:
                refused = error  # the others beat all the same
        if refused is not None:
            raise refused
        return fenced

    def load(self, agent_id: str) -> StoredAgent:
        record = self.directory.read(agent_id)
        return StoredAgent(agent_id, record, self.directory.heartbeat_at(agent_id))

    def history(self, agent_id: str) -> list[HistoryPoint]:
        from ultramon.state.history import decode_points

        return decode_points(self.directory.read_history(agent_id))

    def list_agents(self, run: str | None = None) -> list[StoredAgent]:
        found = self._changes(run, {}, lambda agent_id, _mark: self.directory.read(agent_id))
        found.changed.sort(key=attrgetter("agent_id"))
        return [
            agent._replace(heartbeat_at=found.heartbeats.get(agent.agent_id))
            for agent in found.changed
        ]

    def changes(self, run: str | None, seen: dict[str, Any]) -> Changes:
        return self._changes(run, seen, self.directory.read_head)

    def _changes(
        self, run: str | None, seen: dict[str, Any], read: Callable[[str, Mark | None], StateRecord]
    ) -> Changes:
        from ultramon.backends.local.heartbeats import Heartbeats

        marks = self.directory.scan()
        heartbeats = Heartbeats(self.directory, marks)

        def load_listed(agent_id: str) -> StoredAgent | None:
            mark = marks.get(agent_id)
            try:
                return StoredAgent(agent_id, read(agent_id, mark), None)
            except AgentNotFoundError:
                return None  # pruned since the directory was listed
            except StateError as error:
                return StoredAgent(agent_id, None, None, error)
            except InvalidAgentIdError as error:
                if mark is None:
                    return None
                problem = StateCorruptError(self.directory.folder, str(error))
                return StoredAgent(agent_id, None, None, problem)

        return find_changes(run, seen, marks, heartbeats, load_listed)

    def append_events(
        self, events: Sequence[dict[str, Any]], records: Sequence[StateRecord] = ()
    ) -> None:
        self._journal.make_directory()
        self._journal.append(events, TOOL_TIMEOUT_SECONDS, known=records)

    def events(self, after: str | None = None, limit: int = 500) -> EventPage:
        return EventPage(*self._journal.tail(after, limit))

    def committed_events(
        self, after: str | None = None, *, run: str | None = None, agent_id: str | None = None
    ) -> EventPage:
        """Return all that `Backend.committed_events` states; here `events` withholds nothing."""
        wanted = {"run": run, "agent_id": agent_id}
        given = {column: value for column, value in wanted.items() if value is not None}
        return EventPage(*self._journal.tail(after, None, given))

    def append_following(self, agent_id: str, follow: Follow) -> None:
        self.directory.prepare()
        with self.directory.locked(agent_id, TOOL_TIMEOUT_SECONDS):
            self._journal.append_following(agent_id, follow, self._reread(agent_id).record)

    def last_cursor(self) -> str | None:
        """Return the cursor behind the last event; None where there is none."""
        rows = self._journal.select(1, "SELECT max(id) FROM events")
        return str(rows[0][0]) if rows and rows[0][0] is not None else None

    def subscribe(
        self, name: str, holder: str, *, now: float, lease_seconds: float
    ) -> Subscription | None:
        self._journal.make_directory()
        with self._journal.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            at = now + skew_in(connection)
            held = connection.execute(
                "SELECT holder, lease_until, cursor, memory, lease_seconds FROM consumers"
                " WHERE name = ?",
                (name,),
            ).fetchone()
            other, until, cursor, memory, length = held or (None, 0.0, None, "{}", None)
            if is_taken(other, until, holder, at):
                # What another boot stored may lie too far ahead: its length counts from this look.
                length = length if isinstance(length, float) else lease_seconds
                if until > (end := bounded(until, length, at)):
                    ending = "UPDATE consumers SET lease_until = ? WHERE name = ?"
                    connection.execute(ending, (end, name))
                return None
            connection.execute(
                "INSERT INTO consumers VALUES (?, NULL, '{}', ?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET holder = excluded.holder,"
                " lease_until = excluded.lease_until, lease_seconds = excluded.lease_seconds",
                (name, holder, at + lease_seconds, lease_seconds),
            )
        return read_subscription(name, cursor, memory, position_of)

    def acknowledge(self, name: str, holder: str, cursor: str, memory: dict[str, Any]) -> bool:
        statement = "UPDATE consumers SET cursor = ?, memory = ? WHERE name = ? AND holder = ?"
        return (
            self._journal.execute(statement, cursor, compact_json.dumps(memory), name, holder) == 1
        )

    def unsubscribe(self, name: str, holder: str) -> None:
        statement = "UPDATE consumers SET holder = NULL WHERE name = ? AND holder = ?"
        self._journal.execute(statement, name, holder)

    def put_request(self, agent_id: str, request: dict[str, Any] | None) -> None:
        self.directory.put_request(agent_id, request, TOOL_TIMEOUT_SECONDS)

    def get_request(self, agent_id: str) -> dict[str, Any] | None:
        return self.directory.get_request(agent_id)

    def settle_claim(self, claim: Claim, handoff_ready: dict[str, Any] | None) -> bool:
        with self.directory.locked(claim.successor_id, AGENT_TIMEOUT_SECONDS):
            record = self._reread(claim.successor_id).record
            if record is not None and record.continues_handoff_id == claim.handoff_id:
                self._confirm_claim(record)
                return handoff_ready is None
            return super().settle_claim(claim, handoff_ready)

    def prune(
        self,
        *,
        agents_before: float,
        events_before: float,
        now: float,
        machine: MachineIdentity,
        dry_run: bool,
    ) -> list[str]:
        pruned = []
        for agent in self.list_agents():
            if not is_over(agent, agents_before, now, machine):
                continue
            if not dry_run:
                with self.directory.locked(agent.agent_id, TOOL_TIMEOUT_SECONDS):
                    # It may have been started again, or have beaten, since it was listed.
                    if not is_over(self._reread(agent.agent_id), agents_before, now, machine):
                        continue
                    self.directory.remove(agent.agent_id)
            pruned.append(agent.agent_id)
        if not dry_run:
            self._journal.prune(events_before, pruned)
            self.directory.sweep(wall_clock())
        return pruned

    def _reread(self, agent_id: str) -> StoredAgent:
        try:
            return self.load(agent_id)
        except (AgentNotFoundError, StateError):
            return StoredAgent(agent_id, None, None)


class LocalBackend(DirectoryBackend):
    """States under ``<directory>/subagents``, events in ``<directory>/journal.sqlite3``.

    Args:
        directory: The state directory; created with mode 0700 when first written to.
    """

    def __init__(self, directory: str) -> None:
        files = StateDirectory(directory)
        super().__init__(files, Journal(files.path))
        self.url = f"file://{quote(files.path)}"
        _alive.add(self)

    def after_fork(self) -> None:
        """Leave locks to the parent in a forked copy."""
        self._journal.after_fork()

    def change_mark(self) -> object:
        return self._journal.change_mark()

    def close(self) -> None:
        self._journal.close()


def _after_fork() -> None:
    for backend in list(_alive):
        backend.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
