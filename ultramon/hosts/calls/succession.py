"""After a clear the client goes on under a new session id, in the same process.

Standard library only; loaded when a session was cleared. Every step can be repeated, and all are
until the last is done: a hook may be killed at any of them.
"""

from __future__ import annotations

from ultramon.errors import AgentNotFoundError, StateError
from ultramon.hosts.calls.hosted_agent import process_of
from ultramon.hosts.calls.memory import HookMemory
from ultramon.hosts.port import CLEAR
from ultramon.hosts.transcripts.records import LastReading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.calls.store import HookStore
    from ultramon.state.record import StateRecord


def succeed(store: HookStore, record: StateRecord) -> None:
    """Give a session what belonged to the one that its process had before the clear.

    That one ends. Its subagents go on: the client keeps them, and reports them under the new id.

    Args:
        store: Where the agents are.
        record: The session after the clear.

    Raises:
        StateError: The store refused; to be called again.
    """
    session_id = record.agent_id
    before = _predecessor(store, record)
    if before is not None:
        old = store.hosted(before)
        store.update(session_id, lambda agent: agent.follow(old))
        store.move_registration(before, session_id)
        reading = _last_reading(store, old)
        store.update(before.agent_id, lambda agent: agent.give_way(session_id, reading.report))
        for child_id in store.children(before.agent_id):
            child = store.find(child_id)
            if child is not None and child.active and child.parent_id == before.agent_id:
                store.update(child_id, lambda agent: _adopt(agent, session_id))
    store.update(session_id, _finish)


def _adopt(agent: HostedAgent, parent_id: str) -> None:
    agent.record.parent_id = parent_id


def _finish(agent: HostedAgent) -> None:
    del agent.memory.is_cleared


def _predecessor(store: HookStore, record: StateRecord) -> StateRecord | None:
    """Return the session that was last at work in the process of a session; None without one."""
    found: StateRecord | None = None
    for agent_id, mark in store.directory.scan().items():
        try:
            one = store.directory.read_head(agent_id, mark)
            is_it = _is_predecessor(store, one, record)
        except (AgentNotFoundError, StateError):
            continue
        if is_it and (found is None or one.last_heartbeat > found.last_heartbeat):
            found = one
    return found


def _is_predecessor(store: HookStore, one: StateRecord, record: StateRecord) -> bool:
    if (
        record.pid is None
        or one.agent_id != one.session_id
        or one.agent_id == record.agent_id
        or process_of(one) != process_of(record)
        or one.host != store.host.name
    ):
        return False
    successor_id = HookMemory.of(one.extra.get(store.host.memory_field)).successor_id
    if successor_id is not None:
        return successor_id == record.agent_id
    return one.active or (one.exit or {}).get("reason") == CLEAR


def _last_reading(store: HookStore, old: HostedAgent) -> LastReading:
    path = old.memory.transcript_path
    try:
        if path is not None:
            return store.host.transcripts.read_last_reading(path, is_subagent=False)
    except (OSError, ValueError):
        pass
    return LastReading()
