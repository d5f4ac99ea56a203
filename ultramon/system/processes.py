"""Identities of machines and processes, and whether a process still runs."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PROC = "/proc"
_UNKNOWN = "unknown"
_SHORT_LIFE_SECONDS = 60.0
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)  # not on Windows


def _read_proc(path: str) -> str | None:
    try:
        fd = os.open(f"{_PROC}/{path}", os.O_RDONLY | _CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 4096).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)


def _pid_namespace() -> str:
    try:
        return os.readlink(os.path.join(_PROC, "self/ns/pid"))
    except OSError:
        return ""


class MachineIdentity:
    """A machine, its boot and its process namespace.

    Attributes:
        hostname: Node name.
        boot_id: Boot id and pid namespace: containers share the first, not the second. Empty
            where the system reports neither.
    """

    __slots__ = ("boot_id", "hostname")

    def __init__(self, hostname: str, boot_id: str) -> None:
        self.hostname = hostname
        self.boot_id = boot_id


def this_machine() -> MachineIdentity:
    """Return the identity of the machine this process runs on."""
    hostname = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    boot_id = (_read_proc("sys/kernel/random/boot_id") or "").strip()
    return MachineIdentity(hostname, boot_id + _pid_namespace()[3:])


def working_directory() -> str | None:
    """Return the working directory, None where it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return None


def command_words(pid: int) -> list[str]:
    """Return the words that a process was started with, the first 4 kB of them.

    Empty where the system does not say.
    """
    return (_read_proc(f"{pid}/cmdline") or "").split("\0")[:-1]


def process_started_at(pid: int) -> str | None:
    """Return an opaque mark of a process's start, None when it does not run.

    A pid is reused, the pair of pid and start is not. A zombie does not run. Without a readable
    ``/proc`` the mark of every existing pid is ``"unknown"``.
    """
    stat = _read_proc(f"{pid}/stat")
    if stat is not None:
        # The name of the program, in parentheses, may hold blanks and parentheses itself.
        fields = stat[stat.rfind(")") + 2 :].split()
        return None if len(fields) < 20 or fields[0] in "ZX" else fields[19]
    if os.path.exists(os.path.join(_PROC, "self/stat")):
        # The file could not be opened for want of descriptors; that does not end a process.
        return _UNKNOWN if os.path.exists(os.path.join(_PROC, str(pid))) else None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # e.g. PermissionError: it exists, and is another user's
    return _UNKNOWN


def is_process_gone(
    pid: int, known: str | None, started_at: Callable[[int], str | None] = process_started_at
) -> bool:
    """Return whether a process of this machine with a known start provably ended."""
    started = started_at(pid)
    if started is None:
        return True
    return started != known and known is not None and _UNKNOWN not in (started, known)


def sees_processes() -> bool:
    """Return whether ``/proc`` shows the namespace in which this process has its pid."""
    try:
        return os.readlink(os.path.join(_PROC, "self")) == str(os.getpid())
    except OSError:
        return False


def boot_seconds() -> float:
    """Return how long the machine has been up: a clock that is never set."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def started_at_boot_seconds(mark: str | None) -> float:
    """Return when a short-lived process was started, on the clock of `boot_seconds`, to 10 ms.

    Of two processes that one parent has started the later one never gets the earlier time, however
    late each comes to read a clock.

    Args:
        mark: As `process_started_at` returned it, less than a minute after the start.

    Returns:
        The time now where the system does not say.
    """
    now = boot_seconds()
    if mark is None or not mark.isdecimal():
        return now
    started_at = int(mark) / os.sysconf("SC_CLK_TCK")
    # A sandbox may count from another start, or always say 0.
    return started_at if 0 <= now - started_at < _SHORT_LIFE_SECONDS else now


def ancestors(pid: int | None = None) -> list[tuple[int, str]]:
    """Return the processes above one (None = this one) with their starts, the parent first.

    Without a readable ``/proc`` only the parent of this process is known.
    """
    found: list[tuple[int, str]] = []
    above: int | None = os.getppid() if pid is None else _parent(pid)
    while above and (started := process_started_at(above)) is not None:
        found.append((above, started))
        above = _parent(above)
    return found


def _parent(pid: int) -> int | None:
    stat = _read_proc(f"{pid}/stat")
    return None if stat is None else int(stat[stat.rfind(")") + 2 :].split()[1])
