"""The agents that `ultramon chaos` watches and kills."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any

from ultramon.fleet.supervise.ledger import Ledger, end_of_journal, events_of
from ultramon.state.liveness import ENDED, LOST, judge
from ultramon.system.processes import process_started_at, this_machine

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ultramon.backends.base import Backend
    from ultramon.state.record import StateRecord


class Victims:
    """The agents of one run that started after the command did.

    Older agents are another's, and are neither killed nor counted.
    """

    def __init__(self, backend: Backend, run: str) -> None:
        self.backend = backend
        self.run = run
        self.unreadable: set[str] = set()
        self.died_without_plan: list[str] = []
        self._records: dict[str, StateRecord] = {}
        self._heartbeats: Mapping[str, float] = {}
        self._killed: set[tuple[int | None, str | None]] = set()
        self._machine = this_machine()
        self._seen: dict[str, Any] = {}
        stored = [agent.record for agent in backend.changes(run, self._seen).changed]
        self.ledger = Ledger({record.agent_id: record.generation for record in stored if record})
        # A state is replaced with its agent: what it held before is in the journal from here on.
        self._began_at = end_of_journal(backend)

    def look(self) -> None:
        """Enter the states that changed."""
        look = self.backend.changes(self.run, self._seen)
        self._heartbeats = look.heartbeats
        for agent in look.changed:
            if agent.record is None:
                self.unreadable.add(agent.agent_id)
                continue
            self.unreadable.discard(agent.agent_id)
            if self.ledger.concerns(agent.agent_id, agent.record.generation):
                self._records[agent.agent_id] = agent.record
                self.ledger.enter_state(agent.record)

    def look_at_the_end(self) -> None:
        """Enter the last states, and from the journal those that were replaced before."""
        self.look()
        for event in events_of(self.backend, self.run, self._began_at):
            self.ledger.enter_event(event)
        living = {record.agent_id for record in self.living}
        self.died_without_plan = self.ledger.without_plan(
            (agent_id, record.generation)
            for agent_id, record in self._records.items()
            if record.active and agent_id not in living
        )

    @property
    def living(self) -> list[StateRecord]:
        """The agents that are neither ended nor lost."""
        now = time.time()
        return [
            record
            for agent_id, record in self._records.items()
            if judge(record, self._heartbeats.get(agent_id), now, self._machine).verdict
            not in (ENDED, LOST)
        ]

    def kill_one(self, spared: Collection[int]) -> StateRecord | None:
        """Kill the process of a random living agent on this machine; return the agent."""
        machine = self._machine
        victims = [
            record
            for record in self.living
            if record.pid is not None
            and record.pid not in spared
            and (record.pid, record.pid_started_at) not in self._killed
            and (record.hostname, record.boot_id) == (machine.hostname, machine.boot_id)
        ]
        random.shuffle(victims)
        for victim in victims:
            if kill_process(victim.pid or 0, victim.pid_started_at):
                self._killed.add((victim.pid, victim.pid_started_at))
                return victim
        return None

    def all_live_in(self, pid: int) -> bool:
        """Return whether all agents ran in that process."""
        return bool(self._records) and {record.pid for record in self._records.values()} == {pid}


def kill_process(pid: int, started_at: str | None) -> bool:
    """Kill a process if it is still the one that started then; return whether it was."""
    # Without pidfds the pid could be reused between look and kill; there is no better way.
    if not hasattr(os, "pidfd_open"):
        if process_started_at(pid) != started_at:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            return False
        return True
    try:
        # From here on the pid cannot be reused.
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if process_started_at(pid) != started_at:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
