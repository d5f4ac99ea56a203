"""`ultramon events`: the journal, in the order in which it was stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.event_line import event_line
from ultramon.cli.output import json_line, say, until_interrupted, wait_for_change
from ultramon.cli.selection import find_agent_id, open_screen_store, store_options, time_span
from ultramon.errors import AgentNotFoundError
from ultramon.state.event_words import EVENT_TYPES
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.backends.base import Backend

_READ_SECONDS = 2.0
"""Two writes in one tick of the file system's clock leave the same mark, so read anyway."""


def _moment(text: str) -> float:
    """Return the epoch seconds of a time, given as RFC 3339 or as a time span before now."""
    at = parse_time(text)
    if at is not None:
        return at
    from ultramon.system.clock import SYSTEM_CLOCK

    try:
        return SYSTEM_CLOCK.now() - time_span(text)
    except click.BadParameter:
        allowed = "neither like 2h nor like 2026-11-21T20:28:51Z"
        raise click.BadParameter(f"{text} is {allowed}") from None


@click.command("events", epilog="Example: ultramon events --run nightly --follow")
@click.option(
    "--since",
    type=_moment,
    metavar="DURATION|TIME",
    help="Only events since then, e.g. 2h or 2026-11-21T20:28:51Z.  [default: everything]",
)
@click.option("--run", help="Only events of this run.  [default: all runs]")
@click.option("--agent", metavar="AGENT", help="Only events of this agent.")
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(EVENT_TYPES),
    metavar="TYPE",
    help="Only events of this type; can be given several times.",
)
@click.option("--follow", is_flag=True, help="Wait for more until interrupted.")
@store_options
def command(
    *,
    since: float | None,
    run: str | None,
    agent: str | None,
    types: tuple[str, ...],
    follow: bool,
    state_dir: str | None,
    json: bool,
) -> None:
    """Show the events of agents in the order they were stored.

    One event a line: time (UTC), type, agent, details; with --json a JSON object with the names of
    the journal. `--since 0s --follow` shows only new events.

    AGENT is an id, the beginning of one, or a label; for a deleted agent its whole id.
    """
    backend = open_screen_store(state_dir)
    agent_id = None if agent is None else _agent_id(backend, agent, may_come=follow)

    def is_wanted(event: dict[str, Any]) -> bool:
        return (
            (run is None or event.get("run") == run)
            and (agent_id is None or event.get("agentId") == agent_id)
            and (not types or event.get("type") in types)
            and (since is None or (parse_time(event.get("occurredAt")) or 0.0) >= since)
        )

    line = json_line if json else event_line
    shown = 0
    with until_interrupted(follow=follow):
        for page in pages(backend, follow=follow):
            lines = [line(event) for event in page if is_wanted(event)]
            if lines:
                click.echo("\n".join(lines))
            shown += len(lines)
    if not (shown or json or follow):
        say("no events")


def _agent_id(backend: Backend, name: str, *, may_come: bool) -> str:
    """Find an agent that is stored, was deleted, or (when following) may still come."""
    try:
        return find_agent_id(backend, name)
    except AgentNotFoundError:
        if not any(event.get("agentId") == name for page in pages(backend) for event in page):
            if not may_come:
                raise
            # When following it may be started later: its id is taken as it stands.
            say(f"no agent {name} yet")
        return name


def pages(backend: Backend, *, follow: bool = False) -> Iterator[list[dict[str, Any]]]:
    """Yield the journal page by page; when following, for ever."""
    cursor = None
    while True:
        # Taken before reading: what is stored in between changes it.
        mark = backend.change_mark()
        page = backend.events(cursor)
        cursor = page.cursor
        if page.events:
            yield page.events
        elif not follow:
            return
        else:
            wait_for_change(backend.change_mark, mark, _READ_SECONDS)
