"""`ultramon web`: a read-only page about the agents and what they did over time."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import click

from ultramon.cli.extras import extra_needed
from ultramon.cli.listening import endpoint, listening_options
from ultramon.cli.output import json_line, say
from ultramon.cli.selection import directory_of, open_screen_store, state_dir_given, store_options


@click.command("web", epilog="Example: ultramon web --port 8421")
@listening_options(8421)
@click.option("--link", is_flag=True, help="Print a new login link of the page that runs, and end.")
@click.option("--log-requests", is_flag=True, help="Write one line per request to stderr.")
@store_options
def command(
    *,
    link: bool,
    log_requests: bool,
    state_dir: str | None,
    json: bool,
    **address: Any,
) -> None:
    """Serve a page about the agents, for a browser, until Ctrl-C.

    It prints a link that logs a browser in: once, within five minutes. The page only reads. With
    --json its address and the link go to stdout, as one line.
    """
    with extra_needed("ultramon web", "web"):
        from ultramon.web import main
    where = endpoint(**address)
    backend = open_screen_store(state_dir)
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
    main.serve(backend, directory, where, on_listening=say_where)
