"""The process group of a child that leads one: what it started, also when it has ended itself."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from ultramon.system.process_search import all_pids, together_with
from ultramon.system.processes import process_started_at, sees_processes


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The group of a process that was started with ``start_new_session`` or ``process_group=0``.

    The system gives its number to no other process while one of the group is left.

    Attributes:
        number: The pid of the process that leads it.
    """

    number: int

    @property
    def runs_without_leader(self) -> bool:
        """Whether others that may be ended from here run in it, once the leader has ended."""
        try:
            os.killpg(self.number, 0)
        except (ProcessLookupError, PermissionError):
            return False
        if not sees_processes():
            return True
        # A zombie, which may never be reaped, does not run.
        members = [pid for pid in all_pids() if _group_of(pid) == self.number and _may_end(pid)]
        running = [pid for pid in members if process_started_at(pid) is not None]
        # The leader has ended: a process that runs under its number leads another group.
        return bool(running) and self.number not in running

    def send(self, number: int) -> None:
        """Send a signal to all in it; suspended ones take a SIGTERM as well.

        Raises:
            ProcessLookupError: No process is left.
        """
        for one in together_with(number):
            os.killpg(self.number, one)


def is_in_group(pid: int, number: int) -> bool:
    """Return whether a process is in the group of a number."""
    return _group_of(pid) == number


def group_led_by(pid: int) -> ProcessGroup | None:
    """Return the group that a running process leads; None = it leads none, or this process's."""
    if not hasattr(os, "killpg") or pid != _group_of(pid) or pid == os.getpgrp():
        return None
    return ProcessGroup(pid)


def _may_end(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _group_of(pid: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None
