"""Whether what settings name runs: launcher and interpreter. Never on a hook's path."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ultramon.errors import StateCorruptError
from ultramon.hosts.doctor_context import problem, warning
from ultramon.hosts.install.hook_commands import HookScript, OurCommand
from ultramon.hosts.install.interpreter import check_command
from ultramon.hosts.install.launcher import code_path, read_launcher
from ultramon.system.findings import Finding


def check_hook_command(
    found: OurCommand,
    script: HookScript,
    own_choices: str,
    install: str,
) -> Iterator[Finding]:
    """Answer whether what settings name is there, starts, and is this ultramon.

    Args:
        found: The command in the settings.
        script: What it is to run.
        own_choices: Where they are.
        install: The command that installs it anew.
    """
    try:
        command = read_launcher(found.program, script) if found.is_launcher else found
    except (StateCorruptError, OSError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", error)
        yield problem("launcher", f"{found.program}: {reason}: no hook runs", install)
        return
    yield check_command(command, install)
    if found.is_launcher and os.path.lexists(code := code_path(found.program)):
        yield warning("launcher", f"{code}: compiled code of an earlier ultramon", install)
    chosen = command.choices_path
    if chosen and os.path.realpath(chosen) != os.path.realpath(own_choices):
        here = os.path.dirname(own_choices)
        message = f"the hook uses {chosen}, this is {here}"
        cure = f"set ULTRAMON_STATE_DIR to the hook's directory, or {install}"
        yield warning("state directory", message, cure)
