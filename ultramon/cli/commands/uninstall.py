"""`ultramon uninstall`: take a coding agent's hooks out again."""

from __future__ import annotations

import os

import click

from ultramon.cli.commands.install import carry_out, named_host, setup_options
from ultramon.cli.output import say
from ultramon.cli.selection import (
    chosen_directory,
    json_option,
    project_directory,
    state_dir_option,
)


@click.command("uninstall", epilog="Example: ultramon uninstall claude-code --dry-run")
@setup_options("Delete a plugin folder that was written by install.")
@state_dir_option()
@json_option
def command(
    *,
    host: str,
    layer: str | None,
    plugin: str | None,
    dry_run: bool,
    verbose: bool,
    state_dir: str | None,
    json: bool,
) -> None:
    """Take what install put there out again.

    Where nothing else was changed since, the settings get their old bytes back; else only the
    entries of ultramon go. With the last installation go its choices, backups and failure log.
    Pins stay, and so do states of agents: `ultramon backend prune` deletes those that have ended.

    HOST is claude-code, codex, copilot, gemini, opencode, qwen, or one that another package offers.
    """
    from ultramon.hosts.install.plans import SetupRequest
    from ultramon.state.pins import Pins

    chosen = named_host(host, {"plugin": plugin})
    directory = chosen_directory(state_dir)
    request = SetupRequest(host, project_directory(layer), directory, layer, plugin=plugin)
    plan = chosen.setup.plan_removal(request)
    # Asked before it is carried out; afterwards there is nothing to change.
    is_there = plan.changes_settings
    carry_out(plan, dry_run=dry_run, verbose=verbose, json=json)
    if not is_there:
        say(f"{plan.path} holds nothing of ultramon")
    elif dry_run:
        say(f"{plan.path} would be restored; nothing was written")
    else:
        say(f"taken out of {plan.path}")
    pins = Pins(directory).path
    if os.path.exists(pins):
        say(f"pins stay in {pins}; `ultramon host pin --list` shows those of a project")
