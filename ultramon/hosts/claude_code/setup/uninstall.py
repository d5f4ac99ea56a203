"""Take an installation out of a settings file, and its traces with the last one.

Planned first, then shown, then done. Never on a hook's path.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import StateCorruptError, StateError
from ultramon.hosts.claude_code import NAME
from ultramon.hosts.claude_code.setup.planned_change import (
    PlannedChange,
    backup_path,
    is_own_file,
    read_backup,
    record_of,
)
from ultramon.hosts.claude_code.setup.settings import Layer, Settings, find_layers
from ultramon.hosts.claude_code.setup.transport import restore_mode
from ultramon.hosts.installed_choices import InstalledChoices, choices_path
from ultramon.system.files import delete_file

_HOOKS = "hooks"


@dataclass(kw_only=True)
class Removal(PlannedChange):
    """What an uninstallation would do.

    Attributes:
        installed: The stored choices as they shall be; None when they cannot be read.
        state_directory: Where they are.
        traces: Files in there that go with the installation.
        saves_frozen: Whether the choices stay, for other installations, and lose this one.
        directories: Folders that an installation made, to be removed when empty.
    """

    installed: InstalledChoices | None
    state_directory: str
    traces: list[str]
    saves_frozen: bool = False
    directories: list[str] = field(default_factory=list)

    @property
    def changes(self) -> bool:
        """Whether anything at all will be written or deleted."""
        return self.changes_settings or self.saves_frozen or bool(self.traces)

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
        if self.saves_frozen and self.installed is not None:
            self.installed.save()
        for path in self.traces:
            delete_file(path)
        with suppress(OSError):  # not empty: states of agents stay
            os.rmdir(self.state_directory)


def plan_removal(layer: Layer, cwd: str, state_directory: str) -> Removal:
    """Work out what taking ultramon out of a layer would change.

    Args:
        layer: Where from.
        cwd: The working directory: its other layers may hold an installation too.
        state_directory: Where states and choices are kept.

    Raises:
        StateCorruptError: The settings file cannot be read as such; it is left alone.
        StateSchemaError: A newer ultramon installed.
        OSError: The system refused to read something.
    """
    settings = Settings(layer.path)
    plan = begin_removal(settings, state_directory)
    record = record_of(plan.installed, settings)
    try:
        before = read_backup(state_directory, plan.installed, settings)
    except StateCorruptError as error:
        plan.warnings.append(f"the backup cannot be used: {error}")
        before = None
    is_new = record is not None and record.get("backup", "") is None
    plan.after = settings.original
    if settings.holds_ours():
        _take_out(settings, record, before)
        plan.after = _original_bytes(settings, before, is_new=is_new)
        restore_mode(plan, record or {})
        if plan.after is None and record and record.get("createdDirectory"):
            plan.directories = [os.path.dirname(settings.target)]
    plan_traces(plan, cwd)
    return plan


def begin_removal(settings: Settings, state_directory: str) -> Removal:
    """Return a plan to delete a settings file that knows the choices as they are stored.

    Raises:
        StateSchemaError: A newer ultramon stored them.
        OSError: The system refused to read them.
    """
    plan = Removal(settings=settings, installed=None, state_directory=state_directory, traces=[])
    try:
        plan.installed = InstalledChoices.load(choices_path(state_directory, NAME))
    except StateCorruptError as error:
        plan.warnings.append(f"{error.path}: {error.reason}")
    return plan


def _take_out(
    settings: Settings, record: dict[str, object] | None, before: Settings | None
) -> None:
    kept = set(before.get(_HOOKS) or ()) if before else set()
    if before and before.document.has(_HOOKS):
        kept.add(_HOOKS)
    settings.drop_hooks(frozenset(kept))
    if record is not None:
        line, existed = record.get("statusLine"), "statusLine" in record
    else:
        line = before.get("statusLine") if before else None
        existed = before is not None and before.document.has("statusLine")
    settings.restore_status_line(line, existed=existed)


def _original_bytes(settings: Settings, before: Settings | None, *, is_new: bool) -> bytes | None:
    """Return the old bytes when nothing else changed since, else what is left."""
    if before is not None and before.original is not None:
        if settings.says_the_same_as(before.original):
            return before.original
    elif is_new and settings.says_the_same_as(b"{}"):
        return None
    return settings.data


def plan_traces(plan: Removal, cwd: str) -> None:
    """Plan which files of the state directory go: with the last installation all of its own."""
    installed = plan.installed
    left = {layer.path for layer in find_layers(cwd) if _holds_ours(plan, layer.path) is True}
    kept = []
    for record in installed.installations if installed else []:
        path = record.get("settings") if isinstance(record, dict) else None
        # A file that cannot be read may still need them.
        if isinstance(path, str) and _holds_ours(plan, path) is not False:
            left.add(path)
            kept.append(record)
    if not left:
        plan.traces = _own_files(plan.state_directory)
        if plan.traces and StateDirectory(plan.state_directory).list_ids():
            plan.notes.append("what is known about agents stays; ultramon prune deletes the ended")
        return
    plan.notes.append(f"still installed in {', '.join(sorted(left))}")
    backup = backup_path(plan.state_directory, plan.settings)
    plan.traces = [backup] if os.path.lexists(backup) else []
    if installed is not None and kept != installed.installations:
        installed.installations = kept
        plan.saves_frozen = True


def _holds_ours(plan: Removal, path: str) -> bool | None:
    """Return whether another settings file still runs ultramon, None when it cannot be read."""
    if os.path.realpath(path) == plan.settings.target:
        return False
    try:
        return Settings(path).holds_ours()
    except (StateError, OSError):
        return None


def _own_files(state_directory: str) -> list[str]:
    try:
        names = os.listdir(state_directory)
    except OSError:
        return []
    return [os.path.join(state_directory, name) for name in sorted(names) if is_own_file(name)]
