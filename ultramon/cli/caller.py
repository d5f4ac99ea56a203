"""The caller: the agent in whose environment a command runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.exit_codes import NoCaller
from ultramon.cli.selection import find_agent_id
from ultramon.errors import AgentNotFoundError, InvalidAgentIdError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend

VARIABLES = ("ULTRAMON_AGENT_ID", "CLAUDE_SESSION_MANAGER_ID")
"""The second one is the older name, kept for existing setups."""
SESSION_VARIABLES = (
    "CLAUDE_CODE_SESSION_ID", "COPILOT_AGENT_SESSION_ID", "GEMINI_SESSION_ID",
    "QWEN_CODE_SESSION_ID",
)  # fmt: skip
"""Set by hosts for the commands that their agents run; in a subagent it is the session too, but for
Copilot CLI, where it names no agent then."""


def caller_id() -> str | None:
    """Return the id of the calling agent, None for a person."""
    return next((value for name in VARIABLES if (value := os.environ.get(name))), None)


def own_ids() -> list[str]:
    """Return what the environment calls the agent: the caller, then sessions of hosts."""
    return [name for name in (caller_id(), *map(os.environ.get, SESSION_VARIABLES)) if name]


def require_caller(what: str) -> str:
    """Return the id of the calling agent.

    Raises:
        NoCaller: The caller is a person.
    """
    caller = caller_id()
    if caller is None:
        raise NoCaller(f"{what} requires a managed session ({VARIABLES[0]} not set)")
    return caller


def resolve_agent(backend: Backend, agent: str | None, what: str) -> str:
    """Return the id of the agent named, else of the caller.

    Raises:
        NoCaller: There is neither.
        AgentNotFoundError: No agent has that name.
        SeveralFound: Several agents have it.
    """
    if agent is not None:
        return find_agent_id(backend, agent)
    caller = caller_id()
    if caller is None:
        raise NoCaller(f"no agent: name one, or run {what} inside a session with {VARIABLES[0]}")
    return caller


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
    own = own_ids()
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
        # It is there, and the command that needs it says why it cannot be read.
        return True
    return True
