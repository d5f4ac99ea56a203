"""`ultramon stop`: asks an agent, from another terminal, to hand over its work."""

from __future__ import annotations

import click

from ultramon.cli.agent_list import look_at
from ultramon.cli.exit_codes import CommandFailed
from ultramon.cli.output import field, print_result
from ultramon.cli.selection import find_agent, open_store, store_options
from ultramon.state.agent_rows import name_of


@click.command("stop", epilog="Example: ultramon stop 2a89 --hand-over")
@click.argument("agent")
@click.option(
    "--hand-over",
    is_flag=True,
    required=True,
    expose_value=False,
    help="Ask it to hand over: it finishes its step, leaves notes and ends its turn.",
)
@store_options
def command(*, agent: str, state_dir: str | None, json: bool) -> None:
    """Ask AGENT to hand over its work.

    A program that uses the SDK reads that within a second, a coding agent with its next tool call,
    as a sentence in its conversation. Nothing is ended by force.

    AGENT is an id, the beginning of one, or a label.
    """
    from ultramon.cli.handover import ask_to_hand_over

    backend = open_store(state_dir)
    seen, _ = look_at([find_agent(backend, agent)])
    if not seen:
        raise CommandFailed(f"the state of {field(agent)} cannot be read")
    (one,) = seen
    ask_to_hand_over(backend, one)
    words = f"asked {field(str(name_of(one.record)))} to hand over"
    print_result({"agentId": one.record.agent_id, "asked": True}, words, as_json=json)
