"""`ultramon context-monitor`: who is told about whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ultramon.cli.agents import find_agent_id, json_option, open_store, state_dir_option
from ultramon.cli.calling import require_caller
from ultramon.cli.output import CommandFailed, ExitCode, age, field, print_json

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.models import ContextSnapshot

ACTIONS = ("enable", "disable", "status")
_TITLES = ("Session", "Name", "Notify Target", "Thresholds", "Reading")


@click.command("context-monitor")
@click.argument("action", metavar="enable|disable|status")
@click.argument("agent", required=False)
@click.option(
    "--threshold",
    "thresholds",
    envvar="ULTRAMON_CONTEXT_MONITOR_THRESHOLD",
    multiple=True,
    type=click.FloatRange(0, 100, min_open=True),
    metavar="PERCENT",
    show_envvar=True,
    help="Tell when so much is used; can be given several times.  [default: the agent's levels]",
)
@state_dir_option()
@json_option
def command(
    *,
    action: str,
    agent: str | None,
    thresholds: tuple[float, ...],
    state_dir: str | None,
    json: bool,
) -> ExitCode:
    """Have notices about an agent sent, no longer, or show who is told about whom.

    The caller is the agent named by ULTRAMON_AGENT_ID (or CLAUDE_SESSION_MANAGER_ID), and it is
    the one that is told. It may enable and disable itself and its direct children. AGENT is an id,
    the beginning of one, or a label; without it the caller itself is meant. Enabling again re-arms
    every threshold.
    """
    if action not in ACTIONS:
        raise CommandFailed(f"Unknown action {action!r}. Use: {', '.join(ACTIONS)}")
    if action == "status":
        return _status(open_store(state_dir), as_json=json)
    caller = require_caller("ultramon context-monitor enable/disable")
    backend = open_store(state_dir)
    target = caller if agent in (None, caller) else find_agent_id(backend, str(agent))
    if action == "disable":
        from ultramon.routing import unregister

        cancelled = unregister(target, caller, backend=backend)
        if json:
            print_json({"agentId": target, "enabled": False, "wasEnabled": cancelled is not None})
        else:
            click.echo(f"Context monitoring disabled for {target}")
        return ExitCode.OK
    from ultramon.routing import register

    ratios = [percent / 100 for percent in thresholds] or None
    made = register(target, caller, thresholds=ratios, backend=backend)
    if json:
        print_json({**made.model_dump(mode="json", by_alias=True), "enabled": True})
    elif target == caller:
        click.echo(f"Context monitoring enabled — notifications → self ({caller})")
    else:
        click.echo(f"Context monitoring enabled for {target} — notifications → {made.notify_id}")
    return ExitCode.OK


def _status(backend: Backend, *, as_json: bool) -> ExitCode:
    from ultramon.backends.registry import registry_of
    from ultramon.errors import UltramonError
    from ultramon.routing import registrations
    from ultramon.snapshot import take_snapshot

    typed = registrations(backend=backend)
    if as_json:
        print_json({"monitored": [one.model_dump(mode="json", by_alias=True) for one in typed]})
        return ExitCode.OK
    if not typed:
        click.echo("No sessions currently registered for context monitoring.")
        return ExitCode.OK
    rows: list[tuple[str, ...]] = [_TITLES]
    for one in registry_of(backend).registrations():
        name = thresholds = reading = "?"
        try:
            shown = take_snapshot(one.agent_id, backend, one)
        except UltramonError:
            pass  # deleted or unreadable: it is still registered
        else:
            name, thresholds, reading = shown.label or "", _thresholds(shown), _reading(shown)
        rows.append(tuple(map(field, (one.agent_id, name, one.notify_id, thresholds, reading))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(r, widths, strict=True)) for r in rows
    ]
    lines.insert(1, "-" * max(len(line.rstrip()) for line in lines))
    click.echo("\n".join(line.rstrip() for line in lines))
    return ExitCode.OK


def _thresholds(shown: ContextSnapshot) -> str:
    if shown.threshold_source == "invalid":
        return "invalid, nothing is told"
    return ", ".join(f"{threshold.ratio * 100:.6g}%" for threshold in shown.thresholds)


def _reading(shown: ContextSnapshot) -> str:
    """Say how full the window is; an agent that is registered and never measured stands out."""
    if shown.used_percentage is None or shown.sampled_at is None:
        return "none yet"
    from ultramon.clock import SYSTEM_CLOCK

    seconds = max(0.0, SYSTEM_CLOCK.now() - shown.sampled_at.timestamp())
    return f"{shown.used_percentage:g}%, {age(seconds)} ago"
