"""The two scripts that Claude Code's settings run, and the events that they are run at."""

from __future__ import annotations

from typing import Any

from ultramon.hosts.install import hook_commands
from ultramon.hosts.install.hook_commands import HookScript, OurCommand
from ultramon.hosts.install.hook_settings import ASYNC

HOOK_SCRIPT = "hook.py"
STATUS_LINE_SCRIPT = "statusline.py"
LAUNCHERS = {
    HOOK_SCRIPT: "claude-code.ultramon-hook",
    STATUS_LINE_SCRIPT: "claude-code.ultramon-statusline",
}
"""File names of the launchers in the state directory, by the script that each replaces."""

EVENTS = (
    "SessionStart",
    "SessionEnd",
    "UserPromptSubmit",
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "SubagentStart",
    "SubagentStop",
    "PreCompact",
    "PostCompact",
    "Stop",
    "StopFailure",
    "Notification",
    "PermissionRequest",
)
"""The events that ultramon needs, in the order in which an installation writes it."""
NOT_WAITED_FOR = "PreToolUse"
"""The event whose command says nothing to the agent: the host need not wait for it."""
_SECONDS = 10
_SESSION_END_SECONDS = 5
_WITHOUT_MATCHER = frozenset(("UserPromptSubmit", "Stop"))

_VERBS = {HOOK_SCRIPT: ("hook", "claude-code"), STATUS_LINE_SCRIPT: ("statusline",)}
SCRIPTS = {
    name: HookScript("claude_code", name, verb, LAUNCHERS[name]) for name, verb in _VERBS.items()
}


def script_path(name: str, package: str | None = None) -> str:
    """Return the absolute path of one of the two scripts.

    Args:
        name: `HOOK_SCRIPT` or `STATUS_LINE_SCRIPT`.
        package: The directory that holds `ultramon`; None = that of this program.
    """
    return hook_commands.script_path(SCRIPTS[name], package)


def entry_for(event: str, command: str, *, waits: bool = False) -> dict[str, Any]:
    """Return the entry for the array of an event.

    Args:
        event: The event.
        command: What runs.
        waits: Whether the host waits for the start of each tool call to be noted, as an
            enforcement needs it, which counts the calls that run.
    """
    seconds = _SESSION_END_SECONDS if event == "SessionEnd" else _SECONDS
    hook: dict[str, Any] = {"type": "command", "command": command, "timeout": seconds}
    if event == NOT_WAITED_FOR and not waits:
        hook[ASYNC] = True
    hooks = {"hooks": [hook]}
    return hooks if event in _WITHOUT_MATCHER else {"matcher": "*", **hooks}


def recognise(hook: object, name: str) -> OurCommand | None:
    """Return what a hook or status line of ultramon runs; None = it is another tool's.

    Args:
        hook: One entry of a ``hooks`` array, or the ``statusLine`` block, decoded.
        name: `HOOK_SCRIPT` or `STATUS_LINE_SCRIPT`.
    """
    return hook_commands.recognise(hook, SCRIPTS[name])


def mentions(hook: object, name: str) -> bool:
    """Return whether a command runs ultramon's, alone or among other things."""
    return hook_commands.mentions(hook, SCRIPTS[name])
