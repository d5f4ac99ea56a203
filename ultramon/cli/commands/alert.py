"""`ultramon context alert`: the alert of the SDK, for tools that are not written in Python."""

from __future__ import annotations

from io import StringIO
from typing import Any

import click

from ultramon.cli.commands.check import find_session, session_options
from ultramon.cli.exit_codes import ExitCode
from ultramon.cli.output import json_line, print_json, say
from ultramon.cli.selection import json_option, open_store, state_dir_given
from ultramon.errors import ConfigurationError


@click.command("alert", epilog="Example: ultramon alert --command tests")
@click.option("--force", is_flag=True, help="Alert at any status.")
@click.option("--command", metavar="NAME", help="The command that ran, for its settings.")
@click.option(
    "--every",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="Check only every N runs of the command in the session.",
)
@click.option(
    "--no-alert",
    is_flag=True,
    envvar="ULTRAMON_NO_ALERT",
    show_envvar=True,
    help="Do nothing.",
)
@click.option(
    "--history", is_flag=True, help="Show the alerts so far, of the session, else of all."
)
@session_options
@json_option
def command(
    *,
    no_alert: bool,
    history: bool,
    session: str | None,
    directory: str | None,
    state_dir: str | None,
    json: bool,
    **options: Any,
) -> int:
    """Alert an agent on stderr, once per limit that it crosses.

    Ends with 1 when there was an alert, else with 0: also without a session, without data, and
    after an error. Behind a command of a shell script:

        mytool "$@"; code=$?; ultramon alert; exit $code

    With --json the outcome goes to stdout, and no words to stderr.
    """
    from ultramon import AlertConfig, check_and_alert_context

    if no_alert and not history:
        return ExitCode.OK
    path = state_dir_given(state_dir)
    try:
        session = find_session(session, directory, path)
        if history:
            _show_history(session, directory, state_dir, json=json)
            return ExitCode.OK
        config = AlertConfig()
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    outcome = check_and_alert_context(
        session=session,
        directory=directory,
        stream=StringIO() if json else None,
        config=config,
        state_dir=path,
        **options,
    )
    if json:
        print_json(outcome.to_json())
    # 1 = it has alerted, so that a shell can branch on it.
    return int(outcome.alerted)


def _show_history(
    session: str | None, directory: str | None, state_dir: str | None, *, json: bool
) -> None:
    from ultramon import check_context
    from ultramon.cli.commands.events import pages
    from ultramon.cli.event_line import event_line

    session = check_context(session=session, directory=directory).session
    line = json_line if json else event_line
    shown = 0
    for page in pages(open_store(state_dir)):
        for event in page:
            if event.get("type") == "context_alert" and session in (None, event.get("agentId")):
                click.echo(line(event))
                shown += 1
    if not shown and not json:
        say("no alerts" if session is None else f"no alerts of {session}")
