"""`ultramon token`: tokens of agents, and the secrets of a server."""

from __future__ import annotations

import os
import shlex

import click

from ultramon.cli.caller import caller_id, resolve_agent
from ultramon.cli.output import plural, print_result, say
from ultramon.cli.selection import directory_of, open_store, store_options


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
def mint(*, agent: str | None, path: str | None, state_dir: str | None, json: bool) -> None:
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
        print_result({"agentId": agent_id, "token": token}, token, as_json=json)
        return
    path = os.path.abspath(path)
    write_token(path, token)
    if not json:
        say(f"The token of {agent_id} is in {path}")
    line = f"export {TOKEN_FILE}={shlex.quote(path)}"
    print_result({"agentId": agent_id, "path": path}, line, as_json=json)


@click.command("revoke")
@click.argument("agent", required=False)
@store_options
def revoke(*, agent: str | None, state_dir: str | None, json: bool) -> None:
    """Revoke all tokens of an agent.

    AGENT and the right to do so are as for `ultramon token mint`.
    """
    from ultramon.tokens import revoke_tokens

    backend = open_store(state_dir)
    agent_id = resolve_agent(backend, agent, "ultramon token revoke")
    revoked = revoke_tokens(agent_id, caller_id(), backend=backend)
    line = f"Revoked {plural(revoked, 'token')} of {agent_id}"
    print_result({"agentId": agent_id, "revoked": revoked}, line, as_json=json)


@click.command("admin")
@store_options
def admin(*, state_dir: str | None, json: bool) -> None:
    """Print the path of the file with the admin's token.

    The file is made where it is missing.
    """
    from ultramon.tokens import ADMIN_TOKEN

    _print_secret_path(ADMIN_TOKEN, state_dir, as_json=json)


@click.command("hook")
@store_options
def hook(*, state_dir: str | None, json: bool) -> None:
    """Print the path of the file with the secret of hook scripts.

    The file is made where it is missing.
    """
    from ultramon.tokens import HOOK_SECRET

    _print_secret_path(HOOK_SECRET, state_dir, as_json=json)


@click.command("metrics")
@store_options
def metrics(*, state_dir: str | None, json: bool) -> None:
    """Print the path of the file with the token that may scrape `GET /metrics` alone.

    The file is made where it is missing.
    """
    from ultramon.tokens import METRICS_TOKEN

    _print_secret_path(METRICS_TOKEN, state_dir, as_json=json)


def _print_secret_path(name: str, state_dir: str | None, *, as_json: bool) -> None:
    from ultramon.tokens import secret_path, server_secret

    directory = directory_of(open_store(state_dir))
    server_secret(directory, name)
    path = secret_path(directory, name)
    print_result({"path": path}, path, as_json=as_json)
