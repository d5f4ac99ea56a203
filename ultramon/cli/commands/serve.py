"""`ultramon serve`: the HTTP API, for hook scripts and for agents in other languages."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

from ultramon.cli.extras import extra_needed
from ultramon.cli.listening import endpoint, listening_options
from ultramon.cli.output import json_line, say
from ultramon.cli.selection import directory_of, open_store, state_dir_given, store_options


@click.command("serve", epilog="Example: ultramon serve --port 8420")
@listening_options(8420, "ULTRAMON_SERVE_")
@click.option("--log-requests", is_flag=True, help="Log one line per request.")
@click.option(
    "--log-file",
    type=click.Path(dir_okay=False),
    help="Log to this file instead of stderr; SIGHUP opens it again.",
)
@click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    default="text",
    help="Lines of text, or one JSON object per line.",
)
@store_options
def command(
    *,
    log_requests: bool,
    log_file: str | None,
    log_format: str,
    state_dir: str | None,
    json: bool,
    **address: Any,
) -> None:
    """Serve the HTTP API, until Ctrl-C.

    Callers authenticate: the admin token and the secret of hook scripts are files in the state
    directory that only this user can read. One server runs per state directory. With --json its
    address goes to stdout, as one line. SIGHUP has it open its log and its certificate again.
    """
    from ultramon.tokens import ADMIN_TOKEN, secret_path

    with extra_needed("ultramon serve", "server"):
        from ultramon.server.main import serve
    where = endpoint(**address)
    backend = open_store(state_dir)
    directory = state_dir_given(state_dir) or directory_of(backend)
    log = _start_log(log_file, kind=log_format, log_requests=log_requests)

    def say_where(facts: dict[str, Any]) -> None:
        token_path = secret_path(directory, ADMIN_TOKEN)
        if json:
            click.echo(json_line({**facts, "adminTokenFile": token_path}))
            return
        say(f"ultramon is listening on {facts['url']}")
        say(f"the admin token is in {token_path}")

    serve(
        backend,
        directory,
        where,
        on_listening=say_where,
        # stderr is no file that could be opened again.
        on_reload=getattr(log, "reopen", None),
    )


def _start_log(path: str | None, *, kind: str, log_requests: bool) -> logging.Handler:
    from ultramon.server.logs import LogFile, log_to

    log = logging.StreamHandler(sys.stderr) if path is None else LogFile(path)
    log_to(log, kind=kind, log_requests=log_requests)
    return log
