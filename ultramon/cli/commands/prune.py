"""`ultramon prune`: deletes old agents and events."""

from __future__ import annotations

import re

import click

from ultramon.cli.output import plural, print_result, say
from ultramon.cli.selection import open_store, store_options

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhdw])", re.ASCII)


def duration(text: str) -> float:
    """Return the seconds of a time span such as ``90s``, ``12h`` or ``7d``.

    Raises:
        click.BadParameter: It is none.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text} is not a number followed by s, m, h, d or w, e.g. 7d")
    return float(match[1]) * _UNITS[match[2]]


@click.command("prune")
@click.option(
    "--older-than",
    type=duration,
    default="7d",
    help="Delete agents that ended or were lost this long ago.",
)
@click.option(
    "--events-older-than", type=duration, default="30d", help="Delete events of this age."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@store_options
def command(
    *, older_than: float, events_older_than: float, dry_run: bool, state_dir: str | None, json: bool
) -> None:
    """Delete old agents and events.

    Deletes agents that ended, and lost ones (their process is gone, or they were silent beyond
    their own limit), by the time of their last activity. Agents that may live, and states that
    cannot be read, are never deleted. The ids go to stdout.
    """
    from ultramon.system.clock import SYSTEM_CLOCK
    from ultramon.system.processes import this_host

    now = SYSTEM_CLOCK.now()
    pruned = open_store(state_dir).prune(
        agents_before=now - older_than,
        events_before=now - events_older_than,
        now=now,
        host=this_host(),
        dry_run=dry_run,
    )
    print_result({"agents": pruned, "dryRun": dry_run}, *pruned, as_json=json)
    if not json:
        count = plural(len(pruned), "agent")
        say(f"{count} would be deleted" if dry_run else f"{count} deleted")
