"""`ultramon host statusline`: what an installed status line runs, for trying it out by hand."""

from __future__ import annotations

import click

from ultramon.system.environment import state_directory


@click.command("statusline", epilog="Example: ultramon host statusline < payload.json")
@click.argument("host", type=click.Choice(("claude-code", "copilot")), default="claude-code")
def command(host: str) -> int:
    """Show how full a session is: its host's status line JSON on stdin, one line on stdout.

    The status line that was there before ultramon's is run too, and shown as the installation
    says. Installed status lines run the same code without this command line.
    """
    from importlib import import_module

    from ultramon.hosts.installed_choices import choices_path
    from ultramon.hosts.registry import find_host

    program = import_module(f"{find_host(host).package}.status_line")
    return int(program.main(["statusline", choices_path(state_directory(), host)]))
