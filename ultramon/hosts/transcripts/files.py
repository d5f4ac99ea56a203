"""The files below the directory in which a client keeps its transcripts."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def files_below(
    folder: str, suffix: str = "", on_error: Callable[[OSError], None] | None = None
) -> Iterator[str]:
    """Yield the files below a folder, sorted within each folder.

    Hidden files and folders, symbolic links, and what cannot be listed are passed over.

    Args:
        folder: Where to look; need not exist.
        suffix: How a file's name ends.
        on_error: Called for each folder that is there and cannot be listed.
    """

    def report(error: OSError) -> None:
        if on_error is not None and not isinstance(error, FileNotFoundError):
            on_error(error)

    for place, folders, names in os.walk(folder, onerror=report):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(place, name)
            if name.endswith(suffix) and not name.startswith(".") and not os.path.islink(path):
                yield path
