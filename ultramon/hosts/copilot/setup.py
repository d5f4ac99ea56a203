"""The setup of Copilot CLI: its hooks, installed, removed and examined.

Never on a hook's path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ultramon.errors import StateCorruptError
from ultramon.hosts.copilot.configuration import HOME_VARIABLE, home_directory
from ultramon.hosts.copilot.host import COPILOT
from ultramon.hosts.doctor_context import DoctorContext, ok, problem, warning
from ultramon.hosts.examine.launcher import check_hook_command
from ultramon.hosts.examine.memory_files import files_above
from ultramon.hosts.install.hook_commands import HookScript
from ultramon.hosts.install.hook_settings import HookSettings
from ultramon.hosts.install.installation import Installation, Removal
from ultramon.hosts.install.planned_change import record_of
from ultramon.hosts.install.plans import SetupRequest
from ultramon.hosts.install.status_line import (
    STATUS_LINE,
    StatusLineSettings,
    choose_parts,
    plan_status_line,
)
from ultramon.hosts.installed_choices import InstalledChoices, choices_path
from ultramon.hosts.user_hooks import UserHooks, user_file
from ultramon.system.findings import Finding

HOOK = HookScript("copilot", "hook.py", ("hook", COPILOT.name), f"{COPILOT.name}.ultramon-hook")
LINE = HookScript(
    "copilot", "statusline.py", ("statusline", COPILOT.name), f"{COPILOT.name}.ultramon-statusline"
)
SETTINGS_NAME = "settings.json"
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
_OWN, _NONE = "own", "none"
_CURE = (
    "start `copilot --log-level debug`, and look for hooks in the newest file of ~/.copilot/logs"
)


class CopilotHooks(StatusLineSettings):
    """A file of ultramon's own in the user's folder of hooks."""

    script = HOOK
    line_script = LINE
    events = EVENTS
    enforcing_events = ENFORCING_EVENTS
    own_keys = (_VERSION, STATUS_LINE)

    def put_entries(self, entries: dict[str, dict[str, Any]]) -> None:
        """Put the hooks in; the host wants to know the version of their form."""
        if not self.document.has(_VERSION):
            self.document.add((), 1, _VERSION)
        super().put_entries(entries)

    def take_out(self, record: dict[str, Any], before: HookSettings) -> None:
        """Take the hooks out, and the version where that came with them."""
        is_hooks_file = bool(self.our_hooks())
        super().take_out(record, before)
        if is_hooks_file and not before.document.has(_VERSION) and self.document.has(_VERSION):
            self.document.remove((_VERSION,))


def hooks() -> CopilotHooks:
    """Return that file, whether it exists or not.

    Raises:
        ConfigurationError: ``COPILOT_HOME`` is not set and this user has no home directory.
        StateError: It cannot be read.
    """
    return CopilotHooks(user_file(home_directory(os.environ), FILE_NAME, HOME_VARIABLE))


class CopilotSettings(CopilotHooks):
    """The user's settings, in which the client skips comments."""

    may_have_comments = True


def settings_path() -> str:
    """Return the path of the user's settings; raises as `hooks`."""
    return user_file(home_directory(os.environ), SETTINGS_NAME, HOME_VARIABLE)


class CopilotSetup(UserHooks):
    """Hooks in a file of their own, and on demand a status line in the user's settings."""

    own_options = ("status_line", "status_line_parts", "resident", "enforce", "enforce_dry_run")
    host = COPILOT
    members: Mapping[str, Any] = MappingProxyType({"timeout": SECONDS})
    takes_handoff_note = False
    silence_cure = _CURE

    load = staticmethod(hooks)

    def plan_installation(self, request: SetupRequest) -> Installation:
        """Plan the hooks, and the status line where a person has chosen one; see `port.Setup`."""
        plan = super().plan_installation(request)
        chosen, installed = request.choices.status_line, plan.installed
        choose_parts(installed, request.choices)
        found = _settings_of(installed, must_read=chosen is not None)
        record = None if found is None else record_of(installed, found)
        if found is None or (record is None and chosen in (None, _NONE)):
            return plan
        if record is not None and chosen == _NONE:
            plan.beside.append(_removal(found, installed))
            installed.installations.remove(record)
            if not any(STATUS_LINE in one for one in installed.installations):
                installed.status_line_show, installed.status_line_chained = _OWN, None
            return plan
        line = plan.add(found)
        is_ours = found.our_status_line() is not None
        before = line.record.get(STATUS_LINE) if is_ours else found.get(STATUS_LINE)
        others = [one for one in installed.installations if one is not line.record]
        carries_others = any(STATUS_LINE in one for one in others)
        plan_status_line(
            plan, found, before, chosen, record=line.record, carries_others=carries_others
        )
        line.after = found.data
        if found.our_status_line() is None:
            installed.installations, plan.beside = others, []
        elif line.changes_settings:
            plan.notes.append(f"{found.path}: a status line that shows the window")
        return plan

    def removals_beside(self, installed: InstalledChoices) -> Iterable[Removal]:
        """Plan to take the status line out."""
        found = _settings_of(installed)
        return () if found is None else (_removal(found, installed),)

    def examine(self, context: DoctorContext) -> Iterator[Finding]:
        """Answer the questions about hooks, sessions and the status line; see `port.Setup`."""
        yield from super().examine(context)
        stored, _ = context.choices(self.host.name)
        if stored is not None:
            yield from _check_status_line(context, stored)

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


def _settings_of(installed: InstalledChoices, *, must_read: bool = False) -> CopilotSettings | None:
    """Return the user's settings; None where they cannot be read, and hold nothing of ultramon."""
    path = settings_path()
    try:
        return CopilotSettings(path)
    except (StateCorruptError, OSError):
        if must_read or record_of(installed, CopilotSettings(path, b"")) is not None:
            raise
        return None


def _removal(found: CopilotSettings, installed: InstalledChoices) -> Removal:
    removal = Removal(settings=found, installed=installed)
    removal.take_out()
    return removal


def _check_status_line(context: DoctorContext, stored: InstalledChoices) -> Iterator[Finding]:
    """Whether the status line is still ultramon's where it was installed, and runs."""
    name = f"{COPILOT.name} status line"
    install = f"ultramon install {COPILOT.name}"
    try:
        found = _settings_of(stored)
    except (StateCorruptError, OSError) as error:
        yield problem(name, str(error), "mend the file")
        return
    if found is None or record_of(stored, found) is None:
        return
    command = found.our_status_line()
    if command is not None:
        yield ok(name, f"{found.path}: ultramon's")
        own_choices = choices_path(context.state_directory, COPILOT.name)
        for one in check_hook_command(command, LINE, own_choices, install):
            yield one._replace(check=f"{name}: {one.check}")
    else:
        fate = "was taken out since" if found.get(STATUS_LINE) is None else "is another tool's now"
        cure = f"{install} puts it back; with --status-line none it is left alone"
        yield warning(name, f"{found.path}: the status line {fate}", cure)


SETUP = CopilotSetup()
