"""Installs and removes the hooks of Codex: planned first, then shown, then done.

Never on a hook's path.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import ConfigurationError, StateCorruptError
from ultramon.hosts.codex import NAME
from ultramon.hosts.codex.configuration import home_directory
from ultramon.hosts.hook_commands import HookScript, command_line, script_path
from ultramon.hosts.hook_settings import HookSettings
from ultramon.hosts.installed_choices import InstalledChoices, choices_path
from ultramon.hosts.interpreter import check_interpreter, check_lasting, this_interpreter
from ultramon.hosts.planned_change import (
    PlannedChange,
    backup_path,
    original_bytes,
    read_backup,
    record_of,
)
from ultramon.hosts.setup import SetupRequest, choose, own_files
from ultramon.system.files import delete_file, make_private_directory, replace_file

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
_USER = "user"
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


@dataclass(kw_only=True)
class Installation(PlannedChange):
    """A planned installation.

    Attributes:
        installed: The choices as they shall be stored.
        is_corrupt: Whether what is stored cannot be read and is to be set aside.
        backup: What to keep as the original bytes; None = nothing, or it is kept already.
    """

    installed: InstalledChoices
    is_corrupt: bool = False
    backup: bytes | None = None

    @property
    def changes(self) -> bool:
        """Whether anything at all will be written."""
        return self.changes_settings or self.installed.changes

    def apply(self, now: float) -> None:
        """Do it: backup, choices, hooks, in this order, so that no hook runs without choices.

        Raises:
            StateError: The system refused; what was there before is intact.
        """
        if not self.changes:
            return
        installed = self.installed
        make_private_directory(installed.state_directory)
        if self.backup is not None:
            replace_file(backup_path(installed, self.settings), self.backup)
        if self.is_corrupt:
            stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
            os.replace(installed.path, f"{installed.path}.corrupt-{stamp}")
        if self.changes_settings:
            installed.installed_at = now
        installed.install()
        self.write_settings()


@dataclass(kw_only=True)
class Removal(PlannedChange):
    """What an uninstallation would do.

    Attributes:
        installed: The stored choices as they shall be.
        traces: Files of the state directory that go with the installation.
        saves_choices: Whether the choices stay, for another ``CODEX_HOME``, and lose this one.
        directory: A folder that the installation made, to be removed when empty; None = none.
    """

    installed: InstalledChoices
    traces: list[str] = field(default_factory=list)
    saves_choices: bool = False
    directory: str | None = None

    @property
    def changes(self) -> bool:
        """Whether anything at all will be written or deleted."""
        return self.changes_settings or self.saves_choices or bool(self.traces)

    def details(self) -> dict[str, Any]:
        """Return the files that go with the installation."""
        return {"deleted": self.traces}

    def apply(self, now: float) -> None:
        """Do it: hooks first, so that none runs without its choices."""
        self.write_settings()
        if self.saves_choices:
            self.installed.save()
        for path in self.traces:
            delete_file(path)
        for directory in (self.directory, self.installed.state_directory):
            if directory is not None:
                with suppress(OSError):  # not empty
                    os.rmdir(directory)


def plan_installation(request: SetupRequest) -> Installation:
    """Plan an installation that runs the Python of this program.

    Raises:
        ConfigurationError: A choice is not allowed, or this program may not last.
        StateError: A file cannot be read.
    """
    _check_layer(request)
    if request.choices.handoff_note:
        allowed = "a host whose compaction takes instructions; Codex takes none from hooks"
        raise ConfigurationError("handoff_note", request.choices.handoff_note[:40], allowed)
    if not request.force:
        check_lasting(request.cwd)
    interpreter = this_interpreter()
    check_interpreter(interpreter)
    settings = CodexHooks(hooks_path())
    path = choices_path(request.state_directory, NAME)
    plan = Installation(settings=settings, installed=InstalledChoices(path))
    try:
        plan.installed = InstalledChoices.load(path)
    except StateCorruptError as error:
        plan.is_corrupt = True
        plan.warnings.append(
            f"{path}: {error.reason}; it is set aside, and the choices are made anew"
        )
    _note(plan, interpreter)
    choose(plan.installed, request.choices)
    command = command_line(interpreter, script_path(HOOK), plan.installed.path)
    hook = {"type": "command", "command": command, "timeout": SECONDS}
    settings.put_entries({event: {"hooks": [hook]} for event in EVENTS})
    plan.after = settings.data
    for wrapped in settings.wrapped_hooks():
        text = "this command runs ultramon's hook too, and is left as it is"
        plan.warnings.append(f"{text}: {wrapped}")
    if plan.changes_settings:
        plan.warnings.append(_TRUST)
    return plan


def _note(plan: Installation, interpreter: str) -> None:
    """Remember the file, and plan its backup when this is the first change to it."""
    settings, installed = plan.settings, plan.installed
    record = record_of(installed, settings)
    if record is None:
        record = {"settings": settings.path}
        installed.installations.append(record)
    record["interpreter"] = interpreter
    if not settings.holds_ours():
        plan.backup = settings.original
        record["backup"] = None if plan.backup is None else backup_path(installed, settings)
        record["createdDirectory"] = not os.path.isdir(os.path.dirname(settings.target))


def plan_removal(request: SetupRequest) -> Removal:
    """Plan to take ultramon's hooks out of the client's file.

    Raises:
        ConfigurationError: There is no such layer.
        StateError: A file cannot be read; it is left alone.
    """
    _check_layer(request)
    settings = CodexHooks(hooks_path())
    path = choices_path(request.state_directory, NAME)
    plan = Removal(settings=settings, installed=InstalledChoices(path))
    try:
        plan.installed = InstalledChoices.load(path)
    except StateCorruptError as error:
        plan.warnings.append(f"{error.path}: {error.reason}")
    record = record_of(plan.installed, settings) or {}
    before = None
    try:
        before = read_backup(plan.installed, settings)
    except StateCorruptError as error:
        plan.warnings.append(f"the backup cannot be used: {error}")
    plan.after = settings.original
    if settings.holds_ours():
        kept = set() if before is None else set(before.get("hooks") or ())
        if before is not None and before.document.has("hooks"):
            kept.add("hooks")
        settings.drop_hooks(frozenset(kept))
        plan.after = original_bytes(settings, before, is_new=record.get("backup", "") is None)
        if plan.after is None and record.get("createdDirectory"):
            plan.directory = os.path.dirname(settings.target)
    _plan_traces(plan)
    return plan


def _plan_traces(plan: Removal) -> None:
    """Plan which files of the state directory go: with the last installation all of its own."""
    installed = plan.installed
    kept = [
        record
        for record in installed.installations
        if os.path.realpath(str(record.get("settings"))) != plan.settings.target
        and _may_hold_ours(str(record.get("settings")))
    ]
    if kept:
        backup = backup_path(installed, plan.settings)
        plan.traces = [backup] if os.path.lexists(backup) else []
        plan.saves_choices = kept != installed.installations
        installed.installations = kept
        return
    plan.traces = own_files(installed.state_directory, NAME)
    if plan.traces and StateDirectory(installed.state_directory).list_ids():
        plan.notes.append("what is known about agents stays; ultramon prune deletes the ended")


def _may_hold_ours(path: str) -> bool:
    try:
        return CodexHooks(path).holds_ours()
    except (StateCorruptError, OSError):
        return True  # a file that cannot be read may still need them


def _check_layer(request: SetupRequest) -> None:
    if request.layer not in (None, _USER):
        allowed = f"{_USER}: Codex has one hooks.json for each user"
        raise ConfigurationError("layer", request.layer, allowed, "argument")
