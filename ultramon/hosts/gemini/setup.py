"""Installs and removes the hooks of Gemini: planned first, then shown, then done.

Never on a hook's path.
"""

from __future__ import annotations

import os

from ultramon.hosts import user_hooks
from ultramon.hosts.gemini import NAME
from ultramon.hosts.gemini.configuration import HOME_VARIABLE, SETTINGS_NAME, home_directory
from ultramon.hosts.hook_commands import HookScript
from ultramon.hosts.hook_settings import HookSettings
from ultramon.hosts.installation import Installation, Removal
from ultramon.hosts.setup import SetupRequest
from ultramon.hosts.user_hooks import refuse_handoff_note, user_file

HOOK = HookScript("gemini", "hook.py", ("hook", NAME), f"{NAME}.ultramon-hook")
EVENTS = (
    "SessionStart", "BeforeAgent", "AfterTool", "Notification", "AfterAgent", "SessionEnd",
)  # fmt: skip
"""What ultramon needs to hear of. The client waits for each hook; one for every piece of a reply
would be called six times as often."""
ENFORCING_EVENTS = ("BeforeModel",)
"""The one event by which the client ends a turn when all tools of a reply have run."""
HOOK_NAME = "ultramon"
MILLISECONDS = 10_000
_LIMIT = (
    "Gemini does not report its window: a session of a single prompt, and a subagent, is ended only"
    " where you state a limit with --context-limit"
)


class GeminiHooks(HookSettings):
    """The user's ``settings.json``."""

    script = HOOK
    events = EVENTS
    enforcing_events = ENFORCING_EVENTS
    may_have_comments = True


def hooks() -> GeminiHooks:
    """Return the user's ``settings.json``, whether it exists or not.

    Raises:
        ConfigurationError: ``GEMINI_CLI_HOME`` is not set and this user has no home directory.
        StateError: It cannot be read.
    """
    return GeminiHooks(user_file(home_directory(os.environ), SETTINGS_NAME, HOME_VARIABLE))


def plan_installation(request: SetupRequest) -> Installation:
    """Plan an installation; see `user_hooks.plan_installation`."""
    refuse_handoff_note(NAME, request)
    plan = user_hooks.plan_installation(
        hooks(), NAME, request, name=HOOK_NAME, timeout=MILLISECONDS
    )
    if plan.installed.enforce is not None and plan.installed.context_limit_tokens is None:
        plan.warnings.append(_LIMIT)
    return plan


def plan_removal(request: SetupRequest) -> Removal:
    """Plan to take the hooks out again."""
    return user_hooks.plan_removal(hooks(), NAME, request)
