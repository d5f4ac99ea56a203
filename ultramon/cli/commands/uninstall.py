"""`ultramon uninstall`: take a coding agent's hooks out again."""

from __future__ import annotations

import os

import click

from ultramon.cli.commands.install import (
    HOSTS,
    chosen_directory,
    chosen_layer,
    layer_options,
    show_change,
)
from ultramon.cli.output import ExitCode, say
from ultramon.cli.selection import json_option, state_dir_option


@click.command("uninstall")
@click.argument("host", type=click.Choice(HOSTS), metavar="HOST")
@layer_options
@click.option(
    "--plugin",
    type=click.Path(file_okay=False),
    metavar="DIR",
    show_envvar=True,
    help="Delete a plugin folder that was written by install.",
)
@click.option("--dry-run", is_flag=True, show_envvar=True, help="Only show what would change.")
@state_dir_option()
@json_option
def command(
    *,
    host: str,
    user: bool,
    project: bool,
    local: bool,
    plugin: str | None,
    dry_run: bool,
    state_dir: str | None,
    json: bool,
) -> ExitCode:
    """Take what install put there out again.

    Where nothing else was changed since, the settings get their old bytes back; else only our
    entries go. With the last installation go its choices, backups and failure log. What is known
    about agents stays: `ultramon prune` deletes those that have ended.

    HOST is claude-code.
    """
    from ultramon.hosts.claude_code.setup.plugin import plan_plugin_removal
    from ultramon.hosts.claude_code.setup.settings import Layer, layer_path
    from ultramon.hosts.claude_code.setup.uninstall import plan_removal

    name = chosen_layer(user=user, project=project, local=local)
    cwd, directory = os.getcwd(), chosen_directory(state_dir)
    if plugin is not None:
        if user or project or local:
            raise click.UsageError("--plugin and a layer of settings exclude each other")
        plan = plan_plugin_removal(plugin, cwd, directory)
    else:
        plan = plan_removal(Layer(name, layer_path(name, cwd)), cwd, directory)
    changes = plan.changes
    if changes and not dry_run:
        plan.apply()
    show_change(plan, changes=changes, dry_run=dry_run, json=json, deleted=plan.traces)
    if not plan.changes_settings:
        say(f"{plan.settings.path} holds nothing of ultramon")
    elif dry_run:
        say(f"{plan.settings.path} would be restored; nothing was written")
    else:
        say(f"taken out of {plan.settings.path}")
    return ExitCode.OK
