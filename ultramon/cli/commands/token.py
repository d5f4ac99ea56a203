"""`ultramon token`: tokens of agents, and the secrets of a server."""

from __future__ import annotations

import os
import shlex

import click

from ultramon.cli.caller import caller_id, resolve_agent
from ultramon.cli.output import ExitCode, plural, print_json, say
from ultramon.cli.selection import directory_of, open_store, store_options
from ultramon.system.terminal_text import sanitize


@click.command("mint")
@click.argument("agent", required=False)
@click.option(
    "--file",
    "path",
    # ULTRAMON_TOKEN_FILE names an agent's own token: a child's would be written over it.
    envvar="ULTRAMON_TOKEN_MINT_FILE",
    type=click.Path(dir_okay=False),
    help="Write the token to this file, readable by this user alone, instead of printing it.",
)
@store_options
def mint(*, agent: str | None, path: str | None, state_dir: str | None, json: bool) -> ExitCode:
    """Make a token of an agent, and print it once.

    With --file the line is printed that hands the file to a process. The token is good until the
    agent ends or is taken over, and for a day after its last use.

    AGENT is an id, the beginning of one, or a label; the default is the caller. Where
    ULTRAMON_AGENT_ID names the caller, only the agent itself and its direct parent may; a person
    may do everything.
    """
    from ultramon.tokens import TOKEN_FILE, mint_token, write_token

    backend = open_store(state_dir)
    agent_id = resolve_agent(backend, agent, "ultramon token mint")
    token = mint_token(agent_id, caller_id(), backend=backend)
    if path is None:
        if json:
            print_json({"agentId": agent_id, "token": token})
        else:
            click.echo(token)
        return ExitCode.OK
    path = os.path.abspath(path)
    write_token(path, token)
    if json:
        print_json({"agentId": agent_id, "path": path})
    else:
        say(f"The token of {agent_id} is in {path}")
        click.echo(sanitize(f"export {TOKEN_FILE}={shlex.quote(path)}"))
    return ExitCode.OK


@click.command("revoke")
@click.argument("agent", required=False)
@store_options
def revoke(*, agent: str | None, state_dir: str | None, json: bool) -> ExitCode:
    """Revoke all tokens of an agent.

    AGENT and the right to do so are as for `ultramon token mint`.
    """
    from ultramon.tokens import revoke_tokens

    backend = open_store(state_dir)
    agent_id = resolve_agent(backend, agent, "ultramon token revoke")
    revoked = revoke_tokens(agent_id, caller_id(), backend=backend)
    if json:
        print_json({"agentId": agent_id, "revoked": revoked})
    else:
        click.echo(f"Revoked {plural(revoked, 'token')} of {agent_id}")
    return ExitCode.OK


@click.command("admin")
@store_options
def admin(*, state_dir: str | None, json: bool) -> ExitCode:
    """Print the path of the file with the admin's token.

    The file is made where it is missing.
    """
    from ultramon.tokens import ADMIN_TOKEN

    return _print_secret_path(ADMIN_TOKEN, state_dir, as_json=json)


@click.command("hook")
@store_options
def hook(*, state_dir: str | None, json: bool) -> ExitCode:
    """Print the path of the file with the secret of hook scripts.

    The file is made where it is missing.
    """
    from ultramon.tokens import HOOK_SECRET

    return _print_secret_path(HOOK_SECRET, state_dir, as_json=json)


def _print_secret_path(name: str, state_dir: str | None, *, as_json: bool) -> ExitCode:
    from ultramon.tokens import secret_path, server_secret

    directory = directory_of(open_store(state_dir))
    server_secret(directory, name)
    path = secret_path(directory, name)
    if as_json:
        print_json({"path": path})
    else:
        click.echo(sanitize(path))
    return ExitCode.OK
