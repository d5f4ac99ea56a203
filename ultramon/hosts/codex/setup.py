"""The setup of Codex: its hooks, installed, removed and examined.

Never on a hook's path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ultramon.hosts.codex.configuration import home_directory
from ultramon.hosts.codex.host import CODEX
from ultramon.hosts.install.hook_commands import HookScript
from ultramon.hosts.install.hook_settings import HookSettings
from ultramon.hosts.install.installation import Installation
from ultramon.hosts.install.plans import SetupRequest
from ultramon.hosts.user_hooks import UserHooks, user_file

HOOK = HookScript("codex", "hook.py", ("hook", CODEX.name), f"{CODEX.name}.ultramon-hook")
EVENTS = (
    "SessionStart",
    "UserPromptSubmit",
    "PostToolUse",
    "SubagentStart",
    "SubagentStop",
    "PreCompact",
    "PostCompact",
    "Stop",
    "SessionEnd",
)
"""The events that ultramon needs. The host waits for each, so PreToolUse, which says nothing that
PostToolUse does not say, is left out."""
SECONDS = 10
TIMEOUTS = {"SessionEnd": 3}
"""The host takes no longer one, and warns of it."""
NOTIFY = '`notify = ["ultramon", "host", "hook", "codex"]`'
"""What a person can add to the host's ``config.toml`` instead; it holds one such program."""
_TRUST = (
    "Codex runs these hooks only after you have reviewed and trusted them: start `codex` once, and"
    ' at "Hooks need review" choose "Trust all and continue", or "Review hooks" first. Until then'
    " it leaves them out and says nothing; `ultramon doctor` sees that. It asks again whenever"
    f" their command changes. Without trust, {NOTIFY} at the top of config.toml reports the end of"
    " each turn, and warns no agent."
)
_CURE = (
    "start `codex` and trust the hooks that it asks about; one that is not trusted is left out"
    f" without a word; {NOTIFY} in config.toml needs no trust"
)


class CodexHooks(HookSettings):
    """The host's ``hooks.json``."""

    script = HOOK
    events = EVENTS


def hooks() -> CodexHooks:
    """Return the host's ``hooks.json``, whether it exists or not.

    Raises:
        ConfigurationError: ``CODEX_HOME`` is not set and this user has no home directory.
        StateError: It cannot be read.
    """
    return CodexHooks(user_file(home_directory(os.environ), "hooks.json", "CODEX_HOME"))


class CodexSetup(UserHooks):
    """Hooks in the host's one file of them."""

    own_options = ("resident",)
    host = CODEX
    members: Mapping[str, Any] = {"timeout": SECONDS}
    timeouts = TIMEOUTS
    takes_handoff_note = False
    silence_cure = _CURE

    load = staticmethod(hooks)

    def plan_installation(self, request: SetupRequest) -> Installation:
        """Plan an installation; a person must trust the hooks then."""
        plan = super().plan_installation(request)
        if plan.changes_settings:
            plan.warnings.append(_TRUST)
        return plan

    def continue_words(self, prompt: str) -> tuple[str, ...]:
        """Return the command that begins a session with a first message."""
        return "codex", prompt

    def resume_words(self, session_id: str) -> tuple[str, ...]:
        """Return the command that resumes a session."""
        return "codex", "resume", session_id


SETUP = CodexSetup()
