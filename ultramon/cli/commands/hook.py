"""`ultramon hook`: what an installed hook runs, for trying it out by hand."""

from __future__ import annotations

import click

from ultramon.system.environment import state_directory


@click.command("hook")
@click.argument("host", metavar="HOST")
def command(host: str) -> int:
    """Handle one hook call of HOST: a payload on stdin, JSON or nothing on stdout.

    Installed hooks of claude-code run the same code without this command line, which would cost
    the client time. Whatever happens, the exit code is 0; `ultramon doctor` shows what failed.
    """
    from ultramon.cli.commands.install import named_host
    from ultramon.hosts.hook_program import run
    from ultramon.hosts.installed_choices import choices_path

    chosen = named_host(host, {})
    return run(lambda: chosen, choices_path(state_directory(), host))
