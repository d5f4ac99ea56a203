"""Changes one agent's state on disk within one hook call: read, change, write under its lock.

Standard library only; SQLite is loaded only for an event.
"""

from __future__ import annotations

import os

from ultramon.backends.local.level_marks import is_due
from ultramon.errors import (
    AgentNotFoundError,
    InvalidAgentIdError,
    StateCorruptError,
    StateError,
)
from ultramon.hosts.calls.hosted_agent import HostedAgent
from ultramon.hosts.calls.invocation import Invocation
from ultramon.state.record import StateRecord, refuse_newer
from ultramon.system.processes import this_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


LOCK_SECONDS = 1.0
"""How long a hook waits for the parallel hooks of the same agent."""


class HookStore(Invocation):
    """The state directory as one hook call sees it; the arguments are those of `Invocation`."""

    def find(self, agent_id: str) -> StateRecord | None:
        """Return an agent's state as it is now; None without one that can be read."""
        try:
            return self.directory.read(agent_id)
        except (AgentNotFoundError, InvalidAgentIdError, StateError):
            return None

    def is_known(self, agent_id: str) -> bool:
        """Return whether an agent has a state, readable or not."""
        return os.path.lexists(self.directory.file(agent_id))

    def hosted(self, record: StateRecord) -> HostedAgent:
        """Return a state with the choices and the environment of this call."""
        return HostedAgent(self, record)

    def update(
        self,
        agent_id: str,
        change: Callable[[HostedAgent], None],
        *,
        create: bool = True,
        journals: bool = True,
        is_activity: bool = True,
    ) -> HostedAgent | None:
        """Change an agent's state and store it with what has happened.

        Args:
            agent_id: The agent.
            change: Changes it; a state that was never stored has generation 0.
            create: Whether an agent without a state gets one.
            journals: Whether to store events, those left over too; a change that makes none need
                not wait for the journal.
            is_activity: Whether the call shows that the agent works. A redrawn line does not, and
                may be older than an interruption that the transcript still lacks.

        Returns:
            The agent as stored; None when there is none and none was to be made.

        Raises:
            StateError: The state could not be read as its owner, locked or written.
        """
        if not create and not self.is_known(agent_id):
            return None
        self.directory.prepare()
        with self.directory.locked(agent_id, LOCK_SECONDS):
            record = self._read(agent_id)
            if record.generation == 0 and not create:
                return None
            agent = self.hosted(record)
            change(agent)
            record.last_heartbeat = self.now
            if is_activity or not record.last_activity:
                record.last_activity = self.now
            durable = journals and self._append(agent)
            record.seq += 1
            self.directory.replace(record, durable=durable)
            self._stored(agent)
            return agent

    def _stored(self, agent: HostedAgent) -> None:
        """Note that a state was just stored; called inside the lock."""

    def _read(self, agent_id: str) -> StateRecord:
        """Return what is stored, else a state of generation 0."""
        try:
            record = self.directory.read_to_replace(agent_id)
        except AgentNotFoundError:
            return _new(agent_id, 0)
        except StateCorruptError as error:
            kept = self.directory.quarantine(agent_id)
            self.fail(agent_id, f"{error}; set aside as {kept}")
            # Counted from 0 again, its events would be taken for those of the lost state.
            return _new(agent_id, int(self.now))
        refuse_newer(record, self.directory.file(agent_id))
        return record

    def _append(self, agent: HostedAgent) -> bool:
        """Store the events of an agent, those left over first, and the notices about it.

        Returns:
            Whether there was anything to store.
        """
        record = agent.record
        events = [*(record.pending or ()), *agent.gauge.events]
        if not events and not is_due(self.directory.path, record):
            return False
        from ultramon.backends.local.journal import AGENT_TIMEOUT_SECONDS, Journal

        journal = Journal(self.directory.path)
        # Left-over events do not wait: every call would pay while the journal is busy.
        is_left_over = bool(record.pending) and not agent.gauge.events
        try:
            journal.append(events, 0.0 if is_left_over else AGENT_TIMEOUT_SECONDS, record)
            record.pending = None
        except StateError as error:
            from ultramon.hosts.failure_log import EVENTS_WAIT

            problem = f"{EVENTS_WAIT}{error}"
            if isinstance(error, StateCorruptError):
                problem = journal.set_aside(error)
            self.fail(record.agent_id, problem)
            record.pending = events or None
        finally:
            journal.close()
        return True

    def move_registration(self, record: StateRecord, successor_id: str) -> None:
        """Cancel what is queued about an agent, and register its successor in its place.

        Raises:
            StateError: The journal is busy or refused; nothing was moved.
        """
        from ultramon.backends.local.journal import AGENT_TIMEOUT_SECONDS, Journal
        from ultramon.backends.local.route_rows import JournalRows
        from ultramon.notices.router import succeed

        journal = Journal(self.directory.path)
        if not journal.exists():
            return
        try:
            with journal.transaction(AGENT_TIMEOUT_SECONDS) as connection:
                rows = JournalRows(connection)
                succeed(rows, record, successor_id, self.now)
                mark = rows.mark(rows.registration(successor_id))
                if mark is not None:
                    # Before the commit: a registration without a mark is never looked at.
                    journal.write_mark(successor_id, mark)
            journal.sync_mark(successor_id, mark)
            journal.sync_mark(record.agent_id, None)
        finally:
            journal.close()

    def children(self, agent_id: str) -> list[str]:
        """Return the ids of the subagents of a session that have a state."""
        return self.directory.below(agent_id)


def _new(agent_id: str, seq: int) -> StateRecord:
    machine = this_machine()
    return StateRecord(agent_id, hostname=machine.hostname, boot_id=machine.boot_id, seq=seq)
