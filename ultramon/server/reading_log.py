"""A log of posted readings: one sync of the disk makes many of them durable.

Two files under a state directory take turns. They are filled with zeros before their first use, so
that a sync writes data alone and no file size. An orderly end of their owner deletes them.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from ultramon.errors import StateError, StateWriteError
from ultramon.system import compact_json
from ultramon.system.files import (
    close_quietly,
    delete_file,
    open_private,
    read_private_file,
    refused,
    sync_directory,
)
from ultramon.system.locks import Lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LOCK = "posts.lock"
FILES = ("posts-0.log", "posts-1.log")
FILE_BYTES = 1 << 21
"""Some sixteen thousand readings: more than come while a state waits to be written."""
MAX_READ_BYTES = 4 * FILE_BYTES
_CRC_CHARS = 8
# Not on every system; where it is missing, the size of the file is synced too.
_sync_data = getattr(os, "fdatasync", os.fsync)


class Reading(NamedTuple):
    """One posted reading, as the state of its agent counts it."""

    agent_id: str
    started_at: float
    """Of the agent, and its generation: a later agent of the same id is another."""
    generation: int
    seq: int
    """Of the state with this reading; a state with this one or a higher one holds it."""
    at: float
    """When it arrived, epoch seconds."""
    used_percentage: float
    total_input_tokens: int | None
    emitted_at: float | None


class LogFullError(StateWriteError):
    """Neither file has room: the states are further behind than the log can hold."""


def _encode(turn: int, reading: Reading) -> bytes:
    text = compact_json.dumps([turn, *reading]).encode("ascii")
    return b"%08x%s\n" % (crc32(text), text)


def _decode(line: bytes) -> tuple[int, Reading] | None:
    text = line[_CRC_CHARS:]
    if line[:_CRC_CHARS] != b"%08x" % crc32(text):
        return None
    try:
        turn, *values = compact_json.loads(text)
        return turn, Reading(*values)
    except (ValueError, TypeError):
        return None


def _lines_of_one_turn(data: bytes) -> Iterator[tuple[int, Reading]]:
    first = None
    for line in data.split(b"\n"):
        found = _decode(line)
        # Behind the last line lies what the file held in an earlier turn, or zeros.
        if found is None or (first is not None and found[0] != first):
            return
        first = found[0]
        yield found


class ReadingLog:
    """The log of one state directory. One thread writes; `recover` and `close` are for its owner.

    Args:
        directory: The state directory; it must exist.
        is_written: Returns whether the states of all readings up to a number are on disk; asked
            before a file is used again.

    Attributes:
        is_broken: The disk refused a write: what a file holds behind its last good line is unknown.
            Nothing more is written until `remove`.

    Raises:
        LockedError: Another process writes the log of this directory.
        StateWriteError: The file system refused.
    """

    def __init__(self, directory: str, is_written: Callable[[int], bool]) -> None:
        self._directory = directory
        self._is_written = is_written
        self._paths = [os.path.join(directory, name) for name in FILES]
        self._fds: list[int] = []
        self._last_numbers = [0, 0]
        self._at = 0
        self._offset = 0
        self._turn = 0
        self._write_lock = threading.Lock()
        self.is_broken = False
        self._held = ExitStack()
        self._held.enter_context(Lock(os.path.join(directory, LOCK), open_private, 0.0))

    def recover(self) -> list[Reading]:
        """Return the readings that an earlier owner left, in their order.

        Raises:
            StateCorruptError: A file is not one that this user wrote.
            StateWriteError: A file cannot be read.
        """
        turns: list[list[tuple[int, Reading]]] = []
        for path in self._paths:
            try:
                data, _ = read_private_file(path, MAX_READ_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise refused(path, "cannot be read", error) from error
            turns.append(list(_lines_of_one_turn(data)))
        turns.sort(key=lambda lines: lines[0][0] if lines else 0)
        return [reading for lines in turns for _, reading in lines]

    def remove(self) -> None:
        """Delete the files, once every state holds its readings.

        Raises:
            StateWriteError: The file system refused.
        """
        with self._write_lock:
            for fd in self._fds:
                close_quietly(fd)
            self._fds.clear()
            for path in self._paths:
                delete_file(path)
            self.is_broken = False

    def write(self, readings: Sequence[Reading], last_number: int) -> None:
        """Append readings, and return when they are on disk.

        Args:
            readings: In their order.
            last_number: The number of the last one, for `is_written`.

        Raises:
            LogFullError: No room; nothing was written.
            StateWriteError: The disk refused; they may be in the log or not.
        """
        with self._write_lock:
            if self.is_broken:
                raise StateWriteError(self._paths[self._at], "refused an earlier write")
            try:
                self._write(readings, last_number)
            except StateError:
                raise
            except OSError as error:
                self.is_broken = True
                raise refused(self._paths[self._at], "cannot be written", error) from error

    def _write(self, readings: Sequence[Reading], last_number: int) -> None:
        if not self._fds:
            self._make_files()
        data = b"".join([_encode(self._turn, reading) for reading in readings])
        if self._offset + len(data) > FILE_BYTES:
            self._take_turns()
            data = b"".join([_encode(self._turn, reading) for reading in readings])
        view, offset = memoryview(data), self._offset
        while view:
            written = os.pwrite(self._fds[self._at], view, offset)
            view, offset = view[written:], offset + written
        _sync_data(self._fds[self._at])
        # Only now: what a failed write left is overwritten by the next one.
        self._offset = offset
        self._last_numbers[self._at] = last_number

    def _make_files(self) -> None:
        fds: list[int] = []
        with ExitStack() as undo:
            for path in self._paths:
                delete_file(path)
                fds.append(open_private(path))
                undo.callback(close_quietly, fds[-1])
                # One byte more: the last line is never at the end of what was made.
                os.pwrite(fds[-1], bytes(FILE_BYTES + 1), 0)
                os.fsync(fds[-1])
            sync_directory(self._directory)
            undo.pop_all()
        self._fds = fds
        self._at, self._offset, self._last_numbers = 0, 0, [0, 0]
        self._turn += 1

    def _take_turns(self) -> None:
        other = 1 - self._at
        if not self._is_written(self._last_numbers[other]):
            path = self._paths[other]
            raise LogFullError(path, "is full: the states of its readings are not written yet")
        self._at, self._offset = other, 0
        self._turn += 1

    def close(self) -> None:
        """Release the log; its files stay."""
        with self._write_lock:
            for fd in self._fds:
                close_quietly(fd)
            self._fds.clear()
        self._held.close()
