"""`ultramon install`: make a coding agent report itself."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.output import confirmed, print_json, say
from ultramon.cli.selection import (
    chosen_directory,
    json_option,
    project_directory,
    state_dir_option,
)
from ultramon.cli.views.installable_hosts import print_hosts
from ultramon.errors import ConfigurationError
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ultramon.hosts.install.plans import Plan
    from ultramon.hosts.port import Host

_MAX_LINE_CHARS = 100_000
_COMMANDS_ONLY = "tool calls are reported by commands, not by requests"
_GONE = {
    "--via": f"{_COMMANDS_ONLY}: leave it out",
    "--url": f"{_COMMANDS_ONLY}: leave it out",
    "--secret-in": f"{_COMMANDS_ONLY}, and need no secret: leave it out",
}
"""Options of earlier versions, with what to do instead."""


def setup_options(
    plugin_help: str, *, needs_host: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds HOST and the options of both `install` and `uninstall`.

    The command gets ``--user``, ``--project`` and ``--local`` as ``layer``: the name of the one
    that was given, None without one.
    """
    layers = {
        "user": "In this user's settings.  [default]",
        "project": "In .claude/settings.json of this directory.",
        "local": "In this directory's settings.local.json.",
    }
    options = (
        click.argument("host", metavar="HOST" if needs_host else "[HOST]", required=needs_host),
        *(click.option(f"--{name}", is_flag=True, help=text) for name, text in layers.items()),
        click.option("--plugin", type=click.Path(file_okay=False), metavar="DIR", help=plugin_help),
        click.option("--dry-run", is_flag=True, help="Only show what would change."),
        # On request only: forty lines of JSON hid the one sentence that matters.
        click.option("--verbose", is_flag=True, help="Show what changes in the host's file."),
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_layer(*, plugin: str | None, **given: Any) -> Any:
            chosen = [name for name in layers if given.pop(name)]
            if len(chosen) > 1:
                raise click.UsageError(f"--{chosen[0]} and --{chosen[1]} exclude each other")
            if chosen and plugin is not None:
                raise click.UsageError("--plugin and a layer of settings exclude each other")
            return command(layer=chosen[0] if chosen else None, plugin=plugin, **given)

        for add in reversed(options):
            add(with_layer)
        return with_layer

    return decorate


def _refuse_gone(_context: click.Context, option: click.Parameter, value: str | None) -> None:
    """Refuse an option of an earlier version.

    Raises:
        click.UsageError: It was given.
    """
    if value is not None:
        name = option.opts[0]
        raise click.UsageError(f"{name} is gone: {_GONE[name]}")


def _gone_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name in _GONE:
        command = click.option(name, hidden=True, expose_value=False, callback=_refuse_gone)(
            command
        )
    return command


def named_host(name: str, options: Mapping[str, object]) -> Host:
    """Return a host that takes the given options.

    Args:
        name: Of the host.
        options: What was asked of it; None = not given.

    Raises:
        click.UsageError: There is no such host, or it does not take one of them.
    """
    from ultramon.hosts.install.plans import OPTIONAL
    from ultramon.hosts.registry import find_host

    try:
        host = find_host(name)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    for option, value in options.items():
        if value is not None and option in OPTIONAL and option not in host.setup.own_options:
            raise click.UsageError(f"{name} has no --{option.replace('_', '-')}")
    return host


def carry_out(plan: Plan, *, dry_run: bool, verbose: bool, json: bool, **more: Any) -> bool:
    """Do what was planned, and print it: a diff to stdout where it is wanted, words to stderr.

    Returns:
        Whether there was anything to do.
    """
    from ultramon.system.clock import SYSTEM_CLOCK

    changes = plan.changes
    if changes and not dry_run:
        plan.apply(SYSTEM_CLOCK.now())
    for warning in plan.warnings:
        say(f"Warning: {warning}")
    if json:
        print_json(
            {
                "settings": plan.path,
                "changed": changes,
                "dryRun": dry_run,
                "diff": plan.diff(),
                "warnings": plan.warnings,
                **more,
                **plan.details(),
            }
        )
        return changes
    for line in plan.diff().splitlines() if dry_run or verbose else ():
        click.echo(sanitize(line, max_chars=_MAX_LINE_CHARS))
    for note in plan.notes:
        say(note)
    return changes


@click.command("install", epilog="Example: ultramon install claude-code --dry-run")
@setup_options("Write a plugin folder, change no settings.", needs_host=False)
@click.option("--force", is_flag=True, help="Even from an environment that may not last.")
@click.option(
    "--audience",
    type=click.Choice(("agent", "orchestrator", "both", "none")),
    metavar="WHO",
    help="Who is warned: agent (the session itself), orchestrator, both, none.  [agent]",
)
@click.option(
    "--context-limit",
    "context_limit_tokens",
    type=click.IntRange(0, 1_000_000_000),
    metavar="TOKENS",
    help="Count the window as full at so many.  [0: none]",
)
@click.option(
    "--warning", type=float, metavar="RATIO", help="Warn at this usage, a whole percent.  [0.65]"
)
@click.option(
    "--critical", type=float, metavar="RATIO", help="Call this usage critical, likewise.  [0.75]"
)
@click.option("--handoff-note", metavar="TEXT", help="Add to the instructions of every compaction.")
@click.option("--critical-note", metavar="TEXT", help="End the critical warning with this.")
@click.option(
    "--pins/--no-pins",
    default=None,
    help="After a compaction give back pins, tasks and last instruction (kept in the state).  [no]",
)
@click.option(
    "--enforce",
    type=click.Choice(("critical", "none")),
    metavar="LEVEL",
    help="End who continues at this level (critical), asked to return; its work is kept.  [none]",
)
@click.option(
    "--enforce-dry-run", is_flag=True, default=None, help="Only note what --enforce would end."
)
@click.option(
    "--status-line",
    type=click.Choice(("own", "chained", "both", "none")),
    metavar="WHOSE",
    help="own, chained (the one that was there), both, or none.  [chained, else own]",
)
@click.option(
    "--status-line-parts",
    metavar="NAMES",
    help="Parts of ultramon's own in their order, of context, subagents, cost, budget, plan, cache,"
    " continue.  [all]",
)
@_gone_options
@click.option(
    "--resident/--no-resident",
    default=None,
    help="Let one process answer all hooks.  [Linux, macOS: yes]",
)
@state_dir_option()
@json_option
def command(
    *,
    host: str | None,
    layer: str | None,
    plugin: str | None,
    dry_run: bool,
    verbose: bool,
    force: bool,
    state_dir: str | None,
    json: bool,
    **choices: Any,
) -> None:
    """Make a coding agent report itself.

    Puts hooks and a status line into the host's settings; every other byte of them stays. A
    status line that is there is kept and shown. Called again it brings its entries up to date,
    and what is not given stays as it was, else as in [brackets].

    HOST is claude-code, codex, copilot, gemini, opencode, qwen, or one that another package offers;
    without it those of this machine are listed.
    """
    if host is None:
        # A choice is for an installation, and without a host there is none.
        if layer or plugin or dry_run or any(value is not None for value in choices.values()):
            raise click.UsageError("Missing argument 'HOST'.")
        print_hosts(chosen_directory(state_dir), as_json=json)
        return
    from ultramon.hosts.install.plans import Choices, SetupRequest

    chosen = named_host(host, {"plugin": plugin, **choices})
    directory = chosen_directory(state_dir)
    cwd = project_directory(layer)
    request = SetupRequest(host, cwd, directory, layer, Choices(**choices), plugin, force)
    plan = chosen.setup.plan_installation(request)
    offer = plan.offer
    if offer is not None and not (dry_run or json) and confirmed(offer.question):
        choices[offer.field] = offer.value
        plan = chosen.setup.plan_installation(request._replace(choices=Choices(**choices)))
        offer = None
    if not carry_out(plan, dry_run=dry_run, verbose=verbose, json=json, stateDirectory=directory):
        say(f"{plan.path} is up to date")
    elif dry_run:
        say(f"{plan.path} would be changed; nothing was written")
    else:
        say(f"installed in {plan.path}: {plan.contents}")
        say("sessions that start from now on report themselves; those that run now do not")
        say(f"`ultramon watch` shows them; `ultramon uninstall {host}` brings the old file back")
        if state_dir:
            # Such as of a trial in this shell: other shells would look in vain.
            say(f"they report to {directory}: a shell sees them if ULTRAMON_STATE_DIR is that")
    if offer is not None:
        say(f"--{offer.field.replace('_', '-')} {offer.value} shows ultramon's status line too")
