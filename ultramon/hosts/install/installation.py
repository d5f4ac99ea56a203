"""Installs hooks into the settings file of a host and takes them out: the part that all share.

A host adds its own entries to a plan. Planning writes nothing. Never on a hook's path.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import ConfigurationError, StateCorruptError
from ultramon.hosts.install.hook_commands import HookScript
from ultramon.hosts.install.hook_settings import HookSettings
from ultramon.hosts.install.launcher import Launcher
from ultramon.hosts.install.planned_change import (
    PlannedChange,
    backup_path,
    original_bytes,
    read_backup,
    record_of,
)
from ultramon.hosts.install.plans import SetupRequest, choose, delete_traces, own_files
from ultramon.hosts.installed_choices import InstalledChoices, choices_path
from ultramon.system.files import delete_file, make_private_directory, replace_file

FOLDERS = "createdDirectories"
_EARLIER = ("createdDirectory", "createdParent")
"""How earlier versions noted whether they had made the two innermost ones."""
_RESIDENT = "one process answers for all sessions, unless --no-resident"


@dataclass(kw_only=True)
class Installation(PlannedChange):
    """A planned installation.

    Attributes:
        installed: The choices as they shall be stored.
        is_corrupt: Whether what is stored cannot be read and is to be set aside.
        record: What is noted of this settings file, one of `installed.installations`.
        backup: What to keep as the original bytes; None = nothing, or it is kept already.
        launchers: What the settings will name.
    """

    installed: InstalledChoices
    launchers: list[Launcher] = field(default_factory=list)
    is_corrupt: bool = False
    record: dict[str, Any] = field(default_factory=dict)
    backup: bytes | None = None

    @classmethod
    def begin(cls, settings: HookSettings, request: SetupRequest, interpreter: str) -> Self:
        """Return a plan that holds the choices and a note of the settings file, which it leaves.

        Args:
            settings: The file to install into.
            request: What was asked for.
            interpreter: Absolute path of the Python that shall run the hook.

        Raises:
            ConfigurationError: A choice is not allowed.
            StateCorruptError: The backup of the settings cannot be read.
            StateSchemaError: A newer ultramon stored the choices.
            OSError: The system refused to read them.
        """
        path = choices_path(request.state_directory, request.host)
        plan = cls(settings=settings, installed=InstalledChoices(path))
        try:
            plan.installed = InstalledChoices.load(path)
        except StateCorruptError as error:
            plan.is_corrupt = True
            plan.warnings.append(
                f"{path}: {error.reason}; it is set aside, and the choices are made anew"
            )
        plan._note(interpreter)
        choose(plan.installed, request.choices)
        return plan

    def _note(self, interpreter: str) -> None:
        """Remember the settings file, and plan its backup when this is the first change to it."""
        settings, installed = self.settings, self.installed
        before = read_backup(installed, settings)
        record = record_of(installed, settings)
        if record is None:
            record = {"settings": settings.path}
            installed.installations.append(record)
        self.record = record
        record["interpreter"] = interpreter
        if _EARLIER[0] in record:
            record[FOLDERS] = _count_folders(record)
        if not settings.holds_ours():
            self.backup = settings.original
            record["backup"] = None
            record[FOLDERS] = len(_missing_folders(settings.target))
        elif before is not None:
            settings.remember_replaced(record, before)
        elif record.get("backup", "") is not None:
            # What was there before is not known: all but ultramon's entries is the best guess.
            rest = type(settings)(settings.path, settings.original)
            rest.take_out({}, type(settings)(settings.path, b""))
            self.backup = rest.data
        if self.backup is not None:
            record["backup"] = backup_path(installed, settings)

    def add(self, settings: HookSettings) -> Installation:
        """Return a plan for a further file, which is changed before this one.

        Raises:
            StateCorruptError: The backup of that file cannot be read.
        """
        plan = Installation(settings=settings, installed=self.installed)
        plan._note(self.record["interpreter"])
        self.beside.append(plan)
        return plan

    def choose_resident(self, request: SetupRequest) -> None:
        """Decide whether a resident answers: unless a person or the system says no.

        Raises:
            ConfigurationError: One was asked for, and the system cannot have any.
        """
        # A person's choice is stored apart from what follows: an older file's `false` is no choice.
        can, installed = can_have_resident(), self.installed
        if request.choices.resident and not can:
            allowed = "false here: only Linux and macOS say who is at the other end of a socket"
            raise ConfigurationError("resident", True, allowed, "argument")
        chosen = installed.resident_choice
        installed.resident = can if chosen is None else chosen

    def command(self, script: HookScript) -> str:
        """Return what the settings shall run, by a launcher that is planned here.

        Args:
            script: What it runs; `choose_resident` comes before.
        """
        installed = self.installed
        launcher = Launcher(
            script, self.record["interpreter"], installed.path, resident=installed.resident
        )
        if launcher.can_run:
            self.launchers.append(launcher)
        return launcher.command

    def warn_of_wrapped_hooks(self) -> None:
        """Name the commands that run ultramon's hook among other things."""
        for wrapped in self.settings.wrapped_hooks():
            self.warnings.append(
                f"this command runs ultramon's hook too, and is left as it is: {wrapped}"
            )

    @property
    def changes(self) -> bool:
        """Whether anything at all will be written."""
        return (
            self.changes_settings
            or self.installed.changes
            or any(launcher.changes for launcher in self.launchers)
        )

    @property
    def contents(self) -> str:
        """Hooks, and the process that answers."""
        return f"{super().contents}; {_RESIDENT}" if self.installed.resident else super().contents

    def details(self) -> dict[str, Any]:
        """Return the interpreter, and whether a resident answers."""
        return {"interpreter": self.record["interpreter"], "resident": self.installed.resident}

    def write_settings(self) -> None:
        """Write launchers, then the settings, which name no launcher that is not there.

        Raises:
            StateWriteError: The file changed meanwhile, or the system refused; it is as it was.
        """
        for launcher in self.launchers:
            launcher.write()
        super().write_settings()

    def apply(self, now: float) -> None:
        """Do it: backup, choices, settings, in this order, so that no hook runs without choices.

        Args:
            now: Epoch seconds.

        Raises:
            StateWriteError: The system refused; what was there before is intact.
            StateDirectoryError: The state directory is not safe to use.
        """
        if not self.changes:
            return
        installed = self.installed
        make_private_directory(installed.state_directory)
        for plan in (self, *self.beside):
            if isinstance(plan, Installation):
                plan._keep_original()
        if self.is_corrupt:
            stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
            os.replace(installed.path, f"{installed.path}.corrupt-{stamp}")
        if self.changes_settings:
            installed.installed_at = now
        installed.install()
        self.write_settings()

    def _keep_original(self) -> None:
        path = backup_path(self.installed, self.settings)
        if self.backup is not None:
            replace_file(path, self.backup)
        elif self.settings.original is None:
            delete_file(path)


