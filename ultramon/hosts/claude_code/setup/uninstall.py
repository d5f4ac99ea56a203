"""Take an installation out of a settings file, and its traces with the last one.

Planned first, then shown, then done. Never on a hook's path.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import StateCorruptError
from ultramon.hosts.claude_code import NAME
from ultramon.hosts.claude_code.setup.settings import (
    USER,
    Settings,
    find_layers,
    layer_path,
    read_layer,
    remember_status_line,
)
from ultramon.hosts.claude_code.setup.transport import restore_mode
from ultramon.hosts.installed_choices import InstalledChoices, choices_path
from ultramon.hosts.planned_change import (
    PlannedChange,
    backup_path,
    original_bytes,
    read_backup,
    record_of,
)
from ultramon.hosts.setup import SetupRequest, own_files
from ultramon.system.files import delete_file

_HOOKS = "hooks"


@dataclass(kw_only=True)
class Removal(PlannedChange):
    """What an uninstallation would do.

    Attributes:
        installed: The stored choices as they shall be; the defaults when they cannot be read.
        traces: Files of the state directory that go with the installation.
        saves_choices: Whether the choices stay, for other installations, and lose this one.
        directories: Folders that an installation made, to be removed when empty.
    """

    settings: Settings
    installed: InstalledChoices
    traces: list[str] = field(default_factory=list)
    saves_choices: bool = False
    directories: list[str] = field(default_factory=list)

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
        for path in self.traces:
            delete_file(path)
        with suppress(OSError):  # not empty: states of agents stay
            os.rmdir(self.installed.state_directory)


def plan_removal(request: SetupRequest) -> Removal:
    """Work out what taking ultramon out of a layer would change.

    Raises:
        StateCorruptError: The settings file cannot be read as such; it is left alone.
        StateSchemaError: A newer ultramon installed.
        OSError: The system refused to read something.
    """
    settings = Settings(layer_path(request.layer or USER, request.cwd))
    plan = begin_removal(settings, request.state_directory)
    record = record_of(plan.installed, settings) or {}
    before = None
    try:
        before = read_backup(plan.installed, settings)
    except StateCorruptError as error:
        plan.warnings.append(f"the backup cannot be used: {error}")
    plan.after = settings.original
    if settings.holds_ours():
        _take_out(settings, record, before or Settings(settings.path, b""))
        plan.after = original_bytes(settings, before, is_new=record.get("backup", "") is None)
        restore_mode(plan, record)
        if plan.after is None and record.get("createdDirectory"):
            plan.directories = [os.path.dirname(settings.target)]
    plan_traces(plan, request.cwd)
    return plan


def begin_removal(settings: Settings, state_directory: str) -> Removal:
    """Return a plan to delete a settings file that knows the choices as they are stored.

    Raises:
        StateSchemaError: A newer ultramon stored them.
        OSError: The system refused to read them.
    """
    path = choices_path(state_directory, NAME)
    plan = Removal(settings=settings, installed=InstalledChoices(path))
    try:
        plan.installed = InstalledChoices.load(path)
    except StateCorruptError as error:
        plan.warnings.append(f"{error.path}: {error.reason}")
    return plan


def _take_out(settings: Settings, record: dict[str, Any], before: Settings) -> None:
    kept = set(before.get(_HOOKS) or ())
    if before.document.has(_HOOKS):
        kept.add(_HOOKS)
    settings.drop_hooks(frozenset(kept))
    if not record:
        remember_status_line(record, before)
    settings.restore_status_line(record.get("statusLine"), existed="statusLine" in record)


def plan_traces(plan: Removal, cwd: str) -> None:
    """Plan which files of the state directory go: with the last installation all of its own."""
    installed = plan.installed
    directory = installed.state_directory
    target = plan.settings.target
    left = {
        layer.path
        for layer in find_layers(cwd)
        if layer.settings.target != target and layer.settings.holds_ours()
    }
    kept = []
    for record in installed.installations:
        path = record.get("settings") if isinstance(record, dict) else None
        if not isinstance(path, str) or os.path.realpath(path) == target:
            continue
        layer = read_layer("", path)
        # A file that cannot be read may still need them.
        if layer.problem or layer.settings.holds_ours():
            left.add(path)
            kept.append(record)
    if not left:
        plan.traces = own_files(directory, NAME)
        if plan.traces and StateDirectory(directory).list_ids():
            plan.notes.append("what is known about agents stays; ultramon prune deletes the ended")
        return
    plan.notes.append(f"still installed in {', '.join(sorted(left))}")
    backup = backup_path(installed, plan.settings)
    plan.traces = [backup] if os.path.lexists(backup) else []
    plan.saves_choices = kept != installed.installations
    installed.installations = kept
