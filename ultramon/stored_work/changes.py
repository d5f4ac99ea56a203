"""One change of a stored agent, inside its lock."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ultramon.errors import AgentWorkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.backends.base import Backend
    from ultramon.state.record import StateRecord

_LOCK_SECONDS = 5.0
"""Hooks hold the lock for some milliseconds; a caller can wait for several of them."""
_PROGRAMS = {"sdk": "program", "posted": "posted"}
"""By host, why no other process may change the state."""


@contextmanager
def change_state(backend: Backend, agent_id: str, now: float) -> Iterator[StateRecord]:
    """Give an agent's state to be changed; store it when the block ends without an error.

    All of it happens inside the agent's lock, on the state as it is then: hooks of the same session
    may run at the same time, and no generation can begin meanwhile.

    Args:
        backend: The store.
        agent_id: The agent.
        now: Epoch seconds.

    Raises:
        AgentNotFoundError: It has no state.
        AgentWorkError: It has ended, or its state belongs to a running program.
        StateError: The state could not be read, locked or written.
    """
    from ultramon.backends.local.backend import LocalBackend
    from ultramon.state.record import refuse_newer

    # Before the lock, which would leave files behind for an agent without a state.
    known = backend.load(agent_id).record
    if not isinstance(backend, LocalBackend):
        host = "sdk" if known is None else known.host
        raise AgentWorkError(agent_id, _PROGRAMS.get(host, "program"))
    directory = backend.directory
    with directory.locked(agent_id, _LOCK_SECONDS):
        record = directory.read_to_replace(agent_id)
        # A state of a newer version may have fields that would be lost here.
        refuse_newer(record, directory.file(agent_id))
        if record.host in _PROGRAMS:
            raise AgentWorkError(agent_id, _PROGRAMS[record.host])
        if not record.active:
            raise AgentWorkError(agent_id, "ended")
        yield record
        record.seq += 1
        record.last_heartbeat = record.last_activity = now
        directory.replace(record, durable=True)
