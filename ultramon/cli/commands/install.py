"""`ultramon install`: make a coding agent report itself."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.output import print_json, say
from ultramon.cli.selection import chosen_directory, json_option, state_dir_option
from ultramon.errors import ConfigurationError
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ultramon.hosts.install.plans import Offer, Plan
    from ultramon.hosts.port import Host

_MAX_LINE_CHARS = 100_000
_COMMANDS_ONLY = "tool calls are reported by commands, not by requests"
_GONE = {
    "--via": f"{_COMMANDS_ONLY}: leave it out",
    "--url": f"{_COMMANDS_ONLY}: leave it out",
    "--secret-in": f"{_COMMANDS_ONLY}, and need no secret: leave it out",
}
"""Options of earlier versions, with what to do instead."""


def setup_options(plugin_help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds HOST and the options of both `install` and `uninstall`.

    The command gets ``--user``, ``--project`` and ``--local`` as ``layer``: the name of the one
    that was given, None without one.
    """
    layers = {
        "user": "In the settings of this user, for all projects.  [default]",
        "project": "In .claude/settings.json of this directory: everybody in this project.",
        "local": "In .claude/settings.local.json of this directory: you, in this project.",
    }
    options = (
        click.argument("host", metavar="HOST"),
        *(click.option(f"--{name}", is_flag=True, help=text) for name, text in layers.items()),
        click.option("--plugin", type=click.Path(file_okay=False), metavar="DIR", help=plugin_help),
        click.option("--dry-run", is_flag=True, help="Only show what would change."),
        click.option("--verbose", is_flag=True, help="Show what changes in the client's file."),
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


@click.command("install")
@setup_options("Write a plugin folder instead of changing settings.")
@click.option(
    "--force",
    is_flag=True,
    help="Even from a project's own virtual environment, or one in a cache.",
)
@click.option(
    "--audience",
    type=click.Choice(("agent", "orchestrator", "both", "none")),
    help="Who is warned that a window fills: the session itself, or those who watch it."
    "  [default: as before, else agent]",
)
@click.option(
    "--context-limit",
    "context_limit_tokens",
    type=click.IntRange(0, 1_000_000_000),
    metavar="TOKENS",
    help="Count the window as full at so many tokens, if that is less; 0 = no such limit."
    "  [default: as before, else none]",
)
@click.option(
    "--warning",
    type=float,
    metavar="RATIO",
    help="Warn at this usage, a whole percent.  [default: as before, else 0.65]",
)
@click.option(
    "--critical",
    type=float,
    metavar="RATIO",
    help="Call this usage critical, a whole percent.  [default: as before, else 0.75]",
)
@click.option(
    "--handoff-note",
    metavar="TEXT",
    help="Add this to the instructions of every compaction; empty = nothing."
    "  [default: as before, else nothing]",
)
@click.option(
    "--critical-note",
    metavar="TEXT",
    help="End the warning at the critical rung with this sentence, at most 500"
    " characters; empty = nothing.  [default: as before, else nothing]",
)
@click.option(
    "--pins/--no-pins",
    default=None,
    help="After a compaction give the conversation back what `ultramon host pin` keeps, the last"
    " instruction and the open tasks. The instruction is kept in the session's state."
    "  [default: as before, else no]",
)
@click.option(
    "--enforce",
    type=click.Choice(("critical", "none")),
    help="End the turn of a session, and a subagent, that is asked to return at this level and"
    " goes on; its handoff and a git checkpoint are stored before."
    "  [default: as before, else none]",
)
@click.option(
    "--enforce-dry-run",
    is_flag=True,
    default=None,
    help="With --enforce: end nothing, only note what would be ended.",
)
@click.option(
    "--status-line",
    type=click.Choice(("own", "chained", "both", "none")),
    help="Show ultramon's, the one that was there before, or both; none = leave it alone."
    "  [default: as before, else chained where there is one, own where not]",
)
@_gone_options
@click.option(
    "--resident/--no-resident",
    default=None,
    help="Have one process answer the hooks of all sessions over a Unix socket, so that a tool call"
    " waits for less. The first session starts it, it ends 15 minutes after the last."
    "  [default: as before, else yes, on Linux]",
)
@state_dir_option()
@json_option
def command(
    *,
    host: str,
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

    Puts hooks and a status line into the client's settings, beside what is there: foreign
    entries, their order and every other byte stay. A status line that is there already is kept
    and goes on being shown; on a terminal you are asked whether ultramon's shall stand beside it.
    --dry-run and --verbose print the diff to stdout; `ultramon uninstall` brings the old file back.
    Doing it again changes nothing, or brings the entries up to date.

    HOST is claude-code, codex, gemini, qwen, or a host that another package offers.
    """
    from ultramon.hosts.install.plans import Choices, SetupRequest

    chosen = named_host(host, {"plugin": plugin, **choices})
    directory = chosen_directory(state_dir)
    request = SetupRequest(host, os.getcwd(), directory, layer, Choices(**choices), plugin, force)
    plan = chosen.setup.plan_installation(request)
    offer = plan.offer
    if offer is not None and not (dry_run or json) and _accepts(offer):
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
    if offer is not None:
        say(f"--{offer.field.replace('_', '-')} {offer.value} shows ultramon's status line too")


def _accepts(offer: Offer) -> bool:
    """Ask a person who can answer; without one the answer is no."""
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return click.confirm(offer.question, default=False, err=True)
