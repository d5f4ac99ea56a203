"""Identities of machines and processes, and whether a process still runs.

Linux shows them in ``/proc``. Where there is none, `other_way` asks the C library of macOS, else
the programs ``ps`` and ``sysctl``.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.system.process_way import ProcessWay

PROC = "/proc"
_BOOT_CLOCKS = ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC_RAW")
"""The second counts the time asleep on macOS, which lacks the first; `time.monotonic` does not."""
_BOOT_CLOCK: int | None = next(
    (getattr(time, one) for one in _BOOT_CLOCKS if hasattr(time, one)), None
)
_LOOKS_AT_CLOCKS = 5
_ONE_NAMESPACE = "[all]"
_chosen: list[ProcessWay | None] = []
_UNKNOWN = "unknown"
_SHORT_LIFE_SECONDS = 60.0
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)  # not on Windows


def _read_proc(path: str) -> str | None:
    try:
        fd = os.open(f"{PROC}/{path}", os.O_RDONLY | _CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 4096).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)


def has_proc() -> bool:
    """Return whether this system shows its processes in ``/proc``."""
    return os.path.exists(f"{PROC}/self/stat")


def other_way() -> ProcessWay | None:
    """Return how processes are found where there is no ``/proc``, chosen once; None = in no way.

    Raises:
        OSError: The system has no descriptors now, without which that cannot be known.
    """
    if not _chosen:
        try:
            from ultramon.system import libproc, ps_program

            ways: tuple[ProcessWay, ...] = (libproc, ps_program)
            found = next((way for way in ways if way.knows_this_process()), None)
        except ImportError:
            found = None
        if found is None:
            os.close(os.open("/", os.O_RDONLY | _CLOEXEC))  # what failed may work another time
        _chosen.append(found)
    return _chosen[0]


def _way_now() -> ProcessWay | None:
    """Return the way where there is no ``/proc``; None as well while that cannot be known."""
    try:
        return other_way()
    except OSError:
        return None


def _pid_namespace() -> str:
    try:
        return os.readlink(f"{PROC}/self/ns/pid")
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
    if boot_id or has_proc():
        return MachineIdentity(hostname, boot_id + _pid_namespace()[3:])
    way = _way_now()
    session = "" if way is None else way.boot_session()
    return MachineIdentity(hostname, session and f"{session}:{_ONE_NAMESPACE}")


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
    words = _read_proc(f"{pid}/cmdline")
    if words is None and not has_proc() and (way := _way_now()) is not None:
        return way.command_words(pid)
    return (words or "").split("\0")[:-1]


def process_started_at(pid: int) -> str | None:
    """Return an opaque mark of a process's start, None when it does not run.

    A pid is reused, the pair of pid and start is not. A zombie does not run. Where the system does
    not say, the mark of every existing pid is ``"unknown"``.
    """
    found = _look_up(pid)
    return None if found is None else found[1]


def _look_up(pid: int) -> tuple[int | None, str] | None:
    """Return parent and mark of a process, None when it does not run."""
    stat = _read_proc(f"{pid}/stat")
    if stat is not None:
        # The name of the program, in parentheses, may hold blanks and parentheses itself.
        fields = stat[stat.rfind(")") + 2 :].split()
        return None if len(fields) < 20 or fields[0] in "ZX" else (int(fields[1]), fields[19])
    if has_proc():
        # The file could not be opened for want of descriptors; that does not end a process.
        return (None, _UNKNOWN) if os.path.exists(f"{PROC}/{pid}") else None
    if pid <= 0:
        return None  # `kill` takes these for groups of processes
    if (way := _way_now()) is not None:
        try:
            return way.look_up(pid)
        except OSError:
            pass  # e.g. of another user's process it says nothing
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # e.g. PermissionError: it exists, and is another user's
    return None, _UNKNOWN


def is_process_gone(
    pid: int, known: str | None, started_at: Callable[[int], str | None] = process_started_at
) -> bool:
    """Return whether a process of this machine with a known start provably ended."""
    started = started_at(pid)
    if started is None:
        return True
    return started != known and known is not None and _UNKNOWN not in (started, known)


def sees_processes() -> bool:
    """Return whether the system shows the processes among which this one has its pid."""
    try:
        return os.readlink(f"{PROC}/self") == str(os.getpid())
    except OSError:
        return not has_proc() and _way_now() is not None


def shares_processes(pid: int) -> bool:
    """Return whether a process has its pid among the same ones as this process.

    False as well where it is not to be seen from here.
    """
    if has_proc():
        try:
            return _pid_namespace() == os.readlink(f"{PROC}/{pid}/ns/pid")
        except OSError:
            return False
    # A system without /proc has one namespace for all.
    return sees_processes() and process_started_at(pid) not in (None, _UNKNOWN)


def resident_bytes() -> int:
    """Return the memory that this process occupies, 0 where the system does not say."""
    statm = _read_proc("self/statm")
    if statm is not None:
        return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")
    way = None if has_proc() else _way_now()
    return 0 if way is None else way.resident_bytes(os.getpid())


def boot_seconds() -> float:
    """Return how long the machine has been up, asleep or not: a clock that is never set."""
    return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)


def started_at_boot_seconds(pid: int, mark: str | None) -> float:
    """Return when a short-lived process was started, on the clock of `boot_seconds`, to 10 ms.

    Of two processes that one parent has started the later one never gets the earlier time, however
    late each comes to read a clock.

    Args:
        pid: The process.
        mark: As `process_started_at` returned it, less than a minute after the start.

    Returns:
        The time now where the system does not say, or to the second only.
    """
    now = boot_seconds()
    if mark is None or not mark.isdecimal():
        return now
    if has_proc():
        started_at = int(mark) / os.sysconf("SC_CLK_TCK")
    else:
        way = _way_now()
        if way is None or (wall_seconds := way.started_at(pid)) is None:
            return now
        started_at = wall_seconds - _wall_ahead_seconds()
    # A sandbox may count from another start, or always say 0.
    return started_at if 0 <= now - started_at < _SHORT_LIFE_SECONDS else now


def _wall_ahead_seconds() -> float:
    """Return how far the wall clock is ahead of that of the boot, to some microseconds."""
    looks = []
    for _ in range(_LOOKS_AT_CLOCKS):
        before, wall, after = boot_seconds(), time.time(), boot_seconds()
        # The closest look: a process may be set aside between two of them.
        looks.append((after - before, wall - (before + after) / 2))
    return min(looks)[1]


def ancestors(pid: int | None = None) -> list[tuple[int, str]]:
    """Return the processes above one (None = this one) with their starts, the parent first.

    Where the system shows no processes, only the parent of this one is known.
    """
    found: list[tuple[int, str]] = []
    above = os.getppid() if pid is None else parent_of(pid)
    while above and (one := _look_up(above)) is not None:
        found.append((above, one[1]))
        above = one[0]
    return found


def parent_of(pid: int) -> int | None:
    """Return the process that started another one; None = unknown, or it does not run."""
    found = _look_up(pid)
    return None if found is None else found[0]
