"""`ultramon context show`: how full one agent's window is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ultramon.cli.caller import resolve_agent
from ultramon.cli.output import field, moment, print_result, sanitize_values, tokens
from ultramon.cli.selection import open_store, store_options

if TYPE_CHECKING:
    from ultramon.fleet.snapshot import ContextSnapshot

CACHED_SECONDS = 600.0
"""A reading of this age or more is shown with its age."""


@click.command("context", epilog="Example: ultramon context scout-2 --details")
@click.argument("agent", required=False)
@click.option("--details", is_flag=True, help="Show everything known about it.")
@store_options
def command(*, agent: str | None, details: bool, state_dir: str | None, json: bool) -> None:
    """Show how full an agent's window is, as a percentage.

    Before the first reading it is `unknown`; a reading of ten minutes ago or more comes with its
    age. AGENT is an id, the beginning of one, or a label; the default is the agent named by
    ULTRAMON_AGENT_ID.
    """
    from ultramon.backends.registry import registry_of
    from ultramon.fleet.snapshot import take_snapshot
    from ultramon.system.clock import SYSTEM_CLOCK

    backend = open_store(state_dir)
    agent_id = resolve_agent(backend, agent, "ultramon context")
    registered = registry_of(backend).registrations(agent_id)
    shown = take_snapshot(backend.load(agent_id), registered[0] if registered else None)
    lines = _details(shown) if details else [_brief(shown, SYSTEM_CLOCK.now())]
    facts = sanitize_values(shown.model_dump(mode="json", by_alias=True))
    print_result(facts, *lines, as_json=json)


def _brief(shown: ContextSnapshot, now: float) -> str:
    if shown.used_percentage is None or shown.measured_at is None:
        return "unknown"
    used = f"{shown.whole_percent}%"
    if shown.is_over:
        return f"{used} (cached; session stopped)"
    seconds = now - shown.measured_at.timestamp()
    if seconds >= CACHED_SECONDS:
        return f"{used} (cached {int(seconds // 60)}min ago)"
    return used


def _details(shown: ContextSnapshot) -> list[str]:
    used = "unknown" if shown.whole_percent is None else f"{shown.whole_percent}%"
    at_least = "at least " if shown.is_lower_bound else ""
    count = "" if shown.tokens is None else f" ({at_least}{tokens(shown.tokens)} tokens)"
    sampled = "none"
    if shown.sampled_at is not None:
        sampled = f"{moment(shown.sampled_at.timestamp())}, {field(shown.tokens_source)}"
    rungs = ", ".join(f"{one.name} {one.ratio * 100:.6g}%" for one in shown.thresholds)
    monitor = "disabled"
    if shown.is_registered:
        recipient = "self" if shown.notify_id == shown.agent_id else field(shown.notify_id)
        monitor = f"enabled, alerts -> {recipient}"
    handoff = field(shown.last_handoff_path) or "none"
    if shown.last_handoff_path is None and shown.handoff is not None:
        handoff = field(f"{shown.handoff.get('reason')}, {shown.handoff.get('createdAt')}")
    name = field(shown.label) or field(shown.agent_id)
    return [
        f"Context: {used}{count}",
        f"Sample: {sampled}",
        f"Lifecycle: {field(shown.lifecycle)}",
        f"State: {field(shown.state)}" + (f" ({field(rungs)})" if rungs else ""),
        f"Monitor: {monitor}",
        f"Compaction: {'active' if shown.compaction_active else 'not active'}",
        f"Last handoff: {handoff}",
        f"Session: {name} [{field(shown.agent_id)}] {field(shown.host)}",
    ]
