"""When a process looked last at levels, or for commands to run, for whoever asks if one does."""

from __future__ import annotations

import os

from ultramon.system.files import make_private_directory, open_private

SILENT_SECONDS = 60.0
"""A process that looks has done so since."""
_MARK = "levels.watched"


def mark_watched(directory: str, now: float, mark: str = _MARK) -> None:
    """Note that a watch looks, for `watched_at`.

    Args:
        directory: Where the mark is; made where it is missing.
        now: Epoch seconds.
        mark: Its name; the default is that of levels.

    Raises:
        StateError: The state directory is not safe to use.
    """
    make_private_directory(directory)
    path = os.path.join(directory, mark)
    try:
        os.utime(path, (now, now))
    except FileNotFoundError:
        os.close(open_private(path))
    except OSError:
        return  # only the doctor asks


def watched_at(directory: str, mark: str = _MARK) -> float | None:
    """Return when a watch looked last, epoch seconds; None = never."""
    try:
        return os.lstat(os.path.join(directory, mark)).st_mtime
    except OSError:
        return None
