"""The agent behind a call of the MCP server, which outlives sessions and serves subagents too."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ultramon.cli.caller import own_ids
from ultramon.cli.exit_codes import NoCaller
from ultramon.cli.selection import find_agent_id
from ultramon.errors import AgentNotFoundError, InvalidAgentIdError, StateError
from ultramon.system.processes import ancestors, this_machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ultramon.backends.base import Backend
    from ultramon.hosts.calls.memory import HookMemory
    from ultramon.state.record import StateRecord

    Processes = set[tuple[int | None, str | None]]

CALL_ID = "claudecode/toolUseId"
"""Claude Code names the tool call in the ``_meta`` of its requests."""
THREAD_ID, SESSION_ID, _TURN = "threadId", "sessionId", "x-codex-turn-metadata"
"""Codex names the thread that calls, which is the session or a subagent of it."""
_TAIL_BYTES = 1 << 20
# Two states that name each other as successor must not be followed for ever.
_MAX_SUCCESSIONS = 100
# A host may call before its transcript holds the call: 1.87 s in all are waited for it.
_WAITS_SECONDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class CallerFinder:
    """Finds the calling agent for each call anew.

    The environment of the server is that of the moment when the host started it. A session that was
    cleared since has a successor, in the same process of the host.

    Args:
        backend: The store.
        agent: The agent as the user names it; None = by the environment, else by the processes
            that started the server.
    """

    def __init__(self, backend: Backend, agent: str | None) -> None:
        self._backend = backend
        self._agent = agent
        self._named = own_ids() if agent is None else []
        self._ancestors: Processes = set(ancestors())

    def __call__(self, meta: Mapping[str, Any]) -> str:
        """Return the id of the agent that makes a call.

        Args:
            meta: The ``_meta`` of the call.

        Raises:
            NoCaller: No agent is known.
            AgentNotFoundError: The agent that the user names is not.
        """
        if self._agent is not None:
            return find_agent_id(self._backend, self._agent)
        thread = self._thread(meta)
        if thread is not None:
            return thread.agent_id
        record = self._session()
        if record is None:
            if self._named:
                return self._named[0]
            raise NoCaller(
                "no agent: nothing says which agent this server belongs to; start it with "
                "ULTRAMON_AGENT_ID set, or with --agent"
            )
        return self._caller_within(record, meta).agent_id

    def _thread(self, meta: Mapping[str, Any]) -> StateRecord | None:
        """Return the agent that the host itself names; None where it names none that is known."""
        thread_id, session_id = meta.get(THREAD_ID), meta.get(SESSION_ID)
        if _TURN not in meta or not isinstance(thread_id, str):
            return None
        return self._load(f"{session_id}.{thread_id}") or self._load(thread_id)

    def _session(self) -> StateRecord | None:
        """Return the session that the host runs now; None where none has a state."""
        found = next(filter(None, map(self._load, self._named)), None)
        for _ in range(_MAX_SUCCESSIONS):
            if found is None or found.active:
                break
            successor = self._load(_memory(found).successor_id or "")
            if successor is None:
                break
            found = successor
        if found is not None and found.active:
            return found
        # Of sessions in one process, as after a resume, the last one that did something.
        processes = self._ancestors
        if found is not None:
            processes = {(found.pid, found.pid_started_at)}
        return max(self._sessions_of(processes), key=lambda one: one.last_activity, default=found)

    def _sessions_of(self, processes: Processes) -> Iterator[StateRecord]:
        machine = this_machine()
        for stored in self._backend.list_agents():
            record = stored.record
            if (
                record is not None
                and record.active
                and record.agent_id == record.session_id
                # A pid says which process it is only on its machine, and only since its boot.
                and record.boot_id == machine.boot_id
                and record.hostname == machine.hostname
                and (record.pid, record.pid_started_at) in processes
            ):
                yield record

    def _caller_within(self, session: StateRecord, meta: Mapping[str, Any]) -> StateRecord:
        """Return the agent of a session whose transcript holds the call.

        The host writes its transcripts while the call is on its way.

        Raises:
            NoCaller: None holds it, though there are subagents that may have made it.
        """
        call_id = meta.get(CALL_ID)
        children = list(self._children(session))
        if not children or not isinstance(call_id, str):
            return session
        mark = f'"id":"{call_id}"'.encode("utf-8", "replace")
        for seconds in _WAITS_SECONDS:
            time.sleep(seconds)
            found = [_has_written(one, mark) for one in (session, *children)]
            if any(found):
                return (session, *children)[found.index(True)]
        if found[0] is None:
            return session
        raise NoCaller(
            f"session {session.agent_id} or one of its subagents called, and no transcript says "
            "which: call again"
        )

    def _children(self, session: StateRecord) -> Iterator[StateRecord]:
        """Return the running subagents of a session; after a clear they keep their ids."""
        from ultramon.backends.local.backend import LocalBackend

        if not isinstance(self._backend, LocalBackend):
            return
        sessions = (session.agent_id, *_memory(session).predecessors)
        prefixes = tuple(f"{name}." for name in sessions)
        for name in self._backend.directory.list_ids():
            if name.startswith(prefixes):
                child = self._load(name)
                if child is not None and child.active:
                    yield child

    def _load(self, agent_id: str) -> StateRecord | None:
        try:
            return self._backend.load(agent_id).record
        except (AgentNotFoundError, InvalidAgentIdError, StateError):
            return None


def _memory(record: StateRecord) -> HookMemory:
    """Return what only the hooks of an agent's host keep."""
    from ultramon.hosts.registry import host_of_agent

    return host_of_agent(record)[1]


def _has_written(record: StateRecord, mark: bytes) -> bool | None:
    """Return whether the transcript of an agent ends with a call; None where it has none."""
    path = _memory(record).transcript_path
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return mark in file.read(_TAIL_BYTES)
    except OSError:
        return None
