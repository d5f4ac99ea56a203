"""Installs and removes the hooks of Gemini: planned first, then shown, then done.

Never on a hook's path.
"""

from __future__ import annotations

import os

from ultramon.errors import ConfigurationError
from ultramon.hosts.gemini import NAME
from ultramon.hosts.gemini.configuration import HOME_VARIABLE, settings_path
from ultramon.hosts.hook_commands import HookScript
from ultramon.hosts.hook_settings import HookSettings
from ultramon.hosts.installation import (
    Installation,
    Removal,
    plan_user_hooks,
    plan_user_removal,
)
from ultramon.hosts.setup import SetupRequest

HOOK = HookScript("gemini", "hook.py", ("hook", NAME))
EVENTS = ("SessionStart", "BeforeAgent", "AfterTool", "AfterAgent", "SessionEnd")
"""What ultramon needs to hear of. The client waits for each hook; one for every piece of a reply
would be called six times as often."""
HOOK_NAME = "ultramon"
MILLISECONDS = 10_000


class GeminiHooks(HookSettings):
    """The user's ``settings.json``."""

    script = HOOK
    events = EVENTS


def hooks_path() -> str:
    """Return the user's ``settings.json``, whether it exists or not.

    Raises:
        ConfigurationError: ``GEMINI_CLI_HOME`` is not set and this user has no home directory.
    """
    path = settings_path(os.environ)
    if path.startswith("~"):
        allowed = "an absolute path where the user has no home directory"
        raise ConfigurationError(HOME_VARIABLE, None, allowed, "environment")
    return os.path.abspath(path)


def plan_installation(request: SetupRequest) -> Installation:
    """Plan an installation that runs the Python of this program; see `plan_user_hooks`."""
    settings = GeminiHooks(hooks_path())
    return plan_user_hooks(settings, NAME, request, name=HOOK_NAME, timeout=MILLISECONDS)


def plan_removal(request: SetupRequest) -> Removal:
    """Plan to take ultramon's hooks out of the client's file; see `plan_user_removal`."""
    return plan_user_removal(GeminiHooks(hooks_path()), NAME, request)
