"""An agent's stored state, changed by a command that the agent itself runs in a shell."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.caller import VARIABLES, NoCaller, caller_id
from ultramon.cli.output import CommandFailed
from ultramon.cli.selection import find_agent_id
from ultramon.errors import AgentNotFoundError, InvalidAgentIdError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ultramon.backends.base import Backend
    from ultramon.state.record import StateRecord

SESSION_VARIABLE = "CLAUDE_CODE_SESSION_ID"
"""Set by Claude Code for the commands that its agents run; in a subagent it is the session too."""
_LOCK_SECONDS = 5.0
"""Hooks hold the lock for some milliseconds; a command can wait for several of them."""
_PROGRAMS = {
    "sdk": "its program keeps the state: there, monitor.plan(), monitor.task() and "
    "monitor.hand_off() record tasks and handoffs",
    "posted": "the server that takes its posts keeps the state, and no plan",
}


def agent_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--agent`` to a command."""
    text = f"The agent: an id, the beginning of one, or a label.  [default: {VARIABLES[0]}, "
    text += "else the coding-agent session that runs the command]"
    return click.option("--agent", metavar="AGENT", help=text)(command)


def find_own_id(backend: Backend, agent: str | None, what: str) -> str:
    """Return the id of the agent named, else of the agent that runs this command.

    An orchestrator may have named a coding agent that reports itself under its session's id: of
    both ids the first one that has a state counts.

    Raises:
        NoCaller: There is neither.
        AgentNotFoundError: No agent has that name.
        SeveralFound: Several agents have it.
    """
    if agent is not None:
        return find_agent_id(backend, agent)
    own = [name for name in (caller_id(), os.environ.get(SESSION_VARIABLE)) if name]
    if not own:
        raise NoCaller(
            f"no agent: give --agent, or run {what} inside an agent, with {VARIABLES[0]} set"
        )
    return next((name for name in own if _is_known(backend, name)), own[0])


def _is_known(backend: Backend, agent_id: str) -> bool:
    try:
        backend.load(agent_id)
    except (AgentNotFoundError, InvalidAgentIdError):
        return False
    except StateError:
        return True
    return True


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
        CommandFailed: It has ended, or its state belongs to a running program.
        StateError: The state could not be read, locked or written.
    """
    from ultramon.backends.local.backend import LocalBackend
    from ultramon.state.record import refuse_newer

    # A lock would leave files of an agent that nobody knows.
    known = backend.load(agent_id).record
    if not isinstance(backend, LocalBackend):
        host = "sdk" if known is None else known.host
        raise CommandFailed(f"agent {agent_id}: {_PROGRAMS.get(host, _PROGRAMS['sdk'])}")
    directory = backend.directory
    with directory.locked(agent_id, _LOCK_SECONDS):
        record = directory.read_to_replace(agent_id)
        refuse_newer(record, directory.file(agent_id))
        if record.host in _PROGRAMS:
            raise CommandFailed(f"agent {agent_id}: {_PROGRAMS[record.host]}")
        if not record.active:
            raise CommandFailed(f"agent {agent_id} has ended: nothing of it is changed any more")
        yield record
        record.seq += 1
        record.last_heartbeat = record.last_activity = now
        directory.replace(record, durable=True)
