"""`ultramon mcp`: tools for the agent that a client runs, over stdin and stdout."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.commands.resume import resume_command_of_session
from ultramon.cli.output import CommandFailed
from ultramon.cli.selection import open_store, state_dir_option
from ultramon.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ultramon.backends.base import Backend
    from ultramon.mcp.own_agent import OwnAgent


@click.command("mcp")
@click.option(
    "--agent",
    metavar="AGENT",
    help="The agent that calls.  [default: ULTRAMON_AGENT_ID, else the session that started this]",
)
@state_dir_option()
def command(*, agent: str | None, state_dir: str | None) -> None:
    """Serve the Model Context Protocol to a client until it closes stdin.

    The client's agent gets the tools context_status, will_it_fit, plan, task_done and hand_off,
    all about itself and its subagents. `claude mcp add ultramon -- ultramon mcp` sets it up;
    docs/mcp.md shows other clients.
    """
    make_server = _import_server()
    backend = open_store(state_dir)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    make_server(agent_finder(backend, agent)).run()


def agent_finder(backend: Backend, agent: str | None) -> Callable[[Mapping[str, Any]], OwnAgent]:
    """Return a function that finds the agent behind a call.

    Args:
        backend: The store.
        agent: As for `CallerFinder`.
    """
    from ultramon.cli.mcp_caller import CallerFinder
    from ultramon.mcp.own_agent import OwnAgent
    from ultramon.system.clock import SYSTEM_CLOCK

    find_id = CallerFinder(backend, agent)

    def find(meta: Mapping[str, Any]) -> OwnAgent:
        try:
            agent_id = find_id(meta)
        except CommandFailed as error:
            raise LookupError(error.message) from error
        return OwnAgent(backend, agent_id, SYSTEM_CLOCK, resume_command_of_session)

    return find


def _import_server() -> Callable[..., Any]:
    try:
        from ultramon.mcp.server import make_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise MissingExtraError("ultramon mcp", "mcp 2.3 or newer", "mcp") from error
    return make_server
