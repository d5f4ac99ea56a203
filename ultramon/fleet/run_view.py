"""The agents of a run as seen from outside: states, heartbeats, processes."""

from __future__ import annotations

import logging
import threading
from time import sleep
from typing import TYPE_CHECKING, Any

from ultramon.errors import UltramonError
from ultramon.fleet.child_processes import _LOOKS_FOR_A_STATE, _STATE_LOOK_SECONDS, Processes
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    import asyncio
    import subprocess

    from ultramon.backends.base import Backend
    from ultramon.state.record import StateRecord

    Attachable = subprocess.Popen[Any] | asyncio.subprocess.Process | int
_log = logging.getLogger("ultramon.fleet")


class RunView:
    """What is known of the agents of a run since the last look.

    Args:
        backend: Where their states are.
        run: Whose agents.

    Attributes:
        records: Their states.
        heartbeats: Their last beats, epoch seconds.
        processes: Those attached to them.
        pending: Those whose state holds events that its owner could not store.
        lock: Guards all this: several threads may look.
    """

    def __init__(self, backend: Backend, run: str) -> None:
        self.records: dict[str, StateRecord] = {}
        self.heartbeats: dict[str, float] = {}
        self.processes = Processes()
        self.lock = threading.RLock()
        self._backend = backend
        self._run = run
        self.pending: set[str] = set()
        self._changed: set[str] = set()
        self._seen: dict[str, Any] = {}

    def look(self) -> None:
        """Read what changed since the last look."""
        with self.lock:
            self.processes.look()
            look = self._backend.changes(self._run, self._seen)
            self._changed.update(look.removed)
            for agent in look.changed:
                self._changed.add(agent.agent_id)
                if agent.record is not None:
                    self._keep(agent.record)
                else:
                    _log.warning("agent %s cannot be read: %s", agent.agent_id, agent.problem)
            for agent_id in look.removed:
                self.records.pop(agent_id, None)
                self.pending.discard(agent_id)
            self.heartbeats = look.heartbeats
            self.processes.match(self.records)

    def look_behind(self, event: dict[str, Any]) -> StateRecord | None:
        """Return the state that an event led to, None when there is none to read."""
        record = None
        for _ in range(_LOOKS_FOR_A_STATE):
            try:
                record = self._backend.load(event["agentId"]).record
            except UltramonError:
                record = None
            if not _precedes_state(event, record):
                break
            sleep(_STATE_LOOK_SECONDS)
        if record is None or record.run != self._run:
            return None
        with self.lock:
            self._changed.add(record.agent_id)
            self._keep(record)
        return record

    def take_changed(self) -> set[str]:
        """Return whose state is another one than when this was last asked, or is gone."""
        with self.lock:
            changed, self._changed = self._changed, set()
        return changed

    def waiting_events(self) -> list[dict[str, Any]]:
        """Return what owners could not write into a busy journal: it waits in their states."""
        owners = [self.records[agent_id] for agent_id in sorted(self.pending)]
        return [event for record in owners for event in record.pending or ()]

    def _keep(self, record: StateRecord) -> None:
        self.records[record.agent_id] = record
        if record.pending:
            self.pending.add(record.agent_id)
        else:
            self.pending.discard(record.agent_id)


def _precedes_state(event: dict[str, Any], record: StateRecord | None) -> bool:
    """Return whether an agent's event is stored and its state will be in a moment."""
    if event["source"] != f"agent:{event['agentId']}":
        return False
    if record is None:
        return bool(event["type"] == "agent_started")
    if record.generation != event["generation"]:
        return bool(record.generation < event["generation"])
    return record.last_heartbeat < (parse_time(event["occurredAt"]) or 0.0)
