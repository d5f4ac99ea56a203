"""Windows' drives within WSL, which keep neither modes nor locks as Linux does."""

from __future__ import annotations

import os

from ultramon.system import processes

_SYSTEMS = ("9p", "drvfs", "virtiofs")


def windows_drive_of(path: str) -> str | None:
    """Return where the Windows drive that holds a path is mounted; None = no such drive holds it.

    Args:
        path: It need not exist.
    """
    try:
        with open(f"{processes.PROC}/mounts", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return None
    path = os.path.join(os.path.realpath(path), "")
    # Of two mounted at one place the later one is seen; a longer place lies within a shorter one.
    held = [one for one in mounts if len(one) > 3 and path.startswith(_folder(one[1]))]
    found = max(reversed(held), key=lambda one: len(_folder(one[1])), default=None)
    if found is None or found[2] not in _SYSTEMS:
        return None
    is_drive = found[2] == "drvfs" or found[0].startswith("drvfs") or "aname=drvfs" in found[3]
    return _folder(found[1]).rstrip("/") if is_drive else None


def _folder(place: str) -> str:
    # Blanks, tabs, line ends and backslashes are written as octal numbers.
    for octal in ("040", "011", "012", "134"):
        place = place.replace(f"\\{octal}", chr(int(octal, 8)))
    return os.path.join(place, "")
