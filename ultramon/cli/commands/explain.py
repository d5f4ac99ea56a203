"""`ultramon explain`: one screen that explains an agent's percentage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ultramon.cli.output import CommandFailed, field, print_json, sanitize_values
from ultramon.cli.selection import find_agent, open_store, store_options
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
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
    from ultramon.state.liveness import judge
    from ultramon.system.clock import SYSTEM_CLOCK
    from ultramon.system.processes import this_host

    stored = find_agent(open_store(state_dir), agent)
    record = stored.record
    if record is None:
        raise CommandFailed(str(stored.problem))
    now = SYSTEM_CLOCK.now()
    session_tokens_left = _session_tokens_left(record)
    if not json:
        for name in record.__slots__:
            setattr(record, name, sanitize_values(getattr(record, name)))
    try:
        liveness = judge(record, stored.heartbeat_at, now, this_host())
        explanation = explain(record, liveness, now, session_tokens_left=session_tokens_left)
    except (ArithmeticError, LookupError, TypeError, ValidationError) as error:
        # A state with a right checksum can still hold numbers that no agent ever had.
        reason = str(error).partition("\n")[0]
        name = field(stored.agent_id)
        raise CommandFailed(f"{name}: its values make no sense: {reason}") from error
    if json:
        print_json(explanation.model_dump(mode="json", by_alias=True))
    else:
        click.echo(sanitize(str(explanation), keep_lines=True), nl=False)


def _session_tokens_left(record: StateRecord) -> int | None:
    """Return the token budget left by the client's transcript, None if it is not on this host."""
    from ultramon.hosts.registry import find_hosts
    from ultramon.system.processes import this_host

    host = next((host for host in find_hosts().usable if host.name == record.host), None)
    if host is None or record.hostname != this_host().hostname:
        return None
    memory = record.extra.get(host.memory_field)
    path = memory.get("transcriptPath") if isinstance(memory, dict) else None
    return host.read_token_budget(path) if isinstance(path, str) else None
