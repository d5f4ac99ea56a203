"""What an installation and its undoing share: planned changes of files, and their backups."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ultramon.errors import StateCorruptError
from ultramon.hosts.install.hook_settings import HookSettings
from ultramon.hosts.install.plans import Plan
from ultramon.hosts.installed_choices import InstalledChoices
from ultramon.system.files import read_private_file

AnySettings = TypeVar("AnySettings", bound=HookSettings)

_BACKUP_SUFFIX = ".backup"
_HIDDEN = "(the hook secret)"


@dataclass(kw_only=True)
class PlannedChange(Plan):
    """What a command would do to a settings file, and to others beside it.

    Attributes:
        settings: The file as it was read.
        beside: Changes of further files, done before this one.
    """

    settings: HookSettings
    beside: list[PlannedChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path, self.before = self.settings.path, self.settings.original

    @property
    def changes_settings(self) -> bool:
        """Whether a file will be another one."""
        return (
            super().changes_settings
            or self.settings.changes_mode
            or any(change.changes_settings for change in self.beside)
        )

    def diff(self) -> str:
        """Return what changes in the files, as a unified diff without secrets.

        Empty when no byte does.
        """
        shown = super().diff()
        for secret in self.settings.secrets:
            shown = shown.replace(secret, _HIDDEN)
        return "".join(change.diff() for change in self.beside) + shown

    def restore_mode(self, record: dict[str, Any]) -> None:
        """Plan to give the file the mode back that it had before a secret was put into it."""
        mode = record.pop("mode", None)
        if type(mode) is int and 0 < mode <= 0o777:
            self.settings.new_mode = mode

    def write_settings(self) -> None:
        """Bring the files to what was planned.

        Raises:
            StateWriteError: One changed meanwhile, or the system refused; it is as it was.
        """
        for change in self.beside:
            change.write_settings()
        if self.after == self.before:
            self.settings.save_mode()
        elif self.after is None:
            self.settings.delete()
        else:
            self.settings.save(self.after)


def backup_path(installed: InstalledChoices, settings: HookSettings) -> str:
    """Return where the original bytes of a settings file are kept."""
    mark = hashlib.sha256(os.fsencode(settings.target)).hexdigest()[:12]
    return os.path.join(installed.state_directory, f"{installed.host}.{mark}{_BACKUP_SUFFIX}")


def record_of(installed: InstalledChoices, settings: HookSettings) -> dict[str, Any] | None:
    """Return what was noted when a settings file was installed into; None = nothing."""
    for record in installed.installations:
        path = record.get("settings") if isinstance(record, dict) else None
        if isinstance(path, str) and os.path.realpath(path) == settings.target:
            return record
    return None


def read_backup(installed: InstalledChoices, settings: AnySettings) -> AnySettings | None:
    """Return the settings as they were before the first installation; None = not known.

    Raises:
        StateCorruptError: The backup is there and no settings file.
    """
    record = record_of(installed, settings) or {}
    path = record.get("backup", backup_path(installed, settings))
    if not isinstance(path, str):
        return None
    try:
        data, _ = read_private_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateCorruptError(path, f"cannot be read: {error.strerror}") from error
    return type(settings)(settings.path, data)


def original_bytes(
    settings: HookSettings, before: HookSettings | None, *, is_new: bool
) -> bytes | None:
    """Return what a file held before when nothing else changed since, else what is left of it.

    Args:
        settings: The file, without ultramon's entries.
        before: As it was before the first installation; None = not known.
        is_new: Whether there was no file then.
    """
    if before is not None and before.original is not None:
        if settings.says_the_same_as(before.original):
            return before.original
    elif is_new and settings.says_the_same_as(b"{}"):
        return None
    return settings.data
