"""`ultramon serve`: the HTTP API, for hook scripts and for agents in other languages."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.listening import check_key, listening_options
from ultramon.cli.output import json_line, say
from ultramon.cli.selection import directory_of, open_store, state_dir_given, store_options
from ultramon.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

_OF_THE_EXTRA = frozenset(
    ("anyio", "fastapi", "h11", "httpx", "prometheus_client", "starlette", "uvicorn")
)


@click.command("serve")
@listening_options(8420)
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
    certfile: str | None,
    keyfile: str | None,
    log_requests: bool,
    log_file: str | None,
    log_format: str,
    state_dir: str | None,
    json: bool,
    **address: Any,
) -> None:
    """Serve the HTTP API until Ctrl-C or SIGTERM.

    Callers authenticate: the admin token and the secret of hook scripts are files in the state
    directory that only this user can read. One server runs per state directory. With --json its
    address goes to stdout, as one line. SIGHUP has it open its log and its certificate again.
    """
    from ultramon.tokens import ADMIN_TOKEN, secret_path

    check_key(certfile, keyfile)
    serve = _import_server()
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

    from ultramon.server.http.http_server import Endpoint

    serve(
        backend,
        directory,
        Endpoint(certfile=certfile, keyfile=keyfile, **address),
        on_listening=say_where,
        on_reload=getattr(log, "reopen", None),
    )


def _import_server() -> Callable[..., None]:
    try:
        from ultramon.server.main import serve
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _OF_THE_EXTRA:
            raise
        raise MissingExtraError("ultramon serve", package, "server") from error
    return serve


def _start_log(path: str | None, *, kind: str, log_requests: bool) -> logging.Handler:
    from ultramon.server.logs import LogFile, log_to

    log = logging.StreamHandler(sys.stderr) if path is None else LogFile(path)
    log_to(log, kind=kind, log_requests=log_requests)
    return log
