"""Transcripts that lie in one file with others, as in a database: each is named ``<file>/<id>``.

The file stands where a folder would, so that such a name can be no file of its own. Standard
library only.
"""

from __future__ import annotations

import io
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import WriteableBuffer


class StoredTranscript:
    """One transcript in a file with others.

    Args:
        lines: Its lines, read when they are asked for; raises as opening the file does.
        size: Grows with each message; two that differ in it or in `changed_ms` are read anew.
        changed_ms: When a message changed last, milliseconds since 1970.
    """

    __slots__ = ("_lines", "changed_ms", "size")

    def __init__(self, lines: Iterator[bytes], size: int, changed_ms: int) -> None:
        self._lines = lines
        self.size = size
        self.changed_ms = changed_ms

    def open(self) -> io.BufferedReader:
        """Return its lines as a stream, which can be read once, and only on."""
        return io.BufferedReader(_Lines(self._lines))


class _Lines(io.RawIOBase):
    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        if not self._left:
            self._left = memoryview(next(self._lines, b""))
        target = memoryview(buffer)
        size = min(len(target), len(self._left))
        target[:size] = self._left[:size]
        self._left = self._left[size:]
        return size

    def close(self) -> None:
        closing = getattr(self._lines, "close", None)
        if closing is not None:
            closing()
        super().close()


def file_of(path: str) -> str | None:
    """Return the file that holds a transcript among others; None = the transcript is the file."""
    file = os.path.dirname(path)
    return file if os.path.isfile(file) else None
