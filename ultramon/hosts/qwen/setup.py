"""The setup of Qwen Code: its hooks, installed, removed and examined.

Never on a hook's path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from ultramon.hosts.doctor_context import problem
from ultramon.hosts.examine.memory_files import files_above
from ultramon.hosts.install.hook_commands import HookScript
from ultramon.hosts.install.hook_settings import HookSettings
from ultramon.hosts.install.installation import Installation
from ultramon.hosts.install.plans import SetupRequest
from ultramon.hosts.qwen.configuration import HOME_VARIABLE, SETTINGS_NAME, home_directory
from ultramon.hosts.qwen.host import QWEN
from ultramon.hosts.user_hooks import UserHooks, user_file
from ultramon.system.findings import Finding

HOOK = HookScript("qwen", "hook.py", ("hook", QWEN.name), f"{QWEN.name}.ultramon-hook")
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
"""The events that ultramon needs. The host waits for nearly each, so those that say nothing which
these do not say, such as PreToolUse and PostToolBatch, are left out; so is PermissionRequest, which
comes also where no person is asked: for a subagent in the background, which is refused."""
MILLISECONDS = 10_000
"""Version 0.15 counts in these; newer ones count in seconds, and take 1,000 and more for these."""
OFF = "disableAllHooks"
_CURE = "start `qwen`, and see its list of hooks with /hooks"


class QwenSettings(HookSettings):
    """The host's ``settings.json`` of the user."""

    script = HOOK
    events = EVENTS
    may_have_comments = True


def settings() -> QwenSettings:
    """Return the host's ``settings.json`` of the user, whether it exists or not.

    Raises:
        ConfigurationError: ``QWEN_HOME`` is not set and this user has no home directory.
        StateError: It cannot be read.
    """
    return QwenSettings(user_file(home_directory(os.environ), SETTINGS_NAME, HOME_VARIABLE))


def is_off(settings: HookSettings) -> bool:
    """Return whether the user has switched all hooks off."""
    return settings.get(OFF) is True


class QwenCodeSetup(UserHooks):
    """Hooks in the host's one file of them."""

    own_options = ("resident", "enforce", "enforce_dry_run")
    host = QWEN
    members: Mapping[str, Any] = {"timeout": MILLISECONDS}
    silence_cure = _CURE

    load = staticmethod(settings)

    def plan_installation(self, request: SetupRequest) -> Installation:
        """Plan an installation; where all hooks are switched off it does nothing yet."""
        plan = super().plan_installation(request)
        if is_off(plan.settings):
            plan.warnings.append(f"{plan.path} sets {OFF}: no hook runs until that is taken out")
        return plan

    def check(self, settings: HookSettings) -> Iterator[Finding]:
        """Ask whether the user has switched all hooks off."""
        if is_off(settings):
            yield problem(
                "qwen hooks", f"{settings.path} sets {OFF}: no hook runs", "take that out"
            )

    def memory_files(self, environ: Mapping[str, str], project: str | None) -> Iterator[str]:
        """Yield the files of instructions that it would load in a project now, as `port.Setup`."""
        yield os.path.join(home_directory(environ), "QWEN.md")
        yield from files_above(project, "QWEN.md", "AGENTS.md")

    def continue_words(self, prompt: str) -> tuple[str, ...]:
        """Return the command that begins a session with a first message."""
        return "qwen", "--prompt-interactive", prompt

    def resume_words(self, session_id: str) -> tuple[str, ...]:
        """Return the command that resumes a session."""
        return "qwen", "--resume", session_id


SETUP = QwenCodeSetup()
