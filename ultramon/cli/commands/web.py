"""`ultramon web`: a read-only page about the agents and what they did over time."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.output import json_line, say
from ultramon.cli.selection import directory_of, open_store, state_dir_given, store_options
from ultramon.errors import MissingExtraError

if TYPE_CHECKING:
    from types import ModuleType

_OF_THE_EXTRA = frozenset(("anyio", "fastapi", "h11", "starlette", "uvicorn"))
_FILE = click.Path(exists=True, dir_okay=False)


def _split(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (value or "").split(",") if part.strip())


@click.command("web")
@click.option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on; beyond this machine only with a certificate or a proxy.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8421,
    help="Port to listen on; 0 = any free one.",
)
@click.option(
    "--tls-cert", "certfile", type=_FILE, help="Serve HTTPS with this certificate chain (PEM)."
)
@click.option("--tls-key", "keyfile", type=_FILE, help="Its key, where it is not in the same file.")
@click.option(
    "--behind-proxy",
    "proxies",
    metavar="ADDR[,ADDR]",
    callback=_split,
    help="Answer these proxies, and believe what they say about clients and scheme.",
)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Answer requests for this host name too; its port is --port unless given.",
)
@click.option("--link", is_flag=True, help="Print a new login link of the page that runs, and end.")
@click.option("--log-requests", is_flag=True, help="Write one line per request to stderr.")
@store_options
def command(
    *,
    certfile: str | None,
    keyfile: str | None,
    link: bool,
    log_requests: bool,
    state_dir: str | None,
    json: bool,
    **address: Any,
) -> None:
    """Serve a page about the agents, for a browser, until Ctrl-C or SIGTERM.

    It prints a link that logs a browser in: once, within five minutes. The page only reads. With
    --json its address and the link go to stdout, as one line.
    """
    if keyfile is not None and certfile is None:
        raise click.UsageError("--tls-key needs --tls-cert")
    main = _import_web()
    backend = open_store(state_dir)
    directory = os.path.abspath(state_dir_given(state_dir) or directory_of(backend))

    def say_where(facts: dict[str, Any]) -> None:
        if json:
            click.echo(json_line(facts))
            return
        say(f"ultramon web is listening on {facts['url']}")
        say(f"log in within five minutes, once: {facts['loginUrl']}")

    if link:
        say_where(main.make_link(directory))
        return
    from ultramon.server.logs import log_to

    log_to(logging.StreamHandler(sys.stderr), kind="text", log_requests=log_requests)
    main.serve(
        backend,
        directory,
        certfile=certfile,
        keyfile=keyfile,
        on_listening=say_where,
        **address,
    )


def _import_web() -> ModuleType:
    try:
        from ultramon.web import main
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _OF_THE_EXTRA:
            raise
        raise MissingExtraError("ultramon web", package, "web") from error
    return main
