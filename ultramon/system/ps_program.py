"""Processes and the boot as the programs ``ps`` and ``sysctl`` tell them.

For a Mac whose Python lacks `ctypes`. A look costs the start of a program, some 5 ms; starts are
known to the second, environments and working directories not at all. Run on Linux by the tests.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from functools import cache

from ultramon.system.timestamps import parse_time

SHOWS_ENVIRONMENTS = False

PS = "/bin/ps"
SYSCTL = "/usr/sbin/sysctl"
_ENVIRON = {"LC_ALL": "C", "TZ": "UTC0"}
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_READ_BYTES = 65_536
_KILOBYTE = 1_024


def knows_this_process() -> bool:
    """Return whether the way works here, and says the truth about this process."""
    try:
        found = look_up(os.getpid())
    except OSError:
        return False
    return found is not None and found[0] == os.getppid()


@cache
def boot_session() -> str:
    """Return what differs from boot to boot; empty where the system does not say."""
    try:
        code, printed = _run(SYSCTL, "-n", "kern.bootsessionuuid")
    except OSError:
        return ""
    return "" if code else printed.strip()


def look_up(pid: int) -> tuple[int, str] | None:
    """Return parent and mark of a process; None for one that does not run, a zombie too.

    Raises:
        OSError: The system does not say.
    """
    # On BSD one -o would take all behind its "=" for the title of a column.
    code, printed = _run(PS, "-o", "ppid=", "-o", "stat=", "-o", "lstart=", "-p", str(pid))
    words = printed.split()
    if code and not words:
        # A ps that fails says as little of a process that runs.
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            raise OSError(errno.EIO, f"ps ended with {code}")
        return None
    if len(words) < 3 or (started_at := parse_start(words[-4:])) is None:
        raise OSError(errno.EIO, f"ps printed {printed.strip()!r}")
    return None if words[1].startswith("Z") else (int(words[0]), str(started_at))


def parse_start(words: list[str]) -> int | None:
    """Return the epoch seconds of ``Nov 27 07:28:11 2026``, in UTC; None = it is no time."""
    if len(words) != 4:
        return None
    month, day, clock, year = words
    number = _MONTHS.find(month) // 3 + 1
    at = parse_time(f"{year}-{number:02}-{day:0>2}T{clock}Z")
    return None if at is None else int(at)


def started_at(pid: int) -> float | None:
    """Return None: only the second is printed."""
    return None


def pids() -> list[int]:
    """Return the processes of all users."""
    return [int(word) for word in _run(PS, "-A", "-o", "pid=")[1].split()]


def command_words(pid: int) -> list[str]:
    """Return nothing: where a word ends is not printed."""
    return []


def environment(pid: int) -> set[bytes]:
    """Raise: where a value ends is not printed."""
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


def place(pid: int) -> tuple[bytes, str] | None:
    """Return None: the working directory is not printed."""
    return None


def resident_bytes(pid: int) -> int:
    """Return the memory that a process occupies, 0 = unknown."""
    try:
        printed = _run(PS, "-o", "rss=", "-p", str(pid))[1].strip()
    except OSError:
        return 0
    return int(printed) * _KILOBYTE if printed.isdecimal() else 0


def _run(*arguments: str) -> tuple[int, str]:
    """Return exit code and output of a program; `subprocess` would cost a hook 15 ms to load."""
    reading, writing = os.pipe()
    try:
        null = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        actions = [(os.POSIX_SPAWN_DUP2, writing, 1), null]
        pid = os.posix_spawn(arguments[0], arguments, _ENVIRON, file_actions=actions)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    printed = b""
    with open(reading, "rb", buffering=0) as file:
        while chunk := file.read(_READ_BYTES):
            printed += chunk
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        status = 0  # a program that ignores SIGCHLD never learns how its children end
    return os.waitstatus_to_exitcode(status), printed.decode("ascii", "replace")
