"""The setup of Copilot CLI: its hooks, installed, removed and examined.

Never on a hook's path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ultramon.hosts.copilot.configuration import HOME_VARIABLE, home_directory
from ultramon.hosts.copilot.host import COPILOT
from ultramon.hosts.examine.memory_files import files_above
from ultramon.hosts.install.hook_commands import HookScript
from ultramon.hosts.install.hook_settings import HookSettings
from ultramon.hosts.user_hooks import UserHooks, user_file

HOOK = HookScript("copilot", "hook.py", ("hook", COPILOT.name), f"{COPILOT.name}.ultramon-hook")
FILE_NAME = os.path.join("hooks", "ultramon.json")
EVENTS = (
    "SessionStart", "UserPromptSubmit", "PostToolUse", "PostToolUseFailure", "SubagentStart",
    "SubagentStop", "Stop", "Notification", "SessionEnd",
)  # fmt: skip
"""The events that ultramon needs. The host waits for each hook; the event file shows compactions,
and errors that the host does not mend by asking again."""
ENFORCING_EVENTS = ("PermissionRequest",)
"""The one event whose answer ends a turn; it comes before every call that is no read."""
SECONDS = 10
INSTRUCTIONS = "copilot-instructions.md"
_VERSION = "version"
_CURE = (
    "start `copilot --log-level debug`, and look for hooks in the newest file of ~/.copilot/logs"
)


class CopilotHooks(HookSettings):
    """A file of ultramon's own in the user's folder of hooks."""

    script = HOOK
    events = EVENTS
    enforcing_events = ENFORCING_EVENTS
    own_keys = (_VERSION,)

    def put_entries(self, entries: dict[str, dict[str, Any]]) -> None:
        """Put the hooks in; the host wants to know the version of their form."""
        if not self.document.has(_VERSION):
            self.document.add((), 1, _VERSION)
        super().put_entries(entries)

    def take_out(self, record: dict[str, Any], before: HookSettings) -> None:
        """Take the hooks out, and the version where that came with them."""
        super().take_out(record, before)
        if not before.document.has(_VERSION) and self.document.has(_VERSION):
            self.document.remove((_VERSION,))


def hooks() -> CopilotHooks:
    """Return that file, whether it exists or not.

    Raises:
        ConfigurationError: ``COPILOT_HOME`` is not set and this user has no home directory.
        StateError: It cannot be read.
    """
    return CopilotHooks(user_file(home_directory(os.environ), FILE_NAME, HOME_VARIABLE))


class CopilotSetup(UserHooks):
    """Hooks in a file of their own."""

    own_options = ("resident", "enforce", "enforce_dry_run")
    host = COPILOT
    members: Mapping[str, Any] = MappingProxyType({"timeout": SECONDS})
    takes_handoff_note = False
    silence_cure = _CURE

    load = staticmethod(hooks)

    def memory_files(self, environ: Mapping[str, str], project: str | None) -> Iterator[str]:
        """Yield the files of instructions that it would load in a project now, as `port.Setup`."""
        yield os.path.join(home_directory(environ), INSTRUCTIONS)
        names = (os.path.join(".github", INSTRUCTIONS), "AGENTS.md", "CLAUDE.md", "GEMINI.md")
        yield from files_above(project, *names)

    def continue_words(self, prompt: str) -> tuple[str, ...]:
        """Return the command that begins a session with a first message."""
        return "copilot", "--interactive", prompt

    def resume_words(self, session_id: str) -> tuple[str, ...]:
        """Return the command that resumes a session."""
        return "copilot", "--resume", session_id


SETUP = CopilotSetup()
