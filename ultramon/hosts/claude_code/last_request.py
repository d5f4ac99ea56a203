"""When the server was last told of a tool call: the time of one empty file, nothing is in it.

Standard library only. `ultramon doctor` says by it since when readings are missing.
"""

from __future__ import annotations

import os

from ultramon.errors import StateError
from ultramon.system.files import close_quietly, open_private

HEARD_NAME = "claude-code.heard"


def note(directory: str, now: float) -> None:
    """Remember that a call was told; nothing happens where even that is refused.

    Args:
        directory: The state directory.
        now: Epoch seconds.
    """
    path = os.path.join(directory, HEARD_NAME)
    try:
        os.utime(path, (now, now), follow_symlinks=False)
    except FileNotFoundError:
        try:
            close_quietly(open_private(path, os.O_RDWR))
        except (OSError, StateError):
            return
    except OSError:
        return


def last(directory: str) -> float | None:
    """Return when a call was told last, epoch seconds; None when none ever was."""
    try:
        return os.lstat(os.path.join(directory, HEARD_NAME)).st_mtime
    except OSError:
        return None
