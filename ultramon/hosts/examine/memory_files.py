"""Finds the files of instructions that a host would load in a project now."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_FOLDERS = 32
_REPOSITORY = ".git"


def files_above(project: str | None, *names: str, above_repository: bool = False) -> Iterator[str]:
    """Yield the files of some names in a project's folder and those above it.

    Args:
        project: The folder; None = unknown, and nothing is yielded.
        names: Of the files.
        above_repository: Whether the host looks above the repository that the folder is in.
    """
    if project is None or not os.path.isabs(project):
        return
    folder = project
    for _ in range(_MOST_FOLDERS):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                yield path
        is_root = not above_repository and os.path.exists(os.path.join(folder, _REPOSITORY))
        folder, below = os.path.dirname(folder), folder
        if folder == below or is_root:
            return
