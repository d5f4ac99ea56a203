"""Processor time of other processes: on a shared machine it moves less than the time on a clock."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def of_process(pid: int) -> float:
    """Return the user and system seconds of a process that runs."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def milliseconds(run: Callable[[], object]) -> float:
    """Return the processor time of the children that a call starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return (user + system) * 1000


def of_python(code: str, environment: Mapping[str, str] = os.environ) -> float:
    """Return the processor milliseconds of a Python process that runs some code, in silence."""

    def run() -> None:
        silence = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
        arguments = [sys.executable, "-I", "-c", code]
        pid = os.posix_spawn(sys.executable, arguments, environment, file_actions=silence)
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"{code!r} ended with {status}"

    return milliseconds(run)
