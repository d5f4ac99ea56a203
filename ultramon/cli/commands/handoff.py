"""`ultramon task handoff`: leaves the work of an agent that works in a shell to a successor."""

from __future__ import annotations

import sys

import click

from ultramon.cli.caller import agent_option, find_own_id
from ultramon.cli.exit_codes import ExitCode
from ultramon.cli.output import plural, print_json, say
from ultramon.cli.resumption import resume_command
from ultramon.cli.selection import open_store, store_options

_MAX_STDIN_CHARS = 1 << 20


@click.command("handoff", epilog="Example: ultramon task handoff --notes 'the parser is half done'")
@click.option("--notes", metavar="TEXT", help="What was learned; `-` reads it from stdin.")
@agent_option
@store_options
def command(*, notes: str | None, agent: str | None, state_dir: str | None, json: bool) -> ExitCode:
    """Leave a handoff record for a successor, and print its id.

    The plan says what is done, may be half done and is left. Fleets get the record as an event.
    The agent continues until it stops by itself.
    """
    from ultramon.stored_work.handoff import leave_handoff
    from ultramon.system.clock import SYSTEM_CLOCK

    if notes == "-":
        notes = sys.stdin.read(_MAX_STDIN_CHARS)
    backend = open_store(state_dir)
    agent_id = find_own_id(backend, agent, "ultramon task handoff")
    handoff, record = leave_handoff(
        backend,
        agent_id,
        SYSTEM_CLOCK.now(),
        notes=notes,
        resume_command=resume_command,
    )
    if json:
        print_json(handoff.to_json())
        return ExitCode.OK
    click.echo(handoff.handoff_id)
    # The record lacks the names of tasks that the state only counts.
    done, begun = record.tasks_completed, len(handoff.interrupted)
    left = (record.tasks_total or 0) - done - begun
    say(f"{plural(done, 'task')} done, {begun:,} begun, {left:,} left")
    return ExitCode.OK
