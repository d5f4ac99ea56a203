"""Remembers, as the mtime of an empty file, when the server last received a hook request.

Standard library only. `ultramon doctor` says by it since when readings are missing.
"""

from __future__ import annotations

import os

from ultramon.errors import StateError
from ultramon.system.files import close_quietly, open_private

FILE_NAME = "claude-code.heard"


def note(directory: str, now: float) -> None:
    """Remember a request; nothing happens where the system refuses even that.

    Args:
        directory: The state directory.
        now: Epoch seconds.
    """
    path = os.path.join(directory, FILE_NAME)
    try:
        close_quietly(open_private(path))
        os.utime(path, (now, now), follow_symlinks=False)
    except (OSError, StateError):
        return


def last(directory: str) -> float | None:
    """Return when the last request came, epoch seconds; None = none ever came."""
    try:
        return os.lstat(os.path.join(directory, FILE_NAME)).st_mtime
    except OSError:
        return None
