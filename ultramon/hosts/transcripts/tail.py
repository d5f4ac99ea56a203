"""The lines of a transcript from its end: as fast in 100 MB as in one.

Standard library only: every hook call that measures uses it.
"""

from __future__ import annotations

import os
from itertools import islice

from ultramon.hosts.transcripts.jsonl import decode_object, open_transcript, text_or_none

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any

BLOCK_BYTES = 64 * 1024
MAX_LINES = 10_000
"""No more lines than this are decoded that may hold a fact."""
MAX_TAIL_BYTES = 64 * 1024 * 1024
"""No further back than this: one document is written down twice, as base64, of up to 32 MB."""


class Owner:
    """Tells the lines of a session from those of another one in its file.

    Args:
        path: The file. Where its name ends with a UUID, that is the id of its session; else every
            line counts as its own.

    Attributes:
        id: That of the session, or None.
        is_missing: Whether each line so far has named another session.
    """

    def __init__(self, path: str) -> None:
        stem = os.path.basename(path).removesuffix(".jsonl")
        self.id = stem[-36:] if _is_uuid(stem[-36:]) else None
        self._others = self._own = 0

    @property
    def is_missing(self) -> bool:
        """Whether only lines of others were seen: a copy under another name."""
        return self._others > 0 and not self._own

    def accept(self, session_id: object) -> bool:
        """Return whether a line that names a session is to be read; one that names none is."""
        if self.id is None or not isinstance(session_id, str):
            return True
        is_own = session_id == self.id
        self._own += is_own
        self._others += not is_own
        return is_own


def _is_uuid(text: str) -> bool:
    parts = text.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(
        part.isalnum() and part.isascii() for part in parts
    )


def lines_from_end(
    fd: int, size: int, may_matter: Callable[[bytes], bool]
) -> Iterator[tuple[bytes, int]]:
    """Yield the lines of a file that may hold a fact, and where they end, last first.

    The last line of the file may be incomplete.

    Args:
        fd: The file.
        size: Where to begin, in bytes.
        may_matter: Tells cheaply whether a text of one or more lines may hold a fact.
    """
    position = line_end = size
    lowest = max(0, size - MAX_TAIL_BYTES)
    pieces: list[bytes] = []
    while position > lowest:
        start = max(lowest, position - BLOCK_BYTES)
        block = os.pread(fd, position - start, start)
        if not block:
            return
        position = start
        first, newline, rest = block.partition(b"\n")
        if not newline:
            pieces.append(block)
            continue
        lines, _, last = rest.rpartition(b"\n")
        pieces.append(last)
        line = b"".join(reversed(pieces))
        if may_matter(line):
            yield line, line_end
        line_end = start + len(first)
        if may_matter(lines):  # most blocks hold nothing, and need not be split
            end = line_end + 1 + len(lines)
            for line in reversed(lines.split(b"\n")):
                if may_matter(line):
                    yield line, end
                end -= len(line) + 1
        pieces = [first]
    line = b"".join(reversed(pieces))
    if position == 0 and may_matter(line):
        yield line, line_end


def objects_from_end(
    fd: int,
    size: int,
    marks: tuple[bytes, ...],
    is_ignorable: Callable[[bytes], bool] = lambda line: False,
) -> Generator[tuple[dict[str, Any], int]]:
    """Yield the objects in lines with one of these marks, last first, each with where it ends.

    What cannot be decoded, as a line that the host has cut off, is passed over.

    Args:
        fd: The file; closed when the last object was taken, or the iterator is given up.
        size: Where to begin, in bytes.
        marks: Texts of which a line that may hold a fact has one.
        is_ignorable: Tells cheaply, and never wrongly, that a line with a mark holds none.
    """

    def may_matter(text: bytes) -> bool:
        return any(mark in text for mark in marks)

    try:
        for line, end in islice(lines_from_end(fd, size, may_matter), MAX_LINES):
            if is_ignorable(line):
                continue
            try:
                entry = decode_object(line)
            except ValueError:
                continue
            yield entry, end
    finally:
        os.close(fd)


def last_version(path: str) -> str | None:
    """Return the version of the host that wrote the last line, where each line names it.

    Another one may continue a session.

    Args:
        path: The transcript.

    Raises:
        OSError: It cannot be opened: it is not there, or not readable.
        ValueError: It is no regular file but, for example, a link.
    """
    for entry, _ in objects_from_end(*open_transcript(path), (b'"version"',)):
        if version := text_or_none(entry.get("version")):
            return version
    return None
