"""Transcripts that lie in one file with others, found by asking the hosts for them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from ultramon.hosts.registry import find_hosts
from ultramon.hosts.transcripts.stored import file_of

if TYPE_CHECKING:
    from ultramon.hosts.transcripts.stored import StoredTranscript

Stamp = tuple[int, int, int]
"""Inode, size, and when it changed, nanoseconds: another one after each change."""


def find_stored(path: str) -> StoredTranscript | None:
    """Return a transcript that a file holds among others; None = it is a file of its own.

    Raises:
        OSError: The file cannot be read, or holds none of that name.
        ValueError: The file is of a version that its host does not know.
    """
    if file_of(path) is None:
        return None
    for host in find_hosts().usable:
        found = host.transcripts.find_stored(path)
        if found is not None:
            return found
    raise FileNotFoundError(2, "no session of that name", path)


def transcripts_in(path: str) -> list[str]:
    """Return the transcripts that a file holds; empty where it is none that holds several."""
    for host in find_hosts().usable:
        found = host.transcripts.transcripts_in(path)
        if found is not None:
            return found
    return []


def stamp_of(path: str, *, follow_links: bool = False) -> Stamp | None:
    """Return what changes when a transcript does; None = it is no regular file.

    Args:
        path: A file, or a transcript in one.
        follow_links: Whether a link is what it leads to.

    Raises:
        OSError: It is not there, or cannot be read.
        ValueError: As `find_stored`.
    """
    stored = find_stored(path)
    if stored is not None:
        return _stored_stamp(stored.size, stored.changed_ms)
    found = os.stat(path, follow_symlinks=follow_links)
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _stored_stamp(size: int, changed_ms: int) -> Stamp:
    # Of a session in a database only its size and time are known.
    return 0, size, changed_ms * 1_000_000


class Stamps:
    """The stamps of many transcripts, as `stamp_of` returns them: a database is asked once."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, tuple[int, int]]] = {}

    def of(self, path: str, *, follow_links: bool = False) -> Stamp | None:
        """Return the stamp of a transcript; see `stamp_of`."""
        folder, name = os.path.split(path)
        if folder not in self._known:
            self._known[folder] = _sizes_and_changes(folder)
        known = self._known[folder].get(name)
        return stamp_of(path, follow_links=follow_links) if known is None else _stored_stamp(*known)


def _sizes_and_changes(file: str) -> dict[str, tuple[int, int]]:
    if not os.path.isfile(file):
        return {}
    found: dict[str, tuple[int, int]] = {}
    for host in find_hosts().usable:
        # Each of them is asked for by itself then, which says what is wrong.
        with suppress(OSError, ValueError):
            found |= host.transcripts.sizes_and_changes(file)
    return found
