"""`ultramon token`: tokens of agents, and the secrets of a server."""

from __future__ import annotations

import os
import shlex

import click

from ultramon.cli.caller import caller_id, resolve_agent
from ultramon.cli.output import plural, print_result, say
from ultramon.cli.selection import directory_of, open_store, store_options

_file_option = click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False),
    help="Write the token to this file, readable by this user alone, instead of printing it.",
)


@click.command("mint", epilog="Example: ultramon token mint scout-2 --file scout-2.token")
@click.argument("agent", required=False)
@_file_option
@store_options
def mint(*, agent: str | None, path: str | None, state_dir: str | None, json: bool) -> None:
    """Make a token of an agent, and print it once.

    With --file the line is printed that hands the file to a process. The token is good until the
    agent ends or is taken over, and for a day after its last use.

    AGENT is an id, the beginning of one, or a label; the default is the caller. Where
    ULTRAMON_AGENT_ID names the caller, only the agent itself and its direct parent may; a person
    may do everything.
    """
    from ultramon.tokens import mint_token

    backend = open_store(state_dir)
    agent_id = resolve_agent(backend, agent, "ultramon token mint")
    _hand_out(agent_id, mint_token(agent_id, caller_id(), backend=backend), path, json=json)


@click.command("rotate", epilog="Example: ultramon token rotate admin")
@click.argument("whose", metavar="[admin|hook|metrics|AGENT]", required=False)
@_file_option
@store_options
def rotate(*, whose: str | None, path: str | None, state_dir: str | None, json: bool) -> None:
    """Make a new token in place of the old one, which is void at once.

    Of an agent all tokens are replaced by one, which is handed out as by `ultramon token mint`;
    those of its children stay valid. admin, hook and metrics are the secrets of a server: the file
    is rewritten and its path printed, and a running server takes the new one only. Requests with
    the old one are answered 401, and streams that it opened end.

    AGENT and the right to do so are as for `ultramon token mint`.
    """
    from ultramon.tokens import rotate_server_secret, rotate_token

    backend = open_store(state_dir)
    names = _secrets()
    if whose in names:
        if path is not None:
            raise click.UsageError(f"--file is for agents; {names[whose]} has a place of its own")
        secret = rotate_server_secret(directory_of(backend), names[whose])
        print_result({"path": secret}, secret, as_json=json)
        return
    agent_id = resolve_agent(backend, whose, "ultramon token rotate")
    _hand_out(agent_id, rotate_token(agent_id, caller_id(), backend=backend), path, json=json)


def _hand_out(agent_id: str, token: str, path: str | None, *, json: bool) -> None:
    """Print a token, or write it to a file and print the line that hands the file on."""
    from ultramon.tokens import TOKEN_FILE, write_token

    if path is None:
        print_result({"agentId": agent_id, "token": token}, token, as_json=json)
        return
    # The line that is printed may be run in another directory.
    path = os.path.abspath(path)
    write_token(path, token)
    if not json:
        say(f"The token of {agent_id} is in {path}")
    line = f"export {TOKEN_FILE}={shlex.quote(path)}"
    print_result({"agentId": agent_id, "path": path}, line, as_json=json)


@click.command("revoke", epilog="Example: ultramon token revoke scout-2")
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


def _secret_command(name: str, words: str) -> click.Command:
    """Return the command that prints where a secret of a server is."""

    @click.command(
        name,
        help=f"Print the path of {words}.\n\nThe file is made where it is missing.",
        epilog=f"Example: ultramon token {name}",
    )
    @store_options
    def command(*, state_dir: str | None, json: bool) -> None:
        from ultramon.tokens import secret_path, server_secret

        directory = directory_of(open_store(state_dir))
        server_secret(directory, _secrets()[name])
        path = secret_path(directory, _secrets()[name])
        print_result({"path": path}, path, as_json=json)

    return command


admin = _secret_command("admin", "the file with the admin's token")
hook = _secret_command("hook", "the file with the secret of hook scripts")
metrics = _secret_command("metrics", "the file with the token that may scrape `GET /metrics` alone")


def _secrets() -> dict[str, str]:
    """Return the secrets of a server, by their names on the command line."""
    from ultramon.tokens import ADMIN_TOKEN, HOOK_SECRET, METRICS_TOKEN

    return {"admin": ADMIN_TOKEN, "hook": HOOK_SECRET, "metrics": METRICS_TOKEN}
