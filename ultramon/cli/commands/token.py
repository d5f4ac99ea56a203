"""`ultramon token`: what agents and scripts prove to a server who they are with."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ultramon.cli.caller import caller_id, resolve_agent
from ultramon.cli.output import ExitCode, print_json, say
from ultramon.cli.selection import directory_of, json_option, open_store, state_dir_option
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from ultramon.backends.base import Backend

ACTIONS = ("mint", "revoke", "admin", "hook")


@click.command("token")
@click.argument("action", type=click.Choice(ACTIONS), metavar="mint|revoke|admin|hook")
@click.argument("agent", required=False)
@click.option(
    "--file",
    "path",
    # The name that click would make up is the one by which an agent finds its own token: a child's
    # would be written over it.
    envvar="ULTRAMON_TOKEN_MINT_FILE",
    allow_from_autoenv=False,
    show_envvar=True,
    type=click.Path(dir_okay=False),
    help="Write the token to this file, readable by this user alone, instead of printing it.",
)
@state_dir_option()
@json_option
def command(
    *, action: str, agent: str | None, path: str | None, state_dir: str | None, json: bool
) -> ExitCode:
    """Make or revoke the token of an agent, or print where a secret of the server is.

    `mint` prints a token once; with --file it prints the line that hands the file to a process.
    The token is good until the agent ends or is taken over, and for a day after its last use.
    `revoke` makes all tokens of the agent worthless. AGENT is an id, the beginning of one, or a
    label; without it the caller itself is meant. Where ULTRAMON_AGENT_ID names the caller, only
    the agent itself and its direct parent may; a person may do everything.

    `admin` and `hook` print the path of the file with the token of the admin, or with the secret
    of hook scripts, which is made where it is missing.
    """
    source = click.get_current_context().get_parameter_source("path")
    if action != "mint" and source is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"{action} writes no token: --file goes with mint only")
    if action in ("admin", "hook"):
        if agent is not None:
            raise click.UsageError(f"{action} is of the server and takes no agent")
        return _print_secret_path(action, state_dir, as_json=json)
    backend = open_store(state_dir)
    agent_id = resolve_agent(backend, agent, f"ultramon token {action}")
    if action == "mint":
        return _mint(agent_id, backend, path, as_json=json)
    from ultramon.tokens import revoke_tokens

    revoked = revoke_tokens(agent_id, caller_id(), backend=backend)
    if json:
        print_json({"agentId": agent_id, "revoked": revoked})
    else:
        tokens = "1 token" if revoked == 1 else f"{revoked} tokens"
        click.echo(f"Revoked {tokens} of {agent_id}")
    return ExitCode.OK


def _mint(agent_id: str, backend: Backend, path: str | None, *, as_json: bool) -> ExitCode:
    from ultramon.tokens import TOKEN_FILE, mint_token, write_token

    token = mint_token(agent_id, caller_id(), backend=backend)
    if path is None:
        if as_json:
            print_json({"agentId": agent_id, "token": token})
        else:
            click.echo(token)
        return ExitCode.OK
    path = os.path.abspath(path)
    write_token(path, token)
    if as_json:
        print_json({"agentId": agent_id, "path": path})
    else:
        say(f"The token of {agent_id} is in {path}")
        click.echo(sanitize(f"export {TOKEN_FILE}={shlex.quote(path)}"))
    return ExitCode.OK


def _print_secret_path(action: str, state_dir: str | None, *, as_json: bool) -> ExitCode:
    from ultramon.tokens import ADMIN_TOKEN, HOOK_SECRET, secret_path, server_secret

    directory = directory_of(open_store(state_dir))
    name = ADMIN_TOKEN if action == "admin" else HOOK_SECRET
    server_secret(directory, name)
    path = secret_path(directory, name)
    if as_json:
        print_json({"path": path})
    else:
        click.echo(sanitize(path))
    return ExitCode.OK
