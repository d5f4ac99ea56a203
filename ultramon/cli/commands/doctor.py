"""`ultramon doctor`: what is wrong with an installation, and what to do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from ultramon import __version__
from ultramon.cli.commands.install import chosen_directory
from ultramon.cli.findings import print_findings
from ultramon.cli.output import ExitCode, plural, say
from ultramon.cli.selection import json_option, state_dir_option
from ultramon.errors import StateError

if TYPE_CHECKING:
    from ultramon.hosts.doctor import SeenServer


@click.command("doctor")
@click.argument("host", required=False)
@state_dir_option()
@json_option
def command(*, host: str | None, state_dir: str | None, json: bool) -> ExitCode:
    """Check whether coding agents report themselves, and say what to do where not.

    Looks at the client's settings for this directory, the commands in them, the state directory,
    the failures of hooks, and the sessions that never reported; with HOST, such as codex, for this
    client only. Writes one file into the state directory and deletes it again; changes nothing
    else. Fails when something is a problem; a warning is none.
    """
    from ultramon.hosts.doctor import DoctorContext, examine
    from ultramon.system.clock import SYSTEM_CLOCK

    directory = chosen_directory(state_dir)
    now = SYSTEM_CLOCK.now()
    context = DoctorContext(os.getcwd(), directory, now, _server(directory), __version__)
    problems, warnings = print_findings(examine(context, host), as_json=json)
    if problems:
        say(f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}")
        return ExitCode.FAILURE
    if warnings and not json:
        say(f"{plural(warnings, 'warning')}, no problem")
    return ExitCode.OK


def _server(directory: str) -> SeenServer:
    """Look who serves the state directory; that needs nothing of the extra."""
    from ultramon.hosts.doctor import SeenServer
    from ultramon.server.server_file import read_server_file

    try:
        facts = read_server_file(directory)
    except StateError as error:
        return SeenServer(None, problem=str(error))
    return SeenServer(facts["url"], str(facts.get("version"))) if facts else SeenServer(None)
