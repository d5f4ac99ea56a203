"""Processes of this machine that are known for certain, and how they are found by environment.

Only Linux shows the environment of a process. Elsewhere none is found, and a pid proves nothing.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from ultramon.errors import StateError
from ultramon.system.processes import is_process_gone, process_started_at, sees_processes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PROC = "/proc"


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
        # Again for those started meanwhile: a process that has just ended may have left another.
        while new := [pid for pid in _pids() if pid not in seen]:
            seen.update(new)
            for pid in _started_with(wanted, new):
                started_at = process_started_at(pid)
                # Twice, so that pid and start are of one process.
                if started_at is not None and _started_with(wanted, [pid]):
                    found.append(KnownProcess(pid, started_at))
    except OSError as error:
        reason = f"cannot be searched: {error.strerror}"
        raise StateError(_PROC, reason, "the next look tries again") from error
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdecimal()] if sees_processes() else []


def _started_with(wanted: set[bytes], pids: Iterable[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            with open(f"{_PROC}/{pid}/environ", "rb") as file:
                environ = file.read()
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            continue
        if wanted <= set(environ.split(b"\0")):
            found.append(pid)
    return found


def runs_in(program: str, *directories: str) -> bool:
    """Return whether a program of that name runs in one of these directories or below.

    Args:
        program: As the system names it.
        *directories: Real paths.

    Returns:
        True as well where the system shows no processes: one may run.
    """
    if not sees_processes():
        return True
    for pid in _pids():
        with suppress(OSError):
            with open(f"{_PROC}/{pid}/comm", "rb") as file:
                name = file.read().rstrip(b"\n")
            place = os.readlink(f"{_PROC}/{pid}/cwd") if name == os.fsencode(program) else None
            if place and any(f"{place}/".startswith(f"{one}/") for one in directories):
                return True
    return False
