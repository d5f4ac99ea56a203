"""`ultramon host statusline`: what an installed status line runs, for trying it out by hand."""

from __future__ import annotations

import click

from ultramon.system.environment import state_directory


@click.command("statusline", epilog="Example: ultramon host statusline < payload.json")
def command() -> int:
    """Show how full a Claude Code session is: its status line JSON on stdin, one line on stdout.

    The status line that was there before ultramon's is run too, and shown as the installation
    says. Installed status lines run the same code without this command line.
    """
    from ultramon.hosts.claude_code.host import CLAUDE_CODE
    from ultramon.hosts.claude_code.status_line import main
    from ultramon.hosts.installed_choices import choices_path

    return main(["statusline", choices_path(state_directory(), CLAUDE_CODE.name)])
