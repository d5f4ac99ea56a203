"""Ends sessions whose host process is gone, as its files say; never on a hook's path.

Some hosts call no hook where a session ends, as after a request that was too large. Then only
the host's own files tell such a session from one that was killed, which stays lost.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError, StateError
from ultramon.hosts.transcripts.records import LastReading
from ultramon.state.liveness import CLOCK_SKEW_SECONDS, judge
from ultramon.state.record import host_memory
from ultramon.system.processes import this_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.calls.store import HookStore
    from ultramon.hosts.port import Host
    from ultramon.hosts.transcripts.records import SessionEnd
    from ultramon.state.record import StateRecord

LAST_HOOK_SECONDS = 60.0
"""So long after the end of its host the hook of a failed turn may report: some do not wait."""
_EVENT = "process gone"
"""In the failure log, in the place of a hook's event."""


class _ChangedError(Exception):
    """The agent is not the one that was judged: another process has changed it."""


class GoneSessions:
    """Ends sessions of one store. Each is looked at once, until a hook reports it again.

    Args:
        backend: Where the agents are. Hooks know state directories only: in another store nothing
            is done.
    """

    def __init__(self, backend: object) -> None:
        self._backend = backend
        self._seen: set[tuple[str, int, int]] = set()

    def end(self, agents: Iterable[StateRecord]) -> bool:
        """End the sessions of agents whose process is gone; return whether one was ended.

        Args:
            agents: Sessions and subagents with that verdict; their heads will do.
        """
        sessions = {
            str(one.session_id): None
            for one in agents
            if one.session_id and f"{one.agent_id}.".startswith(f"{one.session_id}.")
        }
        return bool(sessions) and any([self._end(session_id) for session_id in sessions])

    def _end(self, session_id: str) -> bool:
        # Few looks find such a session: the others need not load any of this.
        from ultramon.backends.local.backend import LocalBackend

        if not isinstance(self._backend, LocalBackend):
            return False
        directory = self._backend.directory
        try:
            record = directory.read(session_id)
            life = (session_id, record.generation, record.seq)
            if life in self._seen or not _is_gone(record):
                return False
            # Once a life: a transcript that says nothing would be read at every look.
            self._seen.add(life)
            return end_session(directory.path, record)
        except (ArithmeticError, ConfigurationError, OSError, StateError, ValueError):
            return False  # no session of a host, or nothing can be read: it stays lost


def _is_gone(record: StateRecord) -> bool:
    return record.active and judge(record, None, 0.0, this_machine()).is_gone


def end_session(directory: str, record: StateRecord) -> bool:
    """End a session whose process is gone, and its subagents, if it says itself how it ended.

    Args:
        directory: The state directory.
        record: The session's state.

    Raises:
        ConfigurationError: Its host is not known here.
        OSError: Its transcript cannot be read.
        StateError: A state could not be stored; that of the session is the first one.
        ValueError: Its transcript is no regular file.
    """
    from ultramon.hosts.calls.hosted_agent import WAITING
    from ultramon.hosts.calls.memory import HookMemory
    from ultramon.hosts.calls.store import HookStore
    from ultramon.hosts.installed_choices import choices_path
    from ultramon.hosts.registry import find_host

    memory = HookMemory.of(host_memory(record))
    path, environ = memory.transcript_path, memory.environment or {}
    if path is None or environ.get("ULTRAMON_RELAY"):
        return False  # a relay knows how its contexts end
    host = find_host(record.host)
    end = host.transcripts.read_session_end(path, environ)
    now = time.time()
    # What a hook has reported since is of a later turn.
    earliest = record.last_activity - (LAST_HOOK_SECONDS if memory.failed_with else 0.0)
    if end is None or not earliest <= end.at <= now + CLOCK_SKEW_SECONDS:
        return False
    if not (end.error or end.cuts_turn) and record.phase != WAITING:
        return False  # no hook saw its last turn end
    choices = choices_path(directory, host.name)
    ended_at = min(max(end.at, record.last_activity), now)
    store = HookStore(host, directory, choices, environ, event=_EVENT, now=ended_at)
    if not _update(store, record, _finish(host, path, end)):
        return False
    process = record.pid, record.pid_started_at
    for session_id in (record.agent_id, *memory.predecessors):
        for child_id in store.children(session_id):
            child = store.find(child_id)
            # A session that was cleared may have been resumed in another process.
            if child is not None and (child.pid, child.pid_started_at) == process:
                _update(store, child, _end_child(host, child))
    return True


def _update(store: HookStore, seen: StateRecord, change: Callable[[HostedAgent], None]) -> bool:
    """Change an agent unless it has ended, or works again: a person may have resumed it."""

    def change_if_same(agent: HostedAgent) -> None:
        record = agent.record
        if not record.active or (record.generation, record.seq) != (seen.generation, seen.seq):
            raise _ChangedError
        change(agent)

    try:
        return store.update(seen.agent_id, change_if_same, create=False) is not None
    except _ChangedError:
        return False


def _finish(host: Host, path: str, end: SessionEnd) -> Callable[[HostedAgent], None]:
    reading = host.transcripts.read_last_reading(path, is_subagent=False)

    def finish(agent: HostedAgent) -> None:
        agent.follow_compaction(reading)
        agent.take(reading.report, reading.place)
        if end.cuts_turn:
            # A hook may have said what the turn failed with.
            agent.finish("turn failed", cuts_turn=True)
        else:
            agent.note_failure(end.error)
            agent.finish("request failed" if end.error else "turn completed")

    return finish


def _end_child(host: Host, child: StateRecord) -> Callable[[HostedAgent], None]:
    from ultramon.hosts.calls.memory import HookMemory

    reading = LastReading()
    path = HookMemory.of(host_memory(child)).transcript_path
    if path is not None:
        with suppress(OSError, ValueError):  # it ends with its session all the same
            reading = host.transcripts.read_last_reading(path, is_subagent=True)
    return lambda agent: agent.end_by(reading, "session ended")
