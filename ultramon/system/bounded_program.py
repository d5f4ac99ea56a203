"""Runs a program to its end: without a shell, without a terminal, bounded in time and output."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

_LOOK_SECONDS = 0.05
_MOST_SHOWN_BYTES = 400
_READ_BYTES = 65_536
_MOST_LAST_READS = 16


class ProgramEnd(NamedTuple):
    """How a program ended."""

    code: int | None
    """Its exit code, negative for a signal; None = it was not started, or was killed here."""
    problem: str
    """What went wrong, with the last line on stderr, for people; empty = nothing."""
    seconds: float
    """How long it ran."""


def run_program(
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str],
    cwd: str,
    seconds: float,
    is_given_up: threading.Event | None = None,
) -> ProgramEnd:
    """Run a program in a process group of its own; what it leaves behind is killed with it.

    Args:
        arguments: The program, by its path or by name on the ``PATH`` of its environment, and its
            arguments.
        environ: Its whole environment.
        cwd: Where it runs.
        seconds: After these it is killed.
        is_given_up: Once set, it is killed at once.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            [one.encode("utf-8", "replace") for one in arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=dict(environ),
            cwd=cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return ProgramEnd(None, f"{arguments[0]}: {reason}", time.monotonic() - began)
    assert process.stderr is not None
    said = b""
    is_killed = False
    with process.stderr as stderr, selectors.DefaultSelector() as selector:
        os.set_blocking(stderr.fileno(), False)
        selector.register(stderr, selectors.EVENT_READ)
        # A process that it started may hold stderr open, so the end of that is no sign of its own.
        while process.poll() is None:
            if time.monotonic() - began >= seconds or (is_given_up and is_given_up.is_set()):
                is_killed = True
                break
            if selector.get_map() and selector.select(_LOOK_SECONDS):
                chunk = os.read(stderr.fileno(), _READ_BYTES)
                said = (said + chunk)[-_MOST_SHOWN_BYTES:]
                if not chunk:
                    selector.unregister(stderr)
            elif not selector.get_map():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_SECONDS)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        with suppress(BlockingIOError):
            # What a daemon that it left in a session of its own still writes is not waited for.
            for _ in range(_MOST_LAST_READS):
                if not (chunk := os.read(stderr.fileno(), _READ_BYTES)):
                    break
                said = (said + chunk)[-_MOST_SHOWN_BYTES:]
    took = time.monotonic() - began
    if is_killed:
        what = f"took more than {seconds:g} s" if took >= seconds else "was ended with its starter"
        return ProgramEnd(None, f"{what} and was killed", took)
    return ProgramEnd(process.returncode, _problem(process.returncode, said), took)


def _problem(code: int, said: bytes) -> str:
    if code == 0:
        return ""
    lines = said.decode("utf-8", "replace").strip().splitlines()
    what = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"{what}: {sanitize(lines[-1].strip())}" if lines else what
