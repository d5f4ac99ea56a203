"""`ultramon backend prune`: deletes old agents and events."""

from __future__ import annotations

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
    print_result({"agents": pruned, "dryRun": dry_run}, *pruned, as_json=json)
    if not json:
        count = plural(len(pruned), "agent")
        say(f"{count} would be deleted" if dry_run else f"{count} deleted")
    for finding in find_earlier_log(directory_of(backend)):
        say(f"{finding.message}; {finding.cure}")
