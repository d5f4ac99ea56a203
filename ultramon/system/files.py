"""Files and directories of this user: made, checked, read and replaced.

Independent of the umask; never follows a planted link.
"""

from __future__ import annotations

import os
import stat

from ultramon.errors import StateCorruptError, StateDirectoryError, StateError, StateWriteError
from ultramon.system.ids import random_hex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

MAX_FILE_BYTES = 1 << 20
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
# The open of a pipe in the place of a file would wait for its other end.
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_TO_READ = os.O_RDONLY | _NOFOLLOW | _NONBLOCK | _CLOEXEC
_geteuid = getattr(os, "geteuid", None)  # not on Windows


def _make_missing(path: str) -> None:
    try:
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:
            _make_missing(os.path.dirname(path) or ".")
            os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # a umask may have removed bits
    except FileExistsError:
        pass


def make_private_directory(path: str) -> None:
    """Create a missing directory and its parents with mode 0700, and check the one there.

    Raises:
        StateDirectoryError: It is a symlink or no directory, belongs to another user, is writable
            by others, or cannot be created.
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
    if _geteuid is not None and found.st_uid != _geteuid():
        raise StateDirectoryError(path, f"belongs to user {found.st_uid}", "use one of your own")
    if found.st_mode & 0o022:
        raise StateDirectoryError(path, "others may write to it", f"chmod 700 {path}")


def check_private(found: os.stat_result, path: str) -> None:
    """Check that a file is a regular one of this user.

    It may have a second name: a backup by hard links gives every file one.

    Raises:
        StateCorruptError: It is not.
    """
    _check_regular(found, path)
    if _geteuid is not None and found.st_uid != _geteuid():
        raise StateCorruptError(path, f"belongs to user {found.st_uid}")


def check_one_name(found: os.stat_result, path: str) -> None:
    """Check a file that must not change or be read under another name: a secret, settings, code.

    Raises:
        StateCorruptError: It is not a regular file of this user, or has a second name.
    """
    check_private(found, path)
    if found.st_nlink > 1:
        raise StateCorruptError(path, "has a second name (hard link)")


def _check_regular(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise StateCorruptError(path, "not a regular file")


def read_start(path: str, max_bytes: int) -> bytes:
    """Return the beginning of a file of another program; links are followed.

    Never waits: of a pipe without a writer it is empty.

    Raises:
        OSError: It cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        return os.read(fd, max_bytes)
    finally:
        os.close(fd)


def read_private_file(
    path: str,
    max_bytes: int = MAX_FILE_BYTES,
    *,
    is_regular: bool = False,
    check: Callable[[os.stat_result, str], None] = check_private,
) -> tuple[bytes, os.stat_result]:
    """Read a small regular file of this user: no link is followed, no read blocks or never ends.

    Args:
        path: The file.
        max_bytes: A larger one is refused unread.
        is_regular: The caller has just checked that; it is checked again once the file is open.
        check: What the file must pass; `check_one_name` for secrets, settings and code.

    Raises:
        StateCorruptError: It is not a small regular file of this user, or does not pass the check.
        OSError: It does not exist, or the system refused, which says nothing about the file.
    """
    if not is_regular:
        check(os.lstat(path), path)  # before the open: opening a device can have effects
    return _read_bounded(path, max_bytes, check)


