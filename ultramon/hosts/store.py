"""Changes one agent's state on disk within one hook call: read, change, write under its lock.

Standard library only; SQLite is loaded only for an event.
"""

from __future__ import annotations

from ultramon.backends.local.level_marks import is_due
from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import (
    AgentNotFoundError,
    InvalidAgentIdError,
    StateCorruptError,
    StateError,
)
from ultramon.hosts.hosted_agent import HostedAgent, is_gone, this_process
from ultramon.hosts.installed_choices import NOBODY, InstalledChoices
from ultramon.state.record import StateRecord, refuse_newer
from ultramon.system import compact_json
from ultramon.system.files import read_private_file, replace_file
from ultramon.system.lean_os import os
from ultramon.system.processes import boot_seconds, this_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ultramon.hosts.port import Host

LOCK_SECONDS = 1.0
"""How long a hook waits for the parallel hooks of the same agent."""
WINDOWS_SUFFIX = ".windows.json"
"""Of the file, after the host's name, that holds the windows the client reported."""
_MAX_WINDOWS = 200


class HookStore:
    """The state directory as one hook call sees it.

    Args:
        host: The client.
        directory: The state directory.
        choices_path: The choices of the installation; without readable ones nobody is warned.
        environ: The client's environment.
        event: The client's name for the event, for the failure log.
        now: Epoch seconds.

    Attributes:
        is_retry: Whether a resident may have begun to handle this call, and did not answer it.
        began_at: When the client made the call, on the clock of `boot_seconds`: calls may overtake
            each other, these times do not. A program that handles a call of its own process sets
            it; else it is the time now.
    """

    is_retry = False

    def __init__(
        self,
        host: Host,
        directory: str,
        choices_path: str,
        environ: Mapping[str, str],
        *,
        event: str,
        now: float,
    ) -> None:
        self.host = host
        self.directory = StateDirectory(directory)
        self.environ = environ
        self.event = event
        self.now = now
        self.began_at = boot_seconds()
        self._windows_path = os.path.join(self.directory.path, host.name + WINDOWS_SUFFIX)
        try:
            self.installed = InstalledChoices.load(choices_path)
        except (StateError, OSError) as error:
            self.fail("", str(error))
            self.installed = InstalledChoices(choices_path)
            self.installed.audience = NOBODY

    @property
    def in_relay(self) -> bool:
        """Whether a relay runs this client; its own hooks alone get here then."""
        return bool(self.environ.get("ULTRAMON_RELAY"))

    def agent_of(self, session_id: str) -> str:
        """Return the id of the agent that a session is: in a relay the context that it runs."""
        name = self.environ.get("ULTRAMON_AGENT_ID") if self.in_relay else None
        return name or session_id

    def teller(self) -> list[Any]:
        """Return the process that prints the answer, as `is_untold` knows it."""
        return this_process()

    def is_untold(self, teller: object) -> bool:
        """Return whether the process that was to tell something has not, and will not."""
        return is_gone(teller) or (self.is_retry and teller == self.teller())

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
    ) -> HostedAgent | None:
        """Change an agent's state and store it with what has happened.

        Args:
            agent_id: The agent.
            change: Changes it; a state that was never stored has generation 0.
            create: Whether an agent without a state gets one.
            journals: Whether to store events, those left over too; a change that makes none need
                not wait for the journal.

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
            record.last_heartbeat = record.last_activity = self.now
            durable = journals and self._append(agent)
            record.seq += 1
            self.directory.replace(record, durable=durable)
            self._stored(agent)
            return agent

    def _stored(self, agent: HostedAgent) -> None:
        """Take notice of a state that was just stored; called inside the lock."""

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
        """Store the events of an agent, those left over first, and what others are told of it.

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
            problem = f"events wait in the state file: {error}"
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

    def fail(self, agent_id: str, problem: str) -> None:
        """Leave a line in the failure log."""
        from ultramon.hosts.failure_log import record

        record(self.directory.path, self.host.name, self.event, agent_id, problem, now=self.now)

    def children(self, agent_id: str) -> list[str]:
        """Return the ids of the subagents of a session that have a state."""
        prefix = f"{agent_id}."
        return [name for name in self.directory.list_ids() if name.startswith(prefix)]

    def windows(self) -> dict[str, int]:
        """Return the windows that the client reported, in tokens by model."""
        try:
            data, _ = read_private_file(self._windows_path)
            windows = compact_json.loads(data)
        except (OSError, ValueError):
            return {}
        if not isinstance(windows, dict):
            return {}
        return {m: w for m, w in windows.items() if type(w) is int and 0 < w <= 1_000_000_000}

    def learn_window(self, model: str, window_tokens: int) -> None:
        """Remember the window that the client works with for a model.

        Raises:
            StateError: The state directory is not safe to use, or the file system refused.
        """
        known = self.windows()
        if known.pop(model, None) == window_tokens:
            return
        known[model] = window_tokens
        self.directory.prepare()
        newest = dict(list(known.items())[-_MAX_WINDOWS:])
        replace_file(self._windows_path, compact_json.dumps(newest).encode("ascii"))


def _new(agent_id: str, seq: int) -> StateRecord:
    host = this_host()
    return StateRecord(agent_id, hostname=host.hostname, boot_id=host.boot_id, seq=seq)
