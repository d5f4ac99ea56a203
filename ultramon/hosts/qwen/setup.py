"""Installs and removes the hooks of Qwen Code: planned first, then shown, then done.

Never on a hook's path.
"""

from __future__ import annotations

import os

from ultramon.hosts import user_hooks
from ultramon.hosts.hook_commands import HookScript
from ultramon.hosts.hook_settings import HookSettings
from ultramon.hosts.installation import Installation, Removal
from ultramon.hosts.qwen import NAME
from ultramon.hosts.qwen.configuration import HOME_VARIABLE, SETTINGS_NAME, home_directory
from ultramon.hosts.setup import SetupRequest
from ultramon.hosts.user_hooks import user_file

HOOK = HookScript("qwen", "hook.py", ("hook", NAME), f"{NAME}.ultramon-hook")
EVENTS = (
    "SessionStart",
    "SessionEnd",
    "UserPromptSubmit",
    "PostToolUse",
    "PostToolUseFailure",
    "SubagentStart",
    "SubagentStop",
    "PreCompact",
    "PostCompact",
    "Stop",
    "StopFailure",
    "Notification",
)
"""What ultramon needs to hear of. The client waits for nearly each, so those that say nothing which
these do not say, such as PreToolUse and PostToolBatch, are left out; so is PermissionRequest, which
comes also where nobody is asked: for a subagent in the background, which is refused."""
MILLISECONDS = 10_000
"""Version 0.15 counts in these; newer ones count in seconds, and take 1,000 and more for these."""
OFF = "disableAllHooks"


class QwenSettings(HookSettings):
    """The client's ``settings.json`` of the user."""

    script = HOOK
    events = EVENTS
    may_have_comments = True


def settings() -> QwenSettings:
    """Return the client's ``settings.json`` of the user, whether it exists or not.

    Raises:
        ConfigurationError: ``QWEN_HOME`` is not set and this user has no home directory.
        StateError: It cannot be read.
    """
    return QwenSettings(user_file(home_directory(os.environ), SETTINGS_NAME, HOME_VARIABLE))


def is_off(settings: HookSettings) -> bool:
    """Return whether the user has switched all hooks off."""
    return settings.get(OFF) is True


def plan_installation(request: SetupRequest) -> Installation:
    """Plan an installation; see `user_hooks.plan_installation`."""
    own = settings()
    plan = user_hooks.plan_installation(own, NAME, request, timeout=MILLISECONDS)
    if is_off(own):
        plan.warnings.append(f"{own.path} sets {OFF}: no hook runs until that is taken out")
    return plan


def plan_removal(request: SetupRequest) -> Removal:
    """Plan to take the hooks out again."""
    return user_hooks.plan_removal(settings(), NAME, request)
