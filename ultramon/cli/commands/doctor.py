"""`ultramon doctor`: what is wrong with an installation, and what to do."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import click

from ultramon import __version__
from ultramon.cli.commands.install import chosen_directory
from ultramon.cli.output import ExitCode, plural, print_json, sanitize_values, say
from ultramon.cli.selection import json_option, state_dir_option
from ultramon.errors import StateError
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from ultramon.hosts.doctor import SeenServer

_MAX_LINE_CHARS = 2_000


@click.command("doctor")
@state_dir_option()
@json_option
def command(*, state_dir: str | None, json: bool) -> ExitCode:
    """Check whether coding agents report themselves, and say what to do where not.

    Looks at the client's settings for this directory, the commands in them, the state directory,
    the failures of hooks, and the sessions that never reported. Writes one file into the state
    directory and deletes it again; changes nothing else. Fails when something is a problem; a
    warning is none.
    """
    from ultramon.hosts.doctor import PROBLEM, WARNING, DoctorContext, examine
    from ultramon.system.clock import SYSTEM_CLOCK

    directory = chosen_directory(state_dir)
    context = DoctorContext(
        os.getcwd(),
        directory,
        SYSTEM_CLOCK.now(),
        server=_server(directory),
        version=__version__,
    )
    findings = examine(context)
    count = Counter(finding.status for finding in findings)
    if json:
        print_json(
            {
                "findings": [sanitize_values(finding._asdict()) for finding in findings],
                "problems": count[PROBLEM],
                "warnings": count[WARNING],
            }
        )
    else:
        for finding in findings:
            cure = f"; {finding.cure}" if finding.cure else ""
            line = f"{finding.status:<8} {finding.check}: {finding.message}{cure}"
            click.echo(sanitize(line, max_chars=_MAX_LINE_CHARS))
    if count[PROBLEM]:
        say(f"{plural(count[PROBLEM], PROBLEM)}, {plural(count[WARNING], WARNING)}")
        return ExitCode.FAILURE
    if count[WARNING] and not json:
        say(f"{plural(count[WARNING], WARNING)}, no problem")
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
