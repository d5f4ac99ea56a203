"""Processes and the boot as the C library of macOS tells them, called by `ctypes`.

Written for macOS; the tests run it on Linux against a library with the same declarations. Sizes and
offsets are those of Apple's ``sys/proc_info.h``, the same on both processors. An answer that is not
of that size is refused, and nothing is believed before it is right about this process.
"""

from __future__ import annotations

import errno
import os
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ctypes

SHOWS_ENVIRONMENTS = True
"""But for those of the system's own programs, as /bin/sh, which macOS hides."""

LIBRARY: str | None = None
"""The library to ask; None = those that this process has loaded."""

_BSD_INFO, _BSD_INFO_BYTES = 3, 136
_STATUS_AT, _PARENT_AT, _NAME_AT, _START_AT = 4, 16, 48, 120
_NAME_BYTES = 16
_ZOMBIE = 5
_TASK_INFO, _TASK_INFO_BYTES, _RESIDENT_AT = 4, 96, 8
_VNODES, _VNODES_BYTES, _CWD_AT, _CWD_BYTES = 9, 2352, 152, 1024
_KERN, _KERN_PROCARGS2 = 1, 49
_MAX_ARGUMENTS_BYTES = 1 << 20
_MAX_SESSION_BYTES = 64
_MORE_PIDS = 64
_SECONDS = range(10**9, 10**11)


def knows_this_process() -> bool:
    """Return whether the way works here, and says the truth about this process."""
    try:
        found = look_up(os.getpid())
    except (ImportError, AttributeError, OSError):
        return False  # a Python without `ctypes`, or not macOS
    return found is not None and (found[0] == os.getppid() and int(found[1]) in _SECONDS)


@cache
def boot_session() -> str:
    """Return what differs from boot to boot; empty where the system does not say."""
    ctypes, library = _library()
    size = ctypes.c_size_t(_MAX_SESSION_BYTES)
    buffer = ctypes.create_string_buffer(_MAX_SESSION_BYTES)
    failed = library.sysctlbyname(
        b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return "" if failed else buffer.value.decode("ascii", "replace")


def look_up(pid: int) -> tuple[int, str] | None:
    """Return parent and mark of a process; None for one that does not run, a zombie too.

    Raises:
        OSError: The system does not say, as of other users' processes.
    """
    found = _information(pid, _BSD_INFO, _BSD_INFO_BYTES)
    if found is None or _number(found, _STATUS_AT) == _ZOMBIE:
        return None
    return _number(found, _PARENT_AT), str(_number(found, _START_AT, 8))


def started_at(pid: int) -> float | None:
    """Return the epoch seconds of a start, to the microsecond; None = unknown."""
    try:
        found = _information(pid, _BSD_INFO, _BSD_INFO_BYTES)
    except OSError:
        return None
    if found is None:
        return None
    return _number(found, _START_AT, 8) + _number(found, _START_AT + 8, 8) / 1e6


def pids() -> list[int]:
    """Return the processes of all users.

    Raises:
        OSError: The system does not say.
    """
    ctypes, library = _library()
    # Some are started while the room for them is made.
    count = library.proc_listallpids(None, 0) + _MORE_PIDS
    buffer = (ctypes.c_int * count)()
    found = library.proc_listallpids(buffer, ctypes.sizeof(buffer))
    if found <= 0:
        number = ctypes.get_errno() or errno.EIO
        raise OSError(number, os.strerror(number))
    return [pid for pid in buffer[:found] if pid > 0]


def command_words(pid: int) -> list[str]:
    """Return the words that a process was started with; empty where that is not shown."""
    try:
        return [os.fsdecode(word) for word in _arguments(pid)[0]]
    except OSError:
        return []


def environment(pid: int) -> set[bytes]:
    """Return the variables that a process was started with, as ``NAME=value``.

    Raises:
        OSError: It has gone, is another user's, or the system does not say.
    """
    return set(_arguments(pid)[1])


def place(pid: int) -> tuple[bytes, str] | None:
    """Return name and working directory of a process, None = unknown."""
    try:
        known = _information(pid, _BSD_INFO, _BSD_INFO_BYTES)
        vnodes = _information(pid, _VNODES, _VNODES_BYTES)
    except OSError:
        return None
    if known is None or vnodes is None:
        return None
    directory = _text(vnodes, _CWD_AT, _CWD_BYTES)
    return _text(known, _NAME_AT, _NAME_BYTES), os.fsdecode(directory)


def resident_bytes(pid: int) -> int:
    """Return the memory that a process occupies, 0 = unknown."""
    try:
        found = _information(pid, _TASK_INFO, _TASK_INFO_BYTES)
    except OSError:
        return 0
    return 0 if found is None else _number(found, _RESIDENT_AT, 8)


@cache
def _library() -> tuple[Any, ctypes.CDLL]:
    # 2 ms, for a Mac's processes that ask at all; Linux never comes here.
    import ctypes

    return ctypes, ctypes.CDLL(LIBRARY, use_errno=True)


def forget() -> None:
    """Ask anew what is kept: the library and the boot."""
    _library.cache_clear()
    boot_session.cache_clear()


def _information(pid: int, flavor: int, size: int) -> bytes | None:
    """Return what ``proc_pidinfo`` says of a process, None when it does not run."""
    ctypes, library = _library()
    buffer = ctypes.create_string_buffer(size)
    if library.proc_pidinfo(pid, flavor, ctypes.c_uint64(0), buffer, size) == size:
        found: bytes = buffer.raw
        return found
    number = ctypes.get_errno() or errno.EIO
    if number == errno.ESRCH:
        return None
    raise OSError(number, os.strerror(number))


def _arguments(pid: int) -> tuple[list[bytes], list[bytes]]:
    """Return words and variables that a process was started with."""
    ctypes, library = _library()
    name = (ctypes.c_int * 3)(_KERN, _KERN_PROCARGS2, pid)
    buffer = ctypes.create_string_buffer(_MAX_ARGUMENTS_BYTES)
    size = ctypes.c_size_t(_MAX_ARGUMENTS_BYTES)
    if library.sysctl(name, 3, buffer, ctypes.byref(size), None, ctypes.c_size_t(0)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return parse_arguments(buffer.raw[: size.value])


def parse_arguments(found: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return words and variables from what the system keeps of a process's start.

    The number of words, the program's path and zeros up to the first word; then words and
    variables, each ended by a zero, and an empty one behind the last.
    """
    count = _number(found, 0)
    texts = found[4:].partition(b"\0")[2].lstrip(b"\0").split(b"\0")
    variables = texts[count:]
    end = variables.index(b"") if b"" in variables else len(variables)
    return texts[:count], variables[:end]


def _number(data: bytes, at: int, size: int = 4) -> int:
    import sys

    return int.from_bytes(data[at : at + size], sys.byteorder)


def _text(data: bytes, at: int, size: int) -> bytes:
    return data[at : at + size].partition(b"\0")[0]
