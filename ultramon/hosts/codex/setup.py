"""Installs and removes the hooks of Codex: planned first, then shown, then done.

Never on a hook's path.
"""

from __future__ import annotations

import os

from ultramon.hosts import user_hooks
from ultramon.hosts.codex import NAME
from ultramon.hosts.codex.configuration import home_directory
from ultramon.hosts.hook_commands import HookScript
from ultramon.hosts.hook_settings import HookSettings
from ultramon.hosts.installation import Installation, Removal
from ultramon.hosts.setup import SetupRequest
from ultramon.hosts.user_hooks import refuse_handoff_note, user_file

HOOK = HookScript("codex", "hook.py", ("hook", NAME), f"{NAME}.ultramon-hook")
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
"""What ultramon needs to hear of. The client waits for each, so PreToolUse, which says nothing that
PostToolUse does not say, is left out."""
SECONDS = 10
TIMEOUTS = {"SessionEnd": 3}
"""The client takes no longer one, and warns of it."""
NOTIFY = '`notify = ["ultramon", "hook", "codex"]`'
"""What a person can add to the client's ``config.toml`` instead; it holds one such program."""
_TRUST = (
    "Codex runs these hooks only after you have reviewed and trusted them: start `codex` once, and"
    ' at "Hooks need review" choose "Trust all and continue", or "Review hooks" first. Until then'
    " it leaves them out and says nothing; `ultramon doctor` sees that. It asks again whenever"
    f" their command changes. Without trust, {NOTIFY} at the top of config.toml reports the end of"
    " each turn, and warns nobody."
)


class CodexHooks(HookSettings):
    """The client's ``hooks.json``."""

    script = HOOK
    events = EVENTS


def hooks() -> CodexHooks:
    """Return the client's ``hooks.json``, whether it exists or not.

    Raises:
        ConfigurationError: ``CODEX_HOME`` is not set and this user has no home directory.
        StateError: It cannot be read.
    """
    return CodexHooks(user_file(home_directory(os.environ), "hooks.json", "CODEX_HOME"))


def plan_installation(request: SetupRequest) -> Installation:
    """Plan an installation; see `user_hooks.plan_installation`."""
    refuse_handoff_note(NAME, request)
    plan = user_hooks.plan_installation(hooks(), NAME, request, timeout=SECONDS, timeouts=TIMEOUTS)
    if plan.changes_settings:
        plan.warnings.append(_TRUST)
    return plan


def plan_removal(request: SetupRequest) -> Removal:
    """Plan to take the hooks out again."""
    return user_hooks.plan_removal(hooks(), NAME, request)
