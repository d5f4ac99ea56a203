"""`ultramon demo`: processes that fill small windows with real text and hand over their work."""

from __future__ import annotations

import shlex
import tempfile

import click

from ultramon.cli.exit_codes import CommandFailed, ExitCode
from ultramon.cli.output import plural, print_json, say
from ultramon.cli.selection import json_option, open_shared_store, state_dir_given, state_dir_option


@click.command("demo", epilog="Example: ultramon demo --agents 4 --kill")
@click.option(
    "--agents",
    type=click.IntRange(1, 16),
    default=3,
    help="Number of agents that work at the same time.",
)
@click.option("--items", type=click.IntRange(1, 500), default=90, help="Number of files to read.")
@click.option(
    "--kill", is_flag=True, help="Kill (SIGKILL) as many workers as work at the same time."
)
@state_dir_option("a temporary one")
@json_option
def command(*, agents: int, items: int, kill: bool, state_dir: str | None, json: bool) -> ExitCode:
    """Watch agents fill their windows and hand over their work.

    Every agent is a process that reads files of Python's standard library into a window of 24,000
    tokens. Odd agents hand off at the warning (70 %), even ones before the file that would reach
    the critical level (85 %), and Fleet.supervise() starts a successor for each. With --kill some
    agents are killed before they can hand off; their handoff is rebuilt from their stored state.

    At the end the result is checked against notes of the workers and the stored records: every file
    must have been read exactly once, else the command fails. A kill may make one file begin again.

    No model is called, and the demo ends within seconds. With --state-dir the records stay.
    """
    from ultramon.backends.opening import open_backend
    from ultramon.cli.demo.orchestrator import read_all, report_to, standard_library_files
    from ultramon.cli.demo.proof import prove
    from ultramon.cli.views.demo_screen import print_proof, shown
    from ultramon.fleet.fleet import Fleet
    from ultramon.system.environment import disabled
    from ultramon.system.ids import random_hex

    if disabled():
        raise CommandFailed("ULTRAMON_DISABLED is set: agents would leave no records to show")
    names = standard_library_files(items)
    if len(names) < items:
        say(f"installed: only {plural(len(names), 'file')}")
    if not names:
        raise CommandFailed("the sources of the standard library are not installed")
    with tempfile.TemporaryDirectory(prefix="ultramon-demo-") as folder:
        if state_dir is None:
            backend = open_backend(f"{folder}/state")
        else:
            backend = open_shared_store(state_dir)
        fleet = Fleet(
            # Its agents are an example, and no part of what a user's metrics show.
            f"demo-{random_hex(2)}",
            backend=backend,
            poll_interval_seconds=0.1,
            otel=False,
        )
        with shown(backend, fleet.run_name, quiet=json) as show:
            report_to(show, fleet)
            workers = min(agents, len(names))
            result = read_all(fleet, names, folder, agents=workers, kills=agents if kill else 0)
            if result.stopped == "interrupted":
                raise KeyboardInterrupt
            # Its reader is gone: answered as every closed pipe.
            if result.stopped == "stopped":
                raise BrokenPipeError
        summary = prove(backend, names, result, folder)
    if kill and not result.killed:
        say("no worker was met in the middle of its work: none was killed")
    if json:
        print_json(summary)
    else:
        print_proof(result, summary["problems"])
        if state_dir is None:
            say("the records are gone; `ultramon demo --state-dir DIR` keeps them")
        else:
            say(f"the records stay: {_line_that_shows(result.run, state_dir)}")
    return ExitCode.FAILURE if summary["problems"] else ExitCode.OK


def _line_that_shows(run: str, state_dir: str) -> str:
    """Return the command that shows the agents of a run again."""
    given = state_dir_given(state_dir)
    where = "" if given is None else f" --state-dir {shlex.quote(given)}"
    return f"ultramon status --all --run {run}{where}"
