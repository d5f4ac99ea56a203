"""`ultramon completion`: what makes a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ultramon.cli.output import print_json
from ultramon.cli.selection import json_option

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", epilog='Example: eval "$(ultramon completion bash)", in ~/.bashrc')
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
@click.pass_context
def command(context: click.Context, *, shell: str, json: bool) -> None:
    """Print a script with which a shell completes commands.

    Have the shell read it when it starts: bash and zsh with eval, fish from a file:
    `ultramon completion fish > ~/.config/fish/completions/ultramon.fish`.
    """
    root = context.find_root()
    completion = get_completion_class(shell)
    assert completion is not None
    made = completion(root.command, {}, "ultramon", "_ULTRAMON_COMPLETE")
    script = made.source_template % made.source_vars()
    if json:
        print_json({"shell": shell, "script": script})
    else:
        click.echo(script)
