"""A session after a clear: the host continues under a new session id, in the same process.

Standard library only; loaded when a session was cleared. Every step can be repeated, and all are
until the last is done: a hook may be killed at any of them. A host that does not name its process
is followed by its folder and the time.
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


NEXT_SECONDS = 10.0
"""So soon after a clear its successor starts, where the host does not name its process."""


def succeed(store: HookStore, record: StateRecord) -> None:
    """Give a session what belonged to the one that its process had before the clear.

    That one ends. Its subagents continue: the host keeps them, and reports them under the new id.

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
        # A recipient follows the session, not its id.
        store.move_registration(before, session_id)
        reading = _last_reading(store, old)
        store.update(before.agent_id, lambda agent: agent.end_for(session_id, reading.report))
        for child_id in store.children(before.agent_id):
            child = store.find(child_id)
            if child is not None and child.active and child.parent_id == before.agent_id:
                store.update(child_id, lambda agent: _adopt(agent, session_id))
    elif record.pid is None and store.now - record.started_at <= NEXT_SECONDS:
        return  # the end of the one before may be reported a moment later
    store.update(session_id, _finish)


def _adopt(agent: HostedAgent, parent_id: str) -> None:
    agent.record.parent_id = parent_id


def _finish(agent: HostedAgent) -> None:
    del agent.memory.is_cleared


def _predecessor(store: HookStore, record: StateRecord) -> StateRecord | None:
    """Return the session that was last at work in the process of a session; None without one.

    Without a process it is the only one that was cleared in the folder at that time.
    """
    found: list[StateRecord] = []
    for agent_id, mark in store.directory.scan().items():
        try:
            one = store.directory.read_head(agent_id, mark)
            if _is_predecessor(store, one, record):
                found.append(one)
        except (AgentNotFoundError, StateError):
            continue
    # Of two sessions cleared at once in one folder neither can be named: none is followed.
    if record.pid is None and len(found) > 1:
        found = [one for one in found if _successor_id(store, one) == record.agent_id]
    return max(found, key=lambda one: one.last_heartbeat, default=None)


def _is_predecessor(store: HookStore, one: StateRecord, record: StateRecord) -> bool:
    if (
        one.agent_id != one.session_id
        or one.agent_id == record.agent_id
        or process_of(one) != process_of(record)
        or one.host != store.host.name
    ):
        return False
    successor_id = _successor_id(store, one)
    if successor_id is not None:
        return successor_id == record.agent_id
    is_cleared = (one.exit or {}).get("reason") == CLEAR
    if record.pid is not None:
        return one.active or is_cleared or not store.host.dialect.names_clear
    is_next = abs(record.started_at - one.last_heartbeat) <= NEXT_SECONDS
    return is_cleared and is_next and record.cwd is not None and one.cwd == record.cwd


def _successor_id(store: HookStore, one: StateRecord) -> str | None:
    return HookMemory.of(one.extra.get(store.host.memory_field)).successor_id


def _last_reading(store: HookStore, old: HostedAgent) -> LastReading:
    path = old.memory.transcript_path
    try:
        if path is not None:
            return store.host.transcripts.read_last_reading(path, is_subagent=False)
    except (OSError, ValueError):
        pass
    return LastReading()
