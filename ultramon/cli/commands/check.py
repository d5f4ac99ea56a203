"""`ultramon context check`: the status of a session's window as an exit code."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ultramon.cli.exit_codes import ExitCode
from ultramon.cli.output import print_json, say
from ultramon.cli.selection import (
    find_agent_id,
    json_option,
    open_store,
    state_dir_given,
    state_dir_option,
)
from ultramon.errors import ConfigurationError, UltramonError

if TYPE_CHECKING:
    from collections.abc import Callable


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a session: ``--session``, ``--directory``, ``--state-dir``."""
    command = state_dir_option()(command)
    command = click.option(
        "--directory",
        metavar="DIR",
        envvar="ULTRAMON_ALERT_DIR",
        show_envvar=True,
        help="The project directory.  [default: .ultramon]",
    )(command)
    return click.option(
        "--session",
        metavar="ID",
        envvar="ULTRAMON_AGENT_ID",
        show_envvar=True,
        help="The session.  [default: the one in .current-session of the project directory]",
    )(command)


def find_session(session: str | None, directory: str | None, state_dir: str | None) -> str | None:
    """Return the session's id; on the command line a label or the start of an id will do."""
    from ultramon import check_context

    source = click.get_current_context().get_parameter_source("session")
    if not session or source is not ParameterSource.COMMANDLINE:
        return session
    # A session of a project is no agent: it has readings and neither label nor state.
    if check_context(session=session, directory=directory, state_dir=state_dir).source:
        return session
    with suppress(UltramonError):
        session = find_agent_id(open_store(state_dir), session)
    return session


@click.command("check", epilog="Example: ultramon check --session scout-2")
@session_options
@json_option
@click.option("--quiet", is_flag=True, help="Print nothing.")
def command(
    *, session: str | None, directory: str | None, state_dir: str | None, json: bool, quiet: bool
) -> ExitCode:
    """Return the status of a session's window as the exit code.

    0 ok, 50 warning (70 % and more), 51 caution (85 %), 52 critical (90 %), 53 emergency (95 %), 54
    stale: no data, or too old. These are the default limits of alerts; [levels] of ultramon.toml
    moves the lower two. Earlier alerts make no difference, and nothing is stored.
    """
    from ultramon import AlertConfig, check_context
    from ultramon.alerts.rendering import level_sentence, numbers

    state_dir = state_dir_given(state_dir)
    try:
        session = find_session(session, directory, state_dir)
        config = AlertConfig()
        outcome = check_context(
            session=session, directory=directory, config=config, state_dir=state_dir
        )
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    status = outcome.status or "stale"
    code = ExitCode.of(status)
    if quiet:
        return code
    if config.refusal:
        say(config.refusal)
    if json:
        shown = outcome.to_json()
        del shown["alerted"]
        print_json({**shown, "exitCode": int(code)})
        return code
    said = level_sentence(outcome)
    line = status if outcome.percentage is None else f"{status}: {numbers(outcome)}"
    click.echo(f"{line}; {said}" if said else line)
    if outcome.reason:
        say(outcome.reason)
    return code
