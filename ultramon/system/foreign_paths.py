"""Paths as another system writes them: Windows' in a file that is read on Linux."""

from __future__ import annotations

import ntpath
import posixpath
import re

_DRIVE = re.compile(r"[A-Za-z]:[\\/]|\\\\[^\\/]")


def is_windows_path(path: str) -> bool:
    r"""Return whether a path begins with a drive or a share, as ``C:\`` or ``\\server``."""
    return _DRIVE.match(path) is not None


def join(folder: str, path: str) -> str:
    """Return a path that is meant in a folder, by the rules of the system that wrote them."""
    if is_windows_path(folder) or is_windows_path(path):
        return ntpath.normpath(ntpath.join(folder, path))
    return posixpath.join(folder, path)


def path_key(path: str) -> str:
    """Return what is equal for two spellings of one path: Windows does not tell case apart."""
    return ntpath.normpath(path).lower() if is_windows_path(path) else path


def parts(path: str) -> list[str]:
    """Return the names in a path; of another system's its drive is the first one."""
    return [part for part in path.replace("\\", "/").split("/") if part]
