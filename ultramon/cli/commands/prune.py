"""`ultramon backend prune`: deletes old agents and events."""

from __future__ import annotations

from typing import Any

import click

from ultramon.cli.output import plural, print_result, say
from ultramon.cli.selection import directory_of, open_store, store_options, time_span


@click.command("prune", epilog="Example: ultramon backend prune --older-than 30d --dry-run")
@click.option(
    "--older-than",
    type=time_span,
    metavar="TIME",
    default="7d",
    help="Delete agents that ended or were lost this long ago.",
)
@click.option(
    "--events-older-than",
    type=time_span,
    metavar="TIME",
    default="30d",
    help="Delete events of this age.",
)
@click.option(
    "--readings-older-than",
    type=time_span,
    metavar="TIME",
    default="90d",
    help="Delete readings of this age from a database.",
)
@click.option(
    "--days-older-than",
    type=time_span,
    metavar="TIME",
    default="730d",
    help="Delete the sums of days of this age, which `ultramon report` shows, from a database.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@store_options
def command(
    *,
    older_than: float,
    events_older_than: float,
    readings_older_than: float,
    days_older_than: float,
    dry_run: bool,
    state_dir: str | None,
    json: bool,
) -> None:
    """Delete old agents, events and readings.

    Deletes agents that ended, and lost ones (their process is gone, or they were silent beyond
    their own limit), by the time of their last activity. Agents that may live, and states that
    cannot be read, are never deleted. The ids go to stdout.

    Of a database it also deletes what a machine that mirrors its agents wants to be kept no longer.
    """
    from ultramon.server.earlier_log import find_earlier_log
    from ultramon.system.clock import SYSTEM_CLOCK
    from ultramon.system.processes import this_machine

    now = SYSTEM_CLOCK.now()
    backend = open_store(state_dir)
    pruned = backend.prune(
        agents_before=now - older_than,
        events_before=now - events_older_than,
        now=now,
        machine=this_machine(),
        dry_run=dry_run,
    )
    facts: dict[str, Any] = {"agents": pruned, "dryRun": dry_run}
    prune_readings = getattr(backend, "prune_readings", None)
    if prune_readings is not None:
        rows = prune_readings(
            readings_before=now - readings_older_than,
            sums_before=now - days_older_than,
            now=now,
            dry_run=dry_run,
        )
        facts |= {"readings": rows["readings"], "readingDays": rows["reading_days"]}
    print_result(facts, *pruned, as_json=json)
    if facts.get("readings") and not json:
        say(f"{plural(facts['readings'], 'reading')} {'would be ' if dry_run else ''}deleted")
    if not json:
        count = plural(len(pruned), "agent")
        say(f"{count} would be deleted" if dry_run else f"{count} deleted")
    for finding in find_earlier_log(directory_of(backend)):
        say(f"{finding.message}; {finding.cure}")
