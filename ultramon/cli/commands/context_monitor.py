"""`ultramon context monitor`: subscriptions to notices about agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ultramon.backends.registry import registry_of
from ultramon.cli.caller import caller_id, require_caller
from ultramon.cli.exit_codes import CommandFailed
from ultramon.cli.output import age, field, print_json, print_result, say
from ultramon.cli.selection import find_agent_id, open_store, store_options
from ultramon.system.environment import disabled

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.context.ladder import Ladder
    from ultramon.fleet.snapshot import ContextSnapshot

ACTIONS = ("enable", "disable", "status")
_THRESHOLD_OPTIONS = ("thresholds", "critical_threshold", "use_default_thresholds")
_TITLES = ("Session", "Name", "Notify Target", "Thresholds", "Reading")


@click.command(
    "context-monitor", epilog="Example: ultramon context monitor enable scout-2 --notify lead"
)
@click.argument("action", metavar="enable|disable|status")
@click.argument("agent", required=False)
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    type=click.FloatRange(0, 100, min_open=True),
    metavar="PERCENT",
    help="Notify at this usage; can be given several times.  [default: the agent's own levels]",
)
@click.option(
    "--critical-threshold",
    type=click.FloatRange(0, 100, min_open=True),
    metavar="PERCENT",
    help="Notify urgently at this usage, and at the agent's own levels below it.",
)
@click.option(
    "--use-default-thresholds",
    is_flag=True,
    help="Notify at the agent's own levels, as without these options.",
)
@click.option(
    "--notify", metavar="AGENT", help="Send the notices to this agent.  [default: the caller]"
)
@store_options
@click.pass_context
def command(
    context: click.Context,
    *,
    action: str,
    agent: str | None,
    thresholds: tuple[float, ...],
    critical_threshold: float | None,
    use_default_thresholds: bool,
    notify: str | None,
    state_dir: str | None,
    json: bool,
) -> None:
    """Enable, disable or list notices about agents.

    `enable` sends notices about AGENT to a recipient, and re-arms every threshold; `disable` ends
    that; `status` lists the agents with their recipients. AGENT is an id, the beginning of one, or
    a label; the default is the caller itself.

    The caller is the agent named by ULTRAMON_AGENT_ID (or CLAUDE_SESSION_MANAGER_ID). It may enable
    and disable itself and its direct children, and is the recipient, unless --notify names the
    agent itself or one of its ancestors. A person names any AGENT, and with --notify any recipient.

    Only one of the options for thresholds can be given.
    """
    if action not in ACTIONS:
        raise CommandFailed(f"Unknown action {action!r}. Use: {', '.join(ACTIONS)}")
    if action == "status":
        _status(open_store(state_dir), as_json=json)
        return
    chosen = _chosen(context) if action == "enable" else None
    caller = caller_id()
    if agent is None or (action == "enable" and notify is None):
        caller = require_caller("ultramon context monitor enable/disable")
    backend = open_store(state_dir)
    target = agent or caller or ""
    if target != caller:
        target = find_agent_id(backend, target)
    if action == "disable":
        from ultramon.routing import unregister

        cancelled = unregister(target, caller, backend=backend)
        print_result(
            {"agentId": target, "enabled": False, "wasEnabled": cancelled is not None},
            f"Context monitoring disabled for {target}",
            as_json=json,
        )
        return
    made = None
    if not disabled():
        from ultramon.routing import register

        rungs: Ladder | list[float] | None = None
        if chosen == "critical_threshold" and critical_threshold is not None:
            rungs = _with_critical(backend, target, critical_threshold / 100)
        elif chosen == "thresholds":
            rungs = [percent / 100 for percent in thresholds]
        recipient = None if notify is None else find_agent_id(backend, notify)
        made = register(target, caller, recipient, rungs, backend=backend)
    # Read again, as it may have been ended at the same time.
    is_enabled = made is not None and any(
        one.notify_id == made.notify_id and one.is_enforced
        for one in registry_of(backend).registrations(target)
    )
    if json:
        shown = {} if made is None else made.model_dump(mode="json", by_alias=True)
        print_json({"agentId": target, **shown, "enabled": is_enabled})
    elif made is None or not is_enabled:
        why = "ULTRAMON_DISABLED is set" if made is None else "it was ended at the same time"
        say(f"FYI: context monitoring of {target} is not enabled: {why}")
    elif target == caller == made.notify_id:
        click.echo(f"Context monitoring enabled — notifications → self ({caller})")
    else:
        click.echo(f"Context monitoring enabled for {target} — notifications → {made.notify_id}")


def _chosen(context: click.Context) -> str | None:
    """Return the one option for thresholds that was given, None without one.

    Raises:
        click.UsageError: Several were given.
    """
    given = [name for name in _THRESHOLD_OPTIONS if context.params[name]]
    if len(given) > 1:
        flags = {option.name: option.opts[0] for option in context.command.params}
        options = " and ".join(flags[name] for name in given)
        raise click.UsageError(f"{options} cannot be combined: give one of them")
    return given[0] if given else None


def _with_critical(backend: Backend, agent_id: str, ratio: float) -> Ladder | None:
    from ultramon.context.ladder import Ladder
    from ultramon.context.levels import with_critical

    record = backend.load(agent_id).record
    return None if record is None else with_critical(Ladder.from_json(record.ladder), ratio)


def _status(backend: Backend, *, as_json: bool) -> None:
    from ultramon.errors import UltramonError
    from ultramon.fleet.snapshot import take_snapshot
    from ultramon.routing import registrations

    typed = registrations(backend=backend)
    if as_json:
        print_json({"monitored": [one.model_dump(mode="json", by_alias=True) for one in typed]})
        return
    if not typed:
        click.echo("No sessions currently registered for context monitoring.")
        return
    rows: list[tuple[str, ...]] = [_TITLES]
    for one in registry_of(backend).registrations():
        try:
            shown = take_snapshot(backend.load(one.agent_id), one)
            name, thresholds, reading = shown.label, _thresholds(shown), _reading(shown)
        except UltramonError:
            name = thresholds = reading = "?"  # deleted or unreadable, and still registered
        rows.append(tuple(map(field, (one.agent_id, name, one.notify_id, thresholds, reading))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(r, widths, strict=True)) for r in rows
    ]
    lines.insert(1, "-" * max(len(line.rstrip()) for line in lines))
    click.echo("\n".join(line.rstrip() for line in lines))


def _thresholds(shown: ContextSnapshot) -> str:
    if shown.threshold_source == "invalid":
        return "invalid, no notices"
    return ", ".join(f"{threshold.ratio * 100:.6g}%" for threshold in shown.thresholds)


def _reading(shown: ContextSnapshot) -> str:
    """Return the last reading; ``none yet`` marks an agent that was never measured."""
    if shown.used_percentage is None or shown.measured_at is None:
        return "none yet"
    from ultramon.system.clock import SYSTEM_CLOCK

    seconds = max(0.0, SYSTEM_CLOCK.now() - shown.measured_at.timestamp())
    return f"{shown.whole_percent}%, {age(seconds)} ago"
