"""The files below the directory in which a client keeps its transcripts."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def files_below(folder: str, suffix: str = "") -> Iterator[str]:
    """Yield the files below a folder, sorted within each folder.

    Hidden files and folders, symbolic links, and what cannot be listed are passed over.

    Args:
        folder: Where to look; need not exist.
        suffix: How a file's name ends.
    """
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(place, name)
            if name.endswith(suffix) and not name.startswith(".") and not os.path.islink(path):
                yield path
