"""Installs and removes the hooks of Codex: planned first, then shown, then done.

Never on a hook's path.
"""

from __future__ import annotations

import os

from ultramon.errors import ConfigurationError
from ultramon.hosts.codex import NAME
from ultramon.hosts.codex.configuration import home_directory
from ultramon.hosts.hook_commands import HookScript, command_line, script_path
from ultramon.hosts.hook_settings import HookSettings
from ultramon.hosts.installation import Installation, Removal
from ultramon.hosts.interpreter import lasting_interpreter
from ultramon.hosts.setup import SetupRequest

HOOK = HookScript("codex", "hook.py", ("hook", NAME))
EVENTS = (
    "SessionStart",
    "UserPromptSubmit",
    "PostToolUse",
    "SubagentStart",
    "SubagentStop",
    "PreCompact",
    "PostCompact",
    "Stop",
)
"""What ultramon needs to hear of. The client waits for each, so PreToolUse, which says nothing that
PostToolUse does not say, is left out."""
SECONDS = 10
_USER = "user"
_TRUST = (
    "Codex runs these hooks only after you have reviewed and trusted them: start `codex` once and"
    " answer its question about hooks. Until then it leaves them out and says nothing;"
    " `ultramon doctor` sees that. It asks again whenever their command changes."
)


class CodexHooks(HookSettings):
    """The client's ``hooks.json``."""

    script = HOOK
    events = EVENTS


def hooks_path() -> str:
    """Return the client's ``hooks.json``, whether it exists or not.

    Raises:
        ConfigurationError: ``CODEX_HOME`` is not set and this user has no home directory.
    """
    folder = home_directory(os.environ)
    if folder.startswith("~"):
        allowed = "an absolute path where the user has no home directory"
        raise ConfigurationError("CODEX_HOME", None, allowed, "environment")
    return os.path.join(os.path.abspath(folder), "hooks.json")


def plan_installation(request: SetupRequest) -> Installation:
    """Plan an installation that runs the Python of this program.

    Raises:
        ConfigurationError: A choice is not allowed, or this program may not last.
        StateError: A file cannot be read.
    """
    _check_layer(request)
    if request.choices.handoff_note:
        allowed = "a host whose compaction takes instructions; Codex takes none from hooks"
        raise ConfigurationError("handoff_note", request.choices.handoff_note[:40], allowed)
    interpreter = lasting_interpreter(request.cwd, force=request.force)
    settings = CodexHooks(hooks_path())
    plan = Installation.begin(settings, NAME, request, interpreter)
    command = command_line(interpreter, script_path(HOOK), plan.installed.path)
    hook = {"type": "command", "command": command, "timeout": SECONDS}
    settings.put_entries({event: {"hooks": [hook]} for event in EVENTS})
    plan.after = settings.data
    plan.warn_of_wrapped_hooks()
    if plan.changes_settings:
        plan.warnings.append(_TRUST)
    return plan


def plan_removal(request: SetupRequest) -> Removal:
    """Plan to take ultramon's hooks out of the client's file.

    Raises:
        ConfigurationError: There is no such layer.
        StateError: A file cannot be read; it is left alone.
    """
    _check_layer(request)
    plan = Removal.begin(CodexHooks(hooks_path()), NAME, request.state_directory)
    plan.take_out()
    plan.plan_traces()
    return plan


def _check_layer(request: SetupRequest) -> None:
    if request.layer not in (None, _USER):
        allowed = f"{_USER}: Codex has one hooks.json for each user"
        raise ConfigurationError("layer", request.layer, allowed, "argument")
