"""`ultramon resume`: coding sessions that a reboot or a closed terminal cut off."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from ultramon.cli.agent_list import look_at
from ultramon.cli.output import age, field, percent, print_result, say
from ultramon.cli.selection import end_gone, find_agent, open_store, store_options
from ultramon.state.liveness import ALIVE, ENDED

if TYPE_CHECKING:
    from ultramon.state.observed import ObservedAgent
    from ultramon.state.record import StateRecord


@click.command("resume")
@click.argument("agent", required=False)
@click.option("--all", "show_all", is_flag=True, help="Show sessions that ended normally too.")
@store_options
def command(*, agent: str | None, show_all: bool, state_dir: str | None, json: bool) -> None:
    """List coding sessions that were cut off, and how to resume them.

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
        one for one in seen if is_session(one.record) and (agent or _is_cut_off(one, show_all))
    ]
    sessions.sort(key=lambda one: one.record.last_activity, reverse=True)
    facts = {
        "sessions": [{**one.to_json(), "command": resume_command(one.record)} for one in sessions]
    }
    print_result(facts, *(line for one in sessions for line in _lines(one)), as_json=json)
    if not (sessions or json):
        say("no session was cut off")


def is_session(record: StateRecord) -> bool:
    """Return whether an agent is a session that its client can resume."""
    return record.agent_id == record.session_id and bool(_resume_words(record))


def _is_cut_off(one: ObservedAgent, show_all: bool) -> bool:
    verdict = one.liveness.verdict
    was_cut = verdict != ENDED or one.record.outcome == "failed"
    return verdict != ALIVE and (show_all or was_cut)


def resume_command(record: StateRecord) -> str:
    """Return the shell command that resumes a session in its directory."""
    go = f"cd {shlex.quote(record.cwd)} && " if record.cwd else ""
    return f"{go}{shlex.join(_resume_words(record))}"


def _resume_words(record: StateRecord) -> tuple[str, ...]:
    from ultramon.errors import ConfigurationError
    from ultramon.hosts.registry import find_host

    if not (record.host and record.session_id):
        return ()
    try:
        return find_host(record.host).resume_words(record.session_id)
    except ConfigurationError:
        return ()  # its distribution is gone


def resume_command_of_session(record: StateRecord) -> str | None:
    """Return the shell command that resumes an agent; None for one that is no session."""
    return resume_command(record) if is_session(record) else None


def _lines(one: ObservedAgent) -> tuple[str, str]:
    from ultramon.system.clock import SYSTEM_CLOCK

    record = one.record
    silence = age(max(0.0, SYSTEM_CLOCK.now() - record.last_activity))
    facts = [f"{percent(record.usage_ratio)} full", f"last active {silence} ago"]
    if record.current_task:
        facts.append(f"last task: {field(record.current_task)}")
    name = field(record.label) or field(record.agent_id)
    return f"{name}  ({', '.join(facts)})", f"    {field(resume_command(one.record))}"
