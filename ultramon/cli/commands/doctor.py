"""`ultramon doctor`: what is wrong with an installation, and what to do."""

from __future__ import annotations

import click

from ultramon.cli.exit_codes import ExitCode
from ultramon.cli.output import plural, say
from ultramon.cli.selection import (
    chosen_directory,
    json_option,
    project_directory,
    state_dir_option,
)
from ultramon.cli.settings_findings import settings_findings
from ultramon.cli.views.findings import print_findings


@click.command("doctor", epilog="Example: ultramon doctor codex")
@click.argument("host", required=False)
@state_dir_option()
@json_option
def command(*, host: str | None, state_dir: str | None, json: bool) -> ExitCode:
    """Check whether coding agents report themselves, or why not.

    Looks at the host's settings for this directory, the commands in them, the state directory,
    the failures of hooks, the sessions that never reported, and which file or variable sets what of
    ultramon; with HOST, such as codex, for this host only. Writes one file into the state
    directory and deletes it again; changes nothing else. Fails when something is a problem; a
    warning is none.
    """
    from ultramon.hosts.doctor_context import DoctorContext
    from ultramon.hosts.examine.doctor import examine
    from ultramon.server.earlier_log import find_earlier_log
    from ultramon.share.report import findings as share_findings
    from ultramon.system.clock import SYSTEM_CLOCK

    directory = chosen_directory(state_dir)
    now = SYSTEM_CLOCK.now()
    context = DoctorContext(project_directory(), directory, now)
    findings = [
        *examine(context, host),
        *find_earlier_log(directory),
        *share_findings(directory, now),
        *settings_findings(),
    ]
    problems, warnings = print_findings(findings, as_json=json)
    if problems:
        say(f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}")
        return ExitCode.FAILURE
    if warnings and not json:
        say(f"{plural(warnings, 'warning')}, no problem")
    return ExitCode.OK
