"""The files below the directory in which a host keeps its transcripts."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKED_SUFFIXES = (".zst", ".gz")
"""What is added to the name of a file that was compressed."""
_MAX_LINK_BYTES = 4096


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


def transcripts_below(
    folder: str, on_error: Callable[[OSError], None] | None = None, suffix: str = ".jsonl"
) -> Iterator[str]:
    """Yield a host's transcripts below its folder, packed ones too, each once.

    People keep these folders elsewhere and link to them: links are followed, also one that a
    checkout without links has made a file of its target. A link that leads nowhere is an error.

    Args:
        folder: Where to look; need not exist.
        on_error: Called for each folder that cannot be listed, and each link that leads nowhere.
        suffix: How a transcript's name ends before it is packed.
    """
    suffixes = (suffix, *(suffix + packed for packed in PACKED_SUFFIXES))
    seen: set[str] = set()
    waiting = [(folder, os.path.realpath(folder))]
    while waiting:
        place, real_place = waiting.pop()
        if real_place in seen:
            continue
        seen.add(real_place)
        try:
            with os.scandir(place) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if on_error is not None and not isinstance(error, FileNotFoundError):
                on_error(error)
            continue
        folders = []
        for entry in found:
            name, path, is_link = entry.name, entry.path, entry.is_symlink()
            if name.startswith("."):
                continue
            # Only what a link leads to has to be looked up, which asks for every folder above.
            real = os.path.realpath(path) if is_link else f"{real_place}{os.sep}{name}"
            if _is_folder(entry):
                folders.append((path, real))
            elif is_link and not os.path.exists(path):
                if on_error is not None:
                    on_error(OSError(errno.ENOENT, "a link that leads nowhere", path))
            elif name.endswith(suffixes):
                if real not in seen:
                    seen.add(real)
                    yield real if is_link else path
            elif (target := _checked_out_link(path)) is not None:
                folders.append((target, os.path.realpath(target)))
        waiting.extend(reversed(folders))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _checked_out_link(path: str) -> str | None:
    """Return the folder that a link leads to of which a checkout has made a file; else None."""
    try:
        if "." in os.path.basename(path) or os.path.getsize(path) > _MAX_LINK_BYTES:
            return None
        with open(path, "rb") as stream:
            text = os.fsdecode(stream.read(_MAX_LINK_BYTES))
    except OSError:
        return None
    if not text or "\n" in text.rstrip("\n") or "\0" in text:
        return None
    target = os.path.join(os.path.dirname(path), text.rstrip("\n"))
    return target if os.path.isdir(target) else None
