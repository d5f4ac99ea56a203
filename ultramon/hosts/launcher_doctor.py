"""Whether what settings name runs: launcher, interpreter, bundle. Never on a hook's path."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ultramon.errors import StateCorruptError
from ultramon.hosts.code_bundle import bundle_path, problem_of_bundle
from ultramon.hosts.doctor import problem, warning
from ultramon.hosts.hook_commands import HookScript, OurCommand
from ultramon.hosts.installed_choices import InstalledChoices
from ultramon.hosts.interpreter import check_command
from ultramon.hosts.launcher import read_launcher
from ultramon.system.findings import Finding


def check_hook_command(
    found: OurCommand,
    script: HookScript,
    stored: InstalledChoices | None,
    own_choices: str,
    install: str,
) -> Iterator[Finding]:
    """Answer whether what settings name is there, starts, and is this ultramon.

    Args:
        found: The command in the settings.
        script: What it is to run.
        stored: The choices of the host; None = they are missing or cannot be read.
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
    if found.is_launcher and stored is not None and not stored.resident:
        reason = problem_of_bundle(found.program)
        if reason is not None:
            path = bundle_path(found.program)
            yield warning("bundle", f"{path}: {reason}: hooks take longer to start", install)
    chosen = command.choices_path
    if chosen and os.path.realpath(chosen) != os.path.realpath(own_choices):
        here = os.path.dirname(own_choices)
        message = f"the hook uses {chosen}, this is {here}"
        yield warning("state directory", message, f"set ULTRAMON_STATE_DIR, or {install}")
