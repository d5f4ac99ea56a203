"""Processes of this machine that are known for certain, and how they are found by environment.

Linux shows the environment of a process, and macOS but for its own programs. Elsewhere none is
found.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from ultramon.errors import StateError
from ultramon.system import processes
from ultramon.system.processes import (
    has_proc,
    is_process_gone,
    other_way,
    process_started_at,
    sees_processes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class KnownProcess:
    """A process of this machine by its pid and start, as its number alone is given away again.

    Args:
        pid: Its number.
        started_at: Its start, by `process_started_at`.
    """

    __slots__ = ("pid", "started_at")

    def __init__(self, pid: int, started_at: str | None) -> None:
        self.pid = pid
        self.started_at = started_at

    @property
    def runs(self) -> bool:
        """Whether it runs; False where the system does not tell one start from another.

        While the system is short of descriptors, one that may run counts as running.
        """
        return self._is_told_apart and not is_process_gone(self.pid, self.started_at)

    @property
    def _is_told_apart(self) -> bool:
        is_start = self.started_at is not None and self.started_at.isdecimal()
        return is_start and sees_processes()

    def send(self, number: int) -> None:
        """Send a signal, if it runs for certain and this user may.

        A suspended process takes no SIGTERM before it is continued, so it is.
        """
        if not (self._is_told_apart and process_started_at(self.pid) == self.started_at):
            return
        with suppress(ProcessLookupError, PermissionError):
            for one in together_with(number):
                os.kill(self.pid, one)


def together_with(number: int) -> tuple[int, ...]:
    """Return a signal, and the one that has a suspended process take it."""
    return (number, signal.SIGCONT) if number == signal.SIGTERM else (number,)


def processes_with(environ: Mapping[str, str]) -> list[KnownProcess]:
    """Return the running processes that were started with these variables, but for this one.

    Those of other users are left out, as their environment cannot be read.

    Raises:
        StateError: The system has no descriptors or no memory for it now.
    """
    wanted = {os.fsencode(f"{name}={value}") for name, value in environ.items()}
    found = []
    seen = {os.getpid()}
    try:
        if not has_proc():
            other_way()  # raises where it cannot be known
        if not shows_environments():
            return []  # and each look at all processes with `ps` would find a new one: itself
        # Again for those started meanwhile: a process that has just ended may have left another.
        while new := [pid for pid in all_pids() if pid not in seen]:
            seen.update(new)
            for pid in _started_with(wanted, new):
                started_at = process_started_at(pid)
                # Twice, so that pid and start are of one process.
                if started_at is not None and _started_with(wanted, [pid]):
                    found.append(KnownProcess(pid, started_at))
    except OSError as error:
        reason = f"cannot be searched: {error.strerror}"
        raise StateError(processes.PROC, reason, "the next look tries again") from error
    return found


def shows_environments() -> bool:
    """Return whether `processes_with` finds processes here; else its empty answer says nothing."""
    if not sees_processes():
        return False
    way = None if has_proc() else other_way()
    return way is None or way.SHOWS_ENVIRONMENTS


def all_pids() -> list[int]:
    """Return the processes that this machine shows.

    Raises:
        OSError: The system has no descriptors for it now.
    """
    if not sees_processes():
        return []
    if has_proc():
        return [int(name) for name in os.listdir(processes.PROC) if name.isdecimal()]
    way = other_way()
    return [] if way is None else way.pids()


def _started_with(wanted: set[bytes], pids: Iterable[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            environ = _environment(pid)
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            continue
        if wanted <= environ:
            found.append(pid)
    return found


def _environment(pid: int) -> set[bytes]:
    if not has_proc():
        way = other_way()
        try:
            return set() if way is None else way.environment(pid)
        except OSError:
            return set()  # macOS has one error for all that it does not show
    with open(f"{processes.PROC}/{pid}/environ", "rb") as file:
        return set(file.read().split(b"\0"))


def runs_in(program: str, *directories: str) -> bool:
    """Return whether a program of that name runs in one of these directories or below.

    Args:
        program: As the system names it.
        *directories: Real paths.

    Returns:
        True as well where the system shows no processes: one may run.
    """
    if not shows_environments():  # nor places
        return True
    for pid in all_pids():
        with suppress(OSError):
            place = _place(pid, os.fsencode(program))
            if place and any(f"{place}/".startswith(f"{one}/") for one in directories):
                return True
    return False


def _place(pid: int, program: bytes) -> str | None:
    """Return where a process runs, if it is of a program."""
    if not has_proc():
        way = other_way()
        found = None if way is None else way.place(pid)
        return found[1] if found and found[0] == program else None
    with open(f"{processes.PROC}/{pid}/comm", "rb") as file:
        if file.read().rstrip(b"\n") != program:
            return None
    return os.readlink(f"{processes.PROC}/{pid}/cwd")
