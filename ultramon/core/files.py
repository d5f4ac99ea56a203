"""Files and directories that belong to this user alone: made, checked, opened, locked.

Works the same under every umask, and never follows a link that somebody planted.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress

from ultramon.errors import (
    StateCorruptError,
    StateDirectoryError,
    StateError,
    StateWriteError,
)

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


MAX_FILE_BYTES = 1 << 20
_LOCK_RETRY_SECONDS = 0.001
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)


def _make_missing(path: str) -> None:
    with suppress(FileExistsError):
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:
            _make_missing(os.path.dirname(path) or ".")
            os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # a umask may have taken bits that we need


def make_private_directory(path: str) -> None:
    """Create a directory and its parents with mode 0700 where missing, and make sure it is ours.

    Raises:
        StateDirectoryError: It is a symlink or no directory, belongs to somebody else, or others
            may write to it; or it cannot be created.
    """
    try:
        _make_missing(path)
        found = os.lstat(path)
    except OSError as error:
        raise StateDirectoryError(
            path, f"cannot be created: {error.strerror}", "set ULTRAMON_STATE_DIR"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        kind = "a symlink" if stat.S_ISLNK(found.st_mode) else "not a directory"
        raise StateDirectoryError(path, f"is {kind}", "name the directory itself")
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise StateDirectoryError(path, f"belongs to user {found.st_uid}", "use one of your own")
    if found.st_mode & 0o022:
        raise StateDirectoryError(path, "others may write to it", f"chmod 700 {path}")


def check_private(found: os.stat_result, path: str) -> None:
    """Make sure that a file is a plain one of ours, under one name.

    Raises:
        StateCorruptError: It is something else.
    """
    if not stat.S_ISREG(found.st_mode):
        raise StateCorruptError(path, "not a regular file")
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise StateCorruptError(path, f"belongs to user {found.st_uid}")
    if found.st_nlink > 1:
        raise StateCorruptError(path, "has a second name (hard link)")


def read_private_file(path: str, max_bytes: int = MAX_FILE_BYTES) -> tuple[bytes, os.stat_result]:
    """Read a small regular file of ours without following links, blocking or reading on and on.

    Raises:
        StateCorruptError: It is something else than a small regular file of ours.
        OSError: There is none, or the system refused: that says nothing about the file.
    """
    check_private(os.lstat(path), path)  # first: merely opening a device can do something
    fd = os.open(path, os.O_RDONLY | _NOFOLLOW | _NONBLOCK | _CLOEXEC)
    try:
        found = os.fstat(fd)
        check_private(found, path)
        if found.st_size > max_bytes:
            raise StateCorruptError(path, f"has {found.st_size:,} bytes, at most {max_bytes:,}")
        data = b""
        while chunk := os.read(fd, found.st_size + 1 - len(data)):
            data += chunk
    finally:
        close_quietly(fd)
    if len(data) > found.st_size:
        raise StateCorruptError(path, "grew while it was read")
    return data, found


def open_private(path: str, flags: int) -> int:
    """Open a file of ours, creating it with mode 0600 where it is missing.

    Raises:
        OSError: The system refused, or the name is a symlink.
    """
    flags |= _NOFOLLOW | _NONBLOCK | _CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        fd = os.open(path, flags | os.O_CREAT, 0o600)
        try:
            _make_private(fd)
        except OSError:
            close_quietly(fd)
            raise
        return fd


def _make_private(fd: int) -> None:
    if hasattr(os, "fchmod"):
        os.fchmod(fd, 0o600)  # a umask may have taken bits that we need


def write_new_file(path: str, data: bytes) -> None:
    """Write a file with mode 0600 that must not exist yet, down to the disk.

    Raises:
        OSError: The system refused; a part of the file may be there.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _CLOEXEC, 0o600)
    try:
        _make_private(fd)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        # An un-synced rename left the file empty after a power cut on XFS.
        os.fsync(fd)
    finally:
        os.close(fd)


def delete_file(path: str) -> None:
    """Delete a file; nothing happens when there is none.

    Raises:
        StateWriteError: The file system refused.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise refused(path, "cannot be deleted", error) from error


def sync_directory(path: str) -> None:
    """Bring the names in a directory down to the disk."""
    fd = os.open(path, os.O_RDONLY | _CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        close_quietly(fd)


def close_quietly(fd: int) -> None:
    """Close a descriptor through which nothing was written: its close has nothing to report."""
    with suppress(OSError):
        os.close(fd)


def try_lock(fd: int) -> bool:
    """Lock a file for this descriptor; False when it is locked through another one.

    Raises:
        OSError: It cannot be locked at all.
    """
    try:
        _lock(fd)
    except (BlockingIOError, PermissionError):  # the second is how Windows says it
        return False
    return True


def wait_for_lock(fd: int, path: str, deadline: float) -> None:
    """Lock a file for this descriptor, trying until a time of the monotonic clock.

    Raises:
        StateWriteError: Not free by then, or it cannot be locked at all.
    """
    try:
        while not try_lock(fd):
            if time.monotonic() >= deadline:
                raise StateWriteError(path, "is locked by another process")
            time.sleep(_LOCK_RETRY_SECONDS)
    except OSError as error:
        raise refused(path, "cannot be locked", error) from error


def is_same_file(fd: int, path: str) -> bool:
    """Return whether a path still names the file that was opened."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except OSError:
        return False


def unlock(fd: int) -> None:
    """Unlock a file, for copies of the descriptor in forked children too, unlike its close."""
    with suppress(OSError):
        _unlock(fd)


def refused(path: str, what: str, error: OSError) -> StateWriteError:
    """Return the typed error for what the system refused to do with a file."""
    if isinstance(error, StateError):
        return StateWriteError(error.path, error.reason)
    return StateWriteError(path, f"{what}: {error.strerror}")
