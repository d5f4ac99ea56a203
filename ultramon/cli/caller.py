"""The caller: the agent in whose environment a command runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ultramon.cli.output import CommandFailed, ExitCode
from ultramon.cli.selection import find_agent_id

if TYPE_CHECKING:
    from ultramon.backends.base import Backend

VARIABLES = ("ULTRAMON_AGENT_ID", "CLAUDE_SESSION_MANAGER_ID")
"""The second one is the older name, kept for existing setups."""


class NoCaller(CommandFailed):
    """A command needs an agent, and neither caller nor argument names one."""

    exit_code = int(ExitCode.USAGE)


def caller_id() -> str | None:
    """Return the id of the calling agent, None for a person."""
    return next((value for name in VARIABLES if (value := os.environ.get(name))), None)


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