def read_shared_file(path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read a small regular file of any user, such as a project's, as `read_private_file` does.

    Raises:
        StateCorruptError: It is not a small regular file.
        OSError: It does not exist, or the system refused.
    """
    _check_regular(os.lstat(path), path)
    return _read_bounded(path, max_bytes, _check_regular)[0]


def _read_bounded(
    path: str, max_bytes: int, check: Callable[[os.stat_result, str], None]
) -> tuple[bytes, os.stat_result]:
    fd = os.open(path, _TO_READ)
    try:
        found = os.fstat(fd)
        check(found, path)
        if found.st_size > max_bytes:
            raise StateCorruptError(path, f"has {found.st_size:,} bytes, at most {max_bytes:,}")
        # One byte more than there should be shows that it grew.
        data = os.read(fd, found.st_size + 1)
        while len(data) < found.st_size and (chunk := os.read(fd, found.st_size + 1 - len(data))):
            data += chunk
    finally:
        close_quietly(fd)
    if len(data) > found.st_size:
        raise StateCorruptError(path, "grew while it was read")
    return data, found


def open_private_file(path: str) -> tuple[int, os.stat_result]:
    """Open a regular file of this user for reading; a link is not followed.

    Raises:
        StateCorruptError: It is not a regular file of this user.
        OSError: It does not exist, or the system refused.
    """
    check_private(os.lstat(path), path)
    fd = os.open(path, _TO_READ)
    try:
        found = os.fstat(fd)
        check_private(found, path)
    except BaseException:
        close_quietly(fd)
        raise
    return fd, found


def open_private(path: str, flags: int = os.O_RDWR) -> int:
    """Open a file of this user, for reading and writing; a missing one is made with mode 0600.

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


def open_private_output(path: str) -> BinaryIO:
    """Open a file for what a program prints, emptied or made with mode 0600.

    Raises:
        OSError: The system refused, or the name is a symlink.
    """
    # `open_private` creates a missing file itself, with the right mode.
    return open(path, "wb", opener=lambda name, flags: open_private(name, flags & ~os.O_CREAT))


def _make_private(fd: int) -> None:
    if hasattr(os, "fchmod"):
        os.fchmod(fd, 0o600)  # a umask may have removed bits


def create_private(path: str) -> int:
    """Make a file that must not exist yet, with mode 0600, and open it for writing.

    Raises:
        OSError: The system refused.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _CLOEXEC, 0o600)
    _make_private(fd)
    return fd


def open_shared(path: str) -> int:
    """Open a file for locks, open to all its readers; a missing one gets the mode of the umask.

    Raises:
        OSError: The system refused, or the name is a symlink.
    """
    return os.open(path, os.O_RDONLY | os.O_CREAT | _NOFOLLOW | _NONBLOCK | _CLOEXEC, 0o666)


def write_new_file(path: str, data: bytes, *, shared: bool = False) -> None:
    """Write a file that must not exist yet, and sync it.

    Args:
        path: The file.
        data: Its content.
        shared: Give it the mode of the umask, for a project's files; else 0600.

    Raises:
        OSError: The system refused; a part of the file may exist.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _CLOEXEC
    fd = os.open(path, flags, 0o666 if shared else 0o600)
    try:
        if not shared:
            _make_private(fd)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        # An un-synced rename left the file empty after a power cut on XFS.
        os.fsync(fd)
    finally:
        os.close(fd)


class NewFile:
    """A synced temporary file, which the ``with`` block renames to its place.

    Deleted when the block or the write fails; an `OSError` becomes a `StateWriteError`.

    Args:
        temporary: Its path, in the directory of its place.
        path: Its place, for the error.
        data: Its content.
        shared: As for `write_new_file`.
    """

    __slots__ = ("_data", "_path", "_shared", "_temporary")

    def __init__(self, temporary: str, path: str, data: bytes, *, shared: bool = False) -> None:
        self._temporary = temporary
        self._path = path
        self._data = data
        self._shared = shared

    def __enter__(self) -> str:
        try:
            write_new_file(self._temporary, self._data, shared=self._shared)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self._temporary

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        delete_quietly(self._temporary)
        if isinstance(error, OSError):
            raise refused(self._path, "cannot be written", error) from error


def replace_file(path: str, data: bytes, *, shared: bool = False) -> None:
    """Replace a file atomically, and sync the new one.

    Args:
        path: The file; a link is replaced, not followed.
        data: Its new content.
        shared: As for `write_new_file`.

    Raises:
        StateWriteError: The file system refused; the old file is intact.
    """
    # Each writer has a name of its own: two would overwrite each other's file.
    temporary = f"{path}.{random_hex(6)}.tmp"
    with NewFile(temporary, path, data, shared=shared) as temporary:
        os.replace(temporary, path)


def delete_file(path: str) -> None:
    """Delete a file if it exists.

    Raises:
        StateWriteError: The file system refused.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise refused(path, "cannot be deleted", error) from error


def delete_quietly(path: str) -> None:
    """Delete a file whose absence and presence do no harm."""
    try:
        os.unlink(path)
    except OSError:
        pass


def sync_directory(path: str) -> None:
    """Sync the names in a directory, and what was synced before it in the cache of the disk."""
    fd = os.open(path, os.O_RDONLY | _CLOEXEC)
    try:
        os.fsync(fd)
        _empty_disk_cache(fd)
    finally:
        close_quietly(fd)


def _empty_disk_cache(fd: int) -> None:
    """Have the disk write what its cache holds; Linux does that at each sync, macOS when asked."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    if (command := getattr(fcntl, "F_FULLFSYNC", None)) is not None:
        try:
            fcntl.fcntl(fd, command)
        except OSError:
            pass  # a file system without it, as of another machine


def close_quietly(fd: int) -> None:
    """Close a descriptor without writes, whose close has nothing to report."""
    try:
        os.close(fd)
    except OSError:
        pass


def refused(path: str, what: str, error: OSError) -> StateWriteError:
    """Return the typed error for a refusal of the system."""
    if isinstance(error, StateError):
        return StateWriteError(error.path, error.reason)
    return StateWriteError(path, f"{what}: {error.strerror}")
