"""Installs and removes the hooks of Codex: planned first, then shown, then done.

Never on a hook's path.
"""

from __future__ import annotations

import os

from ultramon.errors import ConfigurationError
from ultramon.hosts.codex import NAME
from ultramon.hosts.codex.configuration import home_directory
from ultramon.hosts.hook_commands import HookScript
from ultramon.hosts.hook_settings import HookSettings
from ultramon.hosts.installation import (
    Installation,
    Removal,
    plan_user_hooks,
    plan_user_removal,
)
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
    """Plan an installation that runs the Python of this program; see `plan_user_hooks`."""
    plan = plan_user_hooks(CodexHooks(hooks_path()), NAME, request, timeout=SECONDS)
    if plan.changes_settings:
        plan.warnings.append(_TRUST)
    return plan


def plan_removal(request: SetupRequest) -> Removal:
    """Plan to take ultramon's hooks out of the client's file; see `plan_user_removal`."""
    return plan_user_removal(CodexHooks(hooks_path()), NAME, request)
