"""The agents of a run as seen from outside: states, heartbeats, processes."""

from __future__ import annotations

import logging
import threading
from time import sleep
from typing import TYPE_CHECKING, Any

from ultramon.backends.toolkit import is_kept
from ultramon.errors import StateWriteError, UltramonError
from ultramon.fleet.child_processes import Processes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.backends.base import Backend
    from ultramon.fleet.journal_event import JournalEvent
    from ultramon.state.record import StateRecord

_log = logging.getLogger("ultramon.fleet")

# An agent stores an event before the state that it leads to; a reader waits for that, half a second
# at most.
_READS_OF_A_STATE = 100
_STATE_READ_SECONDS = 0.005


class RunView:
    """The agents of a run at the last refresh.

    Args:
        backend: The store.
        run: The run.

    Attributes:
        records: Their states.
        heartbeats: Their last heartbeats, epoch seconds.
        processes: The processes attached to them.
        pending: Agents whose state holds events that their process could not store.
        lock: Guards all of this between threads.
    """

    def __init__(self, backend: Backend, run: str) -> None:
        self.records: dict[str, StateRecord] = {}
        self.heartbeats: Mapping[str, float] = {}
        self.processes = Processes()
        self.lock = threading.RLock()
        self._backend = backend
        self._run = run
        self.pending: set[str] = set()
        self._changed: set[str] = set()
        self._seen: dict[str, Any] = {}

    def refresh(self) -> None:
        """Read the changes since the last refresh."""
        with self.lock:
            self.processes.poll()
            changes = self._backend.changes(self._run, self._seen)
            self._changed.update(changes.removed)
            for agent in changes.changed:
                self._changed.add(agent.agent_id)
                if agent.record is not None:
                    self._keep(agent.record)
                else:
                    _log.warning("agent %s cannot be read: %s", agent.agent_id, agent.problem)
            for agent_id in changes.removed:
                self.records.pop(agent_id, None)
                self.pending.discard(agent_id)
            self.heartbeats = changes.heartbeats
            self.processes.match(self.records)

    def state_after(self, event: JournalEvent) -> StateRecord | None:
        """Return the state that an event led to, None when none can be read.

        Raises:
            StateWriteError: The database is away: there may be one.
        """
        record = None
        for _ in range(_READS_OF_A_STATE):
            try:
                record = self._backend.load(event.agent_id).record
            except StateWriteError:
                raise
            except UltramonError:
                record = None
            if not _precedes_state(event, record):
                break
            sleep(_STATE_READ_SECONDS)
        if record is None or record.run != self._run:
            return None
        with self.lock:
            self._changed.add(record.agent_id)
            self._keep(record)
        return record

    def is_kept(self, agent_id: str) -> bool:
        """Return whether what an agent did last waits on this machine still."""
        return is_kept(self._backend, agent_id)

    def take_changed(self) -> set[str]:
        """Return the agents whose state changed or vanished since the last call."""
        with self.lock:
            changed, self._changed = self._changed, set()
        return changed

    def waiting_events(self) -> list[dict[str, Any]]:
        """Return events that wait in states because the journal was busy."""
        owners = [self.records[agent_id] for agent_id in sorted(self.pending)]
        return [event for record in owners for event in record.pending or ()]

    def _keep(self, record: StateRecord) -> None:
        self.records[record.agent_id] = record
        if record.pending:
            self.pending.add(record.agent_id)
        else:
            self.pending.discard(record.agent_id)


def _precedes_state(event: JournalEvent, record: StateRecord | None) -> bool:
    """Return whether an agent's event is stored and its state is still to follow."""
    if event.source != f"agent:{event.agent_id}":
        return False
    if record is None:
        return event.kind == "agent_started"
    if record.generation != event.generation:
        return record.generation < event.generation
    return record.last_heartbeat < event.at
