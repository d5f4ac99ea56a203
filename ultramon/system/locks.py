"""Locks on files, held by one descriptor at a time, across threads and processes."""

from __future__ import annotations

import os
import time

from ultramon.errors import StateWriteError
from ultramon.system.files import close_quietly, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    def _lock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]

    def _unlock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined,unused-ignore]
else:

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


# flock has no timeout: it is tried this often instead.
_RETRY_SECONDS = 0.001


class LockedError(StateWriteError):
    """Another process or thread held the lock beyond the timeout."""


class Lock:
    """Holds the lock on a file within a ``with`` block.

    Args:
        path: The file.
        open_file: Opens it for writing and makes a missing one.
        timeout_seconds: Longest time to wait for the holder.

    Raises:
        LockedError: Not free within the timeout.
        StateWriteError: The file cannot be locked at all.
    """

    __slots__ = ("_deadline", "_fd", "_open_file", "_path")

    def __init__(self, path: str, open_file: Callable[[str], int], timeout_seconds: float) -> None:
        self._path = path
        self._open_file = open_file
        self._deadline = time.monotonic() + timeout_seconds
        self._fd = -1

    def __enter__(self) -> None:
        while True:
            try:
                self._fd = self._open_file(self._path)
            except OSError as error:
                raise refused(self._path, "cannot be locked", error) from error
            try:
                self._wait()
                # A file deleted between open and lock would be a lock that no other process sees.
                if _is_same_file(self._fd, self._path):
                    return
            except BaseException:
                self._release()
                raise
            self._release()
            if time.monotonic() >= self._deadline:
                raise LockedError(self._path, "cannot be locked: it is replaced again and again")

    def __exit__(self, *_error: object) -> None:
        self._release()

    def _wait(self) -> None:
        while True:
            try:
                _lock(self._fd)
                return
            except (BlockingIOError, PermissionError):  # the second is how Windows says it
                if time.monotonic() >= self._deadline:
                    raise LockedError(self._path, "is locked by another process") from None
            except OSError as error:
                raise refused(self._path, "cannot be locked", error) from error
            time.sleep(_RETRY_SECONDS)

    def _release(self) -> None:
        # A child forked meanwhile shares the descriptor; closing this one would not unlock it.
        try:
            _unlock(self._fd)
        except OSError:
            pass
        close_quietly(self._fd)


def _is_same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except OSError:
        return False
