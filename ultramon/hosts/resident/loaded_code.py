"""The code of ultramon that a resident has loaded, and whether it is still the one on disk.

Standard library only. A version does not say that: all builds of a source tree have the same.
"""

from __future__ import annotations

import os
import sys

from ultramon.hosts.resident.forwarder import PACKAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    Mark = tuple[int, int]

_ROOM = "ultramon."


class LoadedCode:
    """The files of ultramon that this process has loaded, as they were then."""

    def __init__(self) -> None:
        self._marks: dict[str, Mark | None] = {}
        self._module_count = 0
        self._note()

    @property
    def build(self) -> str:
        """What tells this code from that of another build: its place, and its last change."""
        return f"{PACKAGE} {max(map(_changed_at, self._marks.values()))}"

    def age_beside(self, package: str) -> int:
        """Return whether the code of a package is newer than this: 1 = it is, -1 = it is older.

        Where it is at the same place, every change makes it the newer one, and 0 says that nothing
        has changed. Else what changed last on this machine is the newer one: files of a wheel may
        all be of the same time, and a file that is edited in place keeps its name.

        Args:
            package: The directory of a package `ultramon`, with a slash at the end.
        """
        self._note()
        if package == PACKAGE:
            return int(any(_mark(path) != mark for path, mark in self._marks.items()))
        found = [_mark(package + path.removeprefix(PACKAGE)) for path in self._marks]
        own, other = (max(map(_changed_at, marks)) for marks in (self._marks.values(), found))
        return (other > own) - (other < own)

    def _note(self) -> None:
        """Note the files of modules that were loaded since this was called last."""
        modules = tuple(sys.modules.items())
        if len(modules) == self._module_count:
            return
        paths = [getattr(one, "__file__", None) for name, one in modules if name.startswith(_ROOM)]
        found = {path: _mark(path) for path in paths if path and path not in self._marks}
        # Calls are answered side by side: what another one looks at stays as it is.
        self._marks = self._marks | found
        self._module_count = len(modules)


def _mark(path: str) -> Mark | None:
    """Return what a change of a file changes, even one that restores size and time; None = gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _changed_at(mark: Mark | None) -> int:
    return mark[1] if mark else 0
