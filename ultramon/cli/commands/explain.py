"""`ultramon explain`: one screen that explains an agent's percentage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.commands.install import chosen_directory
from ultramon.cli.output import CommandFailed, field, print_json, sanitize_values
from ultramon.cli.selection import find_agent, open_store, store_options
from ultramon.errors import StateError
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from ultramon.hosts.port import Host
    from ultramon.state.record import StateRecord


@click.command("explain")
@click.argument("agent")
@store_options
def command(*, agent: str, state_dir: str | None, json: bool) -> None:
    """Explain an agent's percentage.

    Where the tokens come from (last report, estimate since, calibration), which limits were
    considered and which one binds, how far the next rung is, and how old each number is.

    AGENT is an id, the beginning of one, or a label.
    """
    from pydantic import ValidationError

    from ultramon.context.explanation import explain
    from ultramon.hosts.child_ends import told_ends
    from ultramon.hosts.enforcement import describe
    from ultramon.state.liveness import judge
    from ultramon.system.clock import SYSTEM_CLOCK
    from ultramon.system.processes import this_host

    stored = find_agent(open_store(state_dir), agent)
    record = stored.record
    if record is None:
        raise CommandFailed(str(stored.problem))
    now = SYSTEM_CLOCK.now()
    host, memory = _host_of(record)
    session_tokens_left = _session_tokens_left(host, record, memory)
    if not json:
        for name in record.__slots__:
            setattr(record, name, sanitize_values(getattr(record, name)))
    try:
        liveness = judge(record, stored.heartbeat_at, now, this_host())
        explanation = explain(
            record,
            liveness,
            now,
            session_tokens_left=session_tokens_left,
            subagent_ends=told_ends(memory),
            pins=_pins(host, record, memory, state_dir),
            enforcement=describe(memory),
        )
    except (ArithmeticError, LookupError, TypeError, ValidationError) as error:
        # A state with a right checksum can still hold numbers that no agent ever had.
        reason = str(error).partition("\n")[0]
        name = field(stored.agent_id)
        raise CommandFailed(f"{name}: its values make no sense: {reason}") from error
    if json:
        print_json(explanation.model_dump(mode="json", by_alias=True))
    else:
        click.echo(sanitize(str(explanation), keep_lines=True), nl=False)


def _host_of(record: StateRecord) -> tuple[Host | None, dict[str, Any]]:
    """Return the client of an agent, and what only its hooks keep in the state."""
    from ultramon.hosts.registry import find_hosts

    host = next((host for host in find_hosts().usable if host.name == record.host), None)
    memory = None if host is None else record.extra.get(host.memory_field)
    return host, memory if isinstance(memory, dict) else {}


def _pins(
    host: Host | None, record: StateRecord, memory: dict[str, Any], state_dir: str | None
) -> tuple[str, ...]:
    """Return what the conversation is given back after a compaction, where that was installed."""
    from ultramon.hosts.hosted_agent import predecessors
    from ultramon.hosts.installed_choices import InstalledChoices, choices_path
    from ultramon.hosts.pins import Pins
    from ultramon.hosts.session_environment import kept_environment

    directory = chosen_directory(state_dir)
    try:
        if host is None or not InstalledChoices.load(choices_path(directory, host.name)).pins:
            return ()
        project = host.project(kept_environment(memory) or {}) or record.cwd
        found = Pins(directory).of(project, (record.session_id, *predecessors(memory)))
    except (OSError, StateError) as error:
        return (sanitize(f"cannot be read: {error}"),)
    return tuple(pin.text or pin.file or "" for pin in found)


def _session_tokens_left(
    host: Host | None, record: StateRecord, memory: dict[str, Any]
) -> int | None:
    """Return the token budget left by the client's transcript, None if it is not on this host."""
    from ultramon.system.processes import this_host

    if host is None or record.hostname != this_host().hostname:
        return None
    path = memory.get("transcriptPath")
    return host.read_token_budget(path) if isinstance(path, str) else None
