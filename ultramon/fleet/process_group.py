"""The process group of a child that leads one: what it started, also when it has ended itself."""

from __future__ import annotations

import os
from contextlib import suppress

from ultramon.system.processes import process_started_at


class ProcessGroup:
    """The group of a process that was started with ``start_new_session`` or ``process_group=0``.

    The system gives its number to no other process while one of the group is left.

    Args:
        number: The pid of the process that leads it.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    @property
    def runs_without_leader(self) -> bool:
        """Whether others that we may end run on in it, once the leader is known to have ended."""
        try:
            os.killpg(self._number, 0)
            # A zombie, which nobody may ever wait for, does not run.
            pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        except (ProcessLookupError, PermissionError):
            return False
        except FileNotFoundError:
            return True
        members = [pid for pid in pids if _group_of(pid) == self._number]
        running = [pid for pid in members if process_started_at(pid) is not None]
        # The leader has ended: a process that runs under its number leads another group.
        return bool(running) and self._number not in running

    def send(self, number: int) -> None:
        """Send a signal to all in it.

        Raises:
            ProcessLookupError: Nobody is left.
        """
        os.killpg(self._number, number)


def group_led_by(pid: int) -> ProcessGroup | None:
    """Return the group that a running process leads; None = it leads none, or ours."""
    if not hasattr(os, "killpg") or pid != _group_of(pid) or pid == os.getpgrp():
        return None
    return ProcessGroup(pid)


def _group_of(pid: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None
