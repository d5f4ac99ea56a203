"""`ultramon host mcp`: tools for the agent that a host runs, over stdin and stdout."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.exit_codes import CommandFailed
from ultramon.cli.extras import extra_needed
from ultramon.cli.resumption import resume_command
from ultramon.cli.selection import open_store, state_dir_option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ultramon.backends.base import Backend
    from ultramon.mcp.own_agent import OwnAgent


@click.command("mcp", epilog="Example: ultramon host mcp --agent scout-2")
@click.option(
    "--agent",
    metavar="AGENT",
    help="The agent that calls.  [default: ULTRAMON_AGENT_ID, else the session that started this]",
)
@state_dir_option()
def command(*, agent: str | None, state_dir: str | None) -> None:
    """Serve the Model Context Protocol to a client until it closes stdin.

    Its agent gets the tools context_status, will_it_fit, plan, task_done and hand_off,
    all about itself and its subagents. `claude mcp add ultramon -- ultramon host mcp` sets it up;
    docs/mcp.md shows other clients.
    """
    with extra_needed("ultramon host mcp", "mcp", "mcp 2.3 or newer"):
        from ultramon.mcp.server import make_server
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
        return OwnAgent(backend, agent_id, SYSTEM_CLOCK, resume_command)

    return find
