"""`ultramon status`: every agent, the most urgent first."""

from __future__ import annotations

import sys
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.agent_list import earlier_lives, look_at, open_agent_list
from ultramon.cli.output import json_line, print_json, print_json_list, say
from ultramon.cli.selection import (
    directory_of,
    find_agent,
    limit_option,
    machine_option,
    open_screen_store,
    store_options,
)
from ultramon.cli.views.agent_table import (
    print_agents,
    print_budgets,
    print_left_out,
    print_plans,
    print_summary,
)
from ultramon.state.budget_readings import budgets_json
from ultramon.state.observed import agents_json, unreadable_json
from ultramon.state.plan_words import plan_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.backends.base import Backend

MAX_ROWS = 200
"""The default limit on a terminal: more rows scroll away unread."""


@click.command("status", epilog="Example: ultramon status --run nightly")
@click.argument("agent", required=False)
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help="Show ended agents too; with --run also those whose ids another run continues.",
)
@click.option(
    "--from-transcripts",
    is_flag=True,
    help="Show agents by what their hosts have written, also of hosts that report nothing: those "
    "of the last day, with --all every one.",
)
@click.option("--run", help="Only agents of this run.  [default: all runs]")
@machine_option
@limit_option(f"{MAX_ROWS} on a terminal, else all")
@store_options
def command(
    *,
    agent: str | None,
    show_all: bool,
    from_transcripts: bool,
    run: str | None,
    machine: str | None,
    limit: int | None,
    state_dir: str | None,
    json: bool,
) -> None:
    """Show how full every agent's window is, the most urgent first.

    AGENT is an id, the beginning of one, or a label; without it all living agents are shown. Lost
    agents (their process is gone, or silent for long) and stale ones are marked. Where there is
    room for it, and of at most 50 agents, trend draws the last readings.
    """
    if limit is None and not json and sys.stdout.isatty():
        limit = MAX_ROWS
    if from_transcripts:
        if run is not None:
            raise click.UsageError("transcripts name no run")
        from ultramon.cli.transcript_list import print_from_transcripts

        print_from_transcripts(agent, show_all=show_all, limit=limit, as_json=json)
        return
    backend = open_screen_store(state_dir)
    if agent is not None:
        from ultramon.hosts.blind_sessions import BlindSessions
        from ultramon.system.clock import SYSTEM_CLOCK

        seen, unreadable = look_at([find_agent(backend, agent)])
        seen = [BlindSessions().mark(one, SYSTEM_CLOCK.now()) for one in seen]
        if json:
            print_json(agents_json(seen, unreadable))
        else:
            print_agents(seen, unreadable, 0, backend=backend)
        return
    agent_list = open_agent_list(backend, run, show_all=show_all, is_cut=True, machine=machine)
    earlier = earlier_lives(backend, run) if run is not None and show_all else []
    if json:
        ended = (json_line(one.to_json()).encode("ascii") for one in earlier)
        print_json_list(
            "agents",
            islice(chain(agent_list.lines(limit), ended), limit),
            lambda: (
                unreadable_json(agent_list.unreadable)
                | plan_json(agent_list.plans)
                | budgets_json(agent_list.budgets)
                | resident_json(backend)
                | machines_json(agent_list.machines.names())
            ),
        )
    else:
        agent_list.refresh(limit)
        # Of a part the numbers would be wrong.
        if len(agent_list.seen) > 1 and not agent_list.left_out and sys.stdout.isatty():
            print_summary(agent_list.seen)
        print_agents(
            (agent_list.seen + earlier)[:limit],
            agent_list.unreadable,
            agent_list.hidden,
            backend=backend,
            machines=agent_list.machines.names(),
        )
        print_plans(agent_list.plans)
        print_budgets(agent_list.budgets)
    print_left_out(agent_list)
    for facts in resident_json(backend).values():
        say(f"hooks are answered by process {facts['pid']} since {facts['since']}")


def machines_json(names: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the machines that mirror agents, as a member; none without."""
    found = [{"machineId": one, "name": name} for one, name in (names or {}).items()]
    return {"machines": found} if found else {}


def resident_json(backend: Backend) -> dict[str, Any]:
    """Return what the process that answers hooks says about itself, as a member; none without."""
    if sys.platform == "win32":
        return {}
    from ultramon.hosts.resident.place import Place

    running = Place(directory_of(backend)).running()
    return {} if running is None else {"resident": running}
