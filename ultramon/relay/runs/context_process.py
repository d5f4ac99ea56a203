"""The process of one context, as a supervisor watches and ends it: a whole process group."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ultramon.errors import StateError
from ultramon.system.process_search import processes_with
from ultramon.system.processes import process_started_at

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

NEVER_KNOWN = 0
"""Exit code of a process that another process started: only its parent gets the true one."""


class ContextProcess:
    """A context that runs, waits for a limit of the provider to end, or has ended.

    Args:
        process: The process; None = another relay started it.
        pid: Of that one, the leader of its group; 0 = it has ended.
        has_settled: Asked when the process has ended, with its exit code (None = not known) and the
            seconds since: whether what it has started, such as a last hook, is done as well.
        at_look: Called at each look at a process that runs.
        at_end: Called once when the process has ended, with its exit code (None = not known);
            returns the process that continues in its place and when to start it, or None: then the
            context is over.

    Attributes:
        pid: Of the present process; 0 = none.
        returncode: How it ended; None while it runs.
    """

    ends_group = True
    """It ends what it started by itself, so its supervisor need not."""

    def __init__(
        self,
        process: subprocess.Popen[bytes] | None,
        at_end: Callable[[int | None], Continuation | None],
        has_settled: Callable[[int | None, float], bool],
        at_look: Callable[[], object] = lambda: None,
        *,
        pid: int = 0,
    ) -> None:
        self.pid = process.pid if process is not None else pid
        self.returncode: int | None = None
        self._process = process
        self._started_at = process_started_at(self.pid) if process is None and self.pid else None
        self._at_end = at_end
        self._has_settled = has_settled
        self._at_look = at_look
        self._ended_at: float | None = None
        self._next: Continuation | None = None

    def poll(self) -> int | None:
        """Return how the context ended, None while it runs."""
        if self.returncode is None:
            if self._next is not None:
                self._continue(self._next)
            else:
                self._look()
        return self.returncode

    def terminate(self) -> None:
        """Ask the group to end. One that waits for a limit is no process to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the group."""
        self._signal(signal.SIGKILL)

    def _look(self) -> None:
        code: int | None
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                self._look_at_it()
                return
        else:
            started_at = process_started_at(self.pid) if self.pid else None
            # A pid is used again: only with its start does it name a process.
            if started_at is not None and started_at == self._started_at:
                self._look_at_it()
                return
            code = None
        now = time.monotonic()
        self._ended_at = self._ended_at or now
        if not self._has_settled(code, now - self._ended_at):
            return
        try:
            self._next = self._at_end(code)
        except StateError:
            return  # a store that is busy now may take the end at the next look
        self._ended_at = None
        if self._next is None:
            self.returncode = NEVER_KNOWN if code is None else code

    def _look_at_it(self) -> None:
        with suppress(StateError):  # a store that refuses now may answer at the next look
            self._at_look()

    def _continue(self, following: Continuation) -> None:
        try:
            is_over = following.is_over()
        except StateError:
            return  # as above
        if is_over:
            self._next, self.returncode = None, NEVER_KNOWN
        elif following.is_due():
            self._next = None
            try:
                self._process = following.start()
            except OSError:
                self.returncode = NEVER_KNOWN  # another context finds out why
            else:
                self.pid = self._process.pid

    def _signal(self, number: signal.Signals) -> None:
        if self._next is None and self.returncode is None and self.pid:
            # The whole group, which the tools that a host has started belong to.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a context continues after its process has ended at a limit.

    Attributes:
        is_due: Whether to start the next process now.
        is_over: Whether the context shall not continue any more; may raise StateError.
        start: Starts it.
    """

    is_due: Callable[[], bool]
    is_over: Callable[[], bool]
    start: Callable[[], subprocess.Popen[bytes]]


def find_leader(environ: dict[str, str]) -> int | None:
    """Return the process whose environment has these variables and that leads its group."""
    for process in processes_with(environ):
        # A background process of a context has the same environment, and leads no group.
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == process.pid:
                return process.pid
    return None


def end_left_over(environ: dict[str, str]) -> int:
    """End every process whose environment has these variables; return how many there were.

    What a host leaves in the background would still change files under the next context.
    """
    found = processes_with(environ)
    for process in found:
        process.send(signal.SIGKILL)
    return len(found)
