"""`ultramon resume`: coding sessions that a reboot or a closed terminal cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ultramon.cli.agent_list import look_at
from ultramon.cli.output import age, field, print_result, say
from ultramon.cli.resumption import resume_command
from ultramon.cli.selection import end_gone, find_agent, open_store, store_options
from ultramon.state.liveness import ALIVE, ENDED
from ultramon.state.usage_percent import usage_words

if TYPE_CHECKING:
    from ultramon.state.observed import ObservedAgent


@click.command("resume", epilog="Example: ultramon resume --all")
@click.argument("agent", required=False)
@click.option("--all", "show_all", is_flag=True, help="Show sessions that ended normally too.")
@store_options
def command(*, agent: str | None, show_all: bool, state_dir: str | None, json: bool) -> None:
    """List sessions that were cut off, and how to resume them.

    The last active comes first, each with its label, its last task, how full it was, and the
    command that resumes it. AGENT, an id, the beginning of one, or a label, shows one session.
    """
    backend = open_store(state_dir)
    stored = (
        end_gone(backend, list(backend.list_agents()))
        if agent is None
        else [find_agent(backend, agent)]
    )
    seen, _ = look_at(stored)
    sessions = [
        (one, line)
        for one in sorted(seen, key=lambda one: one.record.last_activity, reverse=True)
        if (agent or _is_cut_off(one, show_all)) and (line := resume_command(one.record))
    ]
    facts = {"sessions": [{**one.to_json(), "command": line} for one, line in sessions]}
    lines = (shown for one, line in sessions for shown in (_describe(one), f"    {field(line)}"))
    print_result(facts, *lines, as_json=json)
    if not (sessions or json):
        say("no session was cut off")


def _is_cut_off(one: ObservedAgent, show_all: bool) -> bool:
    verdict = one.liveness.verdict
    was_cut = verdict != ENDED or one.record.outcome in ("failed", "cancelled")
    return verdict != ALIVE and (show_all or was_cut)


def _describe(one: ObservedAgent) -> str:
    from ultramon.system.clock import SYSTEM_CLOCK

    record = one.record
    silence = age(max(0.0, SYSTEM_CLOCK.now() - record.last_activity))
    facts = [f"{usage_words(record)} full", f"last active {silence} ago"]
    if record.current_task:
        facts.append(f"last task: {field(record.current_task)}")
    name = field(record.label) or field(record.agent_id)
    return f"{name}  ({', '.join(facts)})"
