"""`ultramon serve`: the HTTP API, for hook scripts and for agents in other languages."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.output import json_line, say
from ultramon.cli.selection import directory_of, open_store, state_dir_given, store_options
from ultramon.errors import MissingExtraError
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable

_OF_THE_EXTRA = frozenset(("anyio", "fastapi", "h11", "httpx", "starlette", "uvicorn"))
_FILE = click.Path(exists=True, dir_okay=False)
_MAX_LINE_CHARS = 20_000  # a traceback is one line of them


class LineFormatter(logging.Formatter):
    """Writes each record as one line without control characters, which requests can bring in."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return sanitize(super().format(record), max_chars=_MAX_LINE_CHARS)


@click.command("serve")
@click.option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on; beyond this machine only with a certificate.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8420,
    help="Port to listen on; 0 = any free one.",
)
@click.option(
    "--tls-cert", "certfile", type=_FILE, help="Serve HTTPS with this certificate chain (PEM)."
)
@click.option("--tls-key", "keyfile", type=_FILE, help="Its key, where it is not in the same file.")
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Answer requests for this host name too; its port is --port unless given.",
)
@click.option("--log-requests", is_flag=True, help="Write one line per request to stderr.")
@store_options
def command(
    *,
    certfile: str | None,
    keyfile: str | None,
    log_requests: bool,
    state_dir: str | None,
    json: bool,
    **address: Any,
) -> None:
    """Serve the HTTP API until Ctrl-C or SIGTERM.

    Callers authenticate: the admin token and the secret of hook scripts are files in the state
    directory that only this user can read. One server runs per state directory. With --json its
    address goes to stdout, as one line.
    """
    from ultramon.tokens import ADMIN_TOKEN, secret_path

    if keyfile is not None and certfile is None:
        raise click.UsageError("--tls-key needs --tls-cert")
    serve = _import_server()
    backend = open_store(state_dir)
    directory = state_dir_given(state_dir) or directory_of(backend)
    _log_to_stderr(log_requests=log_requests)

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
        certfile=certfile,
        keyfile=keyfile,
        on_listening=say_where,
        **address,
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


def _log_to_stderr(*, log_requests: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    # It warns of every malformed request: a sender of many would fill a disk.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    if log_requests:
        logging.getLogger("ultramon.server").setLevel(logging.INFO)