@dataclass(kw_only=True)
class Removal(PlannedChange):
    """What an uninstallation would do.

    Attributes:
        installed: The stored choices as they shall be; the defaults when they cannot be read.
        traces: Files of the state directory that go with the installation.
        saves_choices: Whether the choices stay, for other installations, and lose this one.
        directories: Folders that an installation made, to be removed when empty.
    """

    installed: InstalledChoices
    traces: list[str] = field(default_factory=list)
    saves_choices: bool = False
    directories: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, settings: HookSettings, request: SetupRequest) -> Self:
        """Return a plan to delete a settings file that knows the choices as they are stored.

        Raises:
            StateSchemaError: A newer ultramon stored them.
            OSError: The system refused to read them.
        """
        path = choices_path(request.state_directory, request.host)
        plan = cls(settings=settings, installed=InstalledChoices(path))
        try:
            plan.installed = InstalledChoices.load(path)
        except StateCorruptError as error:
            plan.warnings.append(f"{error.path}: {error.reason}")
        return plan

    def take_out(self) -> None:
        """Plan the settings file without ultramon's entries: as it was, where nothing else changed.

        Folders that the installation made go with a file that it made.
        """
        settings = self.settings
        record = record_of(self.installed, settings) or {}
        before = None
        try:
            before = read_backup(self.installed, settings)
        except StateCorruptError as error:
            self.warnings.append(f"the backup cannot be used: {error}")
        self.after = settings.original
        if settings.holds_ours():
            settings.take_out(record, before or type(settings)(settings.path, b""))
            self.after = original_bytes(settings, before, is_new=record.get("backup", "") is None)
            self.restore_mode(record)
            if self.after is None:
                self.directories = _folders_made(record, settings.target)

    def plan_traces(self, elsewhere: Iterable[str] = ()) -> None:
        """Plan which files of the state directory go: with the last installation all of its own.

        Args:
            elsewhere: Paths of settings files with ultramon's hooks that no installation may have
                noted.
        """
        installed, settings = self.installed, self.settings
        done = {settings.target, *(change.settings.target for change in self.beside)}
        left, kept = set(elsewhere), []
        for record in installed.installations:
            path = record.get("settings") if isinstance(record, dict) else None
            if not isinstance(path, str) or os.path.realpath(path) in done:
                continue
            if _may_hold_ours(type(settings), path):
                left.add(path)
                kept.append(record)
        if not left:
            self.traces = own_files(installed.state_directory, installed.host)
            if self.traces and StateDirectory(installed.state_directory).list_ids():
                self.notes.append(
                    "what is known about agents stays; ultramon backend prune deletes the ended"
                )
            return
        self.notes.append(f"still installed in {', '.join(sorted(left))}")
        backup = backup_path(installed, settings)
        self.traces = [backup] if os.path.lexists(backup) else []
        self.saves_choices = kept != installed.installations
        installed.installations = kept

    @property
    def changes(self) -> bool:
        """Whether anything at all will be written or deleted."""
        return self.changes_settings or self.saves_choices or bool(self.traces)

    def details(self) -> dict[str, Any]:
        """Return the files that go with the installation."""
        return {"deleted": self.traces}

    def apply(self, now: float) -> None:
        """Do it: settings first, so that no hook runs without its choices.

        Raises:
            StateWriteError: The system refused; the settings are as they were, or already done.
        """
        self.write_settings()
        for directory in self.directories:
            with suppress(OSError):
                os.rmdir(directory)
        if self.saves_choices:
            self.installed.save()
        delete_traces(self.traces, self.installed.state_directory)


def can_have_resident() -> bool:
    """Return whether the system says who is at the other end of a socket."""
    # On macOS by two options that `socket` does not name.
    return hasattr(socket, "SO_PEERCRED") or sys.platform == "darwin"


def _missing_folders(path: str) -> list[str]:
    """Return the folders that a file needs and that are not there, the innermost first."""
    found = []
    while not os.path.isdir(folder := os.path.dirname(path)) and folder != path:
        found.append(path := folder)
    return found


def _count_folders(record: dict[str, Any]) -> int:
    """Return how many folders an installation made; take out what earlier versions noted of it."""
    earlier = [record.pop(name, False) for name in _EARLIER]
    count = record.get(FOLDERS, earlier.count(True))
    return count if type(count) is int else 0


def _folders_made(record: dict[str, Any], path: str) -> list[str]:
    """Return the folders that an installation made for a file, the innermost first."""
    found = []
    for _ in range(_count_folders(record)):
        path = os.path.dirname(path)
        found.append(path)
    return found


def _may_hold_ours(settings: type[HookSettings], path: str) -> bool:
    try:
        return settings(path).holds_ours()
    except (StateCorruptError, OSError):
        return True  # a file that cannot be read may still need them
