"""`ultramon host hook`: what an installed hook runs, for trying it out by hand."""

from __future__ import annotations

import click

from ultramon.system.environment import state_directory


@click.command("hook", epilog="Example: ultramon host hook claude-code < payload.json")
@click.argument("host", metavar="HOST")
@click.argument("payload", metavar="[PAYLOAD]", required=False)
def command(host: str, payload: str | None) -> int:
    """Handle one hook call of HOST: a payload on stdin, JSON or nothing on stdout.

    With PAYLOAD, take the finished turn that Codex reports to its `notify` program:
    notify = ["ultramon", "host", "hook", "codex"].

    Installed hooks of claude-code run the same code without this command line, which would cost
    the host time. Whatever happens, the exit code is 0; `ultramon doctor` shows what failed.
    """
    from ultramon.cli.commands.install import named_host
    from ultramon.hosts.hook_program import run
    from ultramon.hosts.installed_choices import choices_path

    chosen = named_host(host, {})
    path = choices_path(state_directory(), host)
    if payload is None:
        return run(lambda: chosen, path)
    # Codex's `notify` adds its payload to the command line.
    from ultramon.hosts.codex.host import CODEX

    if chosen is not CODEX:
        raise click.UsageError(f"{host} gives its payloads on stdin; only codex adds one")
    from ultramon.hosts.codex.notify import take_turn

    # An argument's bytes that are no UTF-8 come back as they were.
    take_turn(payload.encode("utf-8", "surrogateescape"), path)
    return 0
