"""The setup of Gemini: its hooks, installed, removed and examined.

Never on a hook's path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ultramon.hosts.doctor_context import problem
from ultramon.hosts.examine.memory_files import files_above
from ultramon.hosts.gemini.configuration import HOME_VARIABLE, SETTINGS_NAME, home_directory
from ultramon.hosts.gemini.host import GEMINI
from ultramon.hosts.install.hook_commands import HookScript
from ultramon.hosts.install.hook_settings import HookSettings
from ultramon.hosts.install.installation import Installation
from ultramon.hosts.install.plans import SetupRequest
from ultramon.hosts.user_hooks import UserHooks, user_file
from ultramon.system.findings import Finding

HOOK = HookScript("gemini", "hook.py", ("hook", GEMINI.name), f"{GEMINI.name}.ultramon-hook")
EVENTS = (
    "SessionStart", "BeforeAgent", "AfterTool", "Notification", "AfterAgent", "SessionEnd",
)  # fmt: skip
"""The events that ultramon needs. The host waits for each hook; one for every piece of a reply
would be called six times as often."""
ENFORCING_EVENTS = ("BeforeModel",)
"""The one event by which the host ends a turn when all tools of a reply have run."""
HOOK_NAME = "ultramon"
MILLISECONDS = 10_000
_LIMIT = (
    "Gemini does not report its window: a session of a single prompt, and a subagent, is ended only"
    " where you state a limit with --context-limit"
)
_CURE = "look at `/hooks panel` in `gemini`: whether hooks are switched off there"


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


class Switch(NamedTuple):
    """A setting of the user by which no hook of ultramon runs."""

    name: str
    value: object
    message: str
    cure: str


def find_switch(settings: HookSettings) -> Switch | None:
    """Return what the user has switched hooks off with, all of them or ultramon's; None = nothing.

    Args:
        settings: Those of `hooks`.
    """
    if settings.get("hooksConfig", "enabled") is False:
        name = "hooksConfig.enabled"
        cure = f"set {name} to true, or delete it"
        return Switch(name, False, "hooks are switched off", cure)
    disabled = settings.get("hooksConfig", "disabled")
    if isinstance(disabled, list) and HOOK_NAME in disabled:
        name = "hooksConfig.disabled"
        cure = f"take {HOOK_NAME} out of {name}"
        return Switch(name, disabled, "ultramon's hooks are switched off", cure)
    return None


class GeminiSetup(UserHooks):
    """Hooks in the host's one file of them."""

    own_options = ("resident", "enforce", "enforce_dry_run")
    host = GEMINI
    members: Mapping[str, Any] = {"name": HOOK_NAME, "timeout": MILLISECONDS}
    takes_handoff_note = False
    silence_cure = _CURE

    load = staticmethod(hooks)

    def plan_installation(self, request: SetupRequest) -> Installation:
        """Plan an installation; without a limit of one's own some agents are not ended."""
        plan = super().plan_installation(request)
        if plan.installed.enforce is not None and plan.installed.context_limit_tokens is None:
            plan.warnings.append(_LIMIT)
        if (off := find_switch(plan.settings)) is not None:
            plan.warnings.append(f"{plan.path}: {off.message}, until you {off.cure}")
        return plan

    def check(self, settings: HookSettings) -> Iterator[Finding]:
        """Ask whether the user has switched hooks off, all of them or ultramon's."""
        if (off := find_switch(settings)) is not None:
            yield problem("gemini hooks", f"{settings.path}: {off.message}", off.cure)

    def memory_files(self, environ: Mapping[str, str], project: str | None) -> Iterator[str]:
        """Yield the files of instructions that it would load in a project now, as `port.Setup`."""
        yield os.path.join(home_directory(environ), "GEMINI.md")
        yield from files_above(project, "GEMINI.md")

    def continue_words(self, prompt: str) -> tuple[str, ...]:
        """Return the command that begins a session with a first message."""
        return "gemini", "--prompt-interactive", prompt

    def resume_words(self, session_id: str) -> tuple[str, ...]:
        """Return the command that resumes a session."""
        return "gemini", "--resume", session_id


SETUP = GeminiSetup()
