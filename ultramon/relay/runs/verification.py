"""Runs a command of the user, and checks an item by one."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
from collections import deque
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, NamedTuple

from ultramon.errors import ConfigurationError
from ultramon.fleet.supervise.verification import Rejection
from ultramon.system.files import open_private_output
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ultramon.fleet.supervise.verification import Verdict

ITEM = "{item}"
SHELL = "/bin/sh"
MAX_REASON_LINES = 3
"""Of what a check of the whole tree printed last, in the reason that a context is given."""
_MAX_LINE_BYTES = 400


class CommandEnd(NamedTuple):
    """How a command of the user ended."""

    problem: str
    """Why it failed, for people; empty = exit code 0."""
    seconds: float
    """How long it ran."""


class UserCommand:
    """Runs commands of the user, each bounded in time and ended with all that it started.

    Args:
        cwd: Where they run.
        seconds: After these one has failed.
        environ: Their environment.
    """

    def __init__(self, cwd: str, seconds: float, environ: Mapping[str, str]) -> None:
        self._cwd = cwd
        self._seconds = seconds
        self._environ = dict(environ)
        self._running: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def run(self, words: Sequence[str], output_path: str | None = None) -> CommandEnd:
        """Run a command to its end.

        Args:
            words: The program and its arguments.
            output_path: The new file for all that it prints, readable by this user alone; None =
                its output is not kept.

        Raises:
            OSError: That file cannot be made.
        """
        output = nullcontext() if output_path is None else open_private_output(output_path)
        began = time.monotonic()
        with output as stdout, self._lock:
            if self._is_closed:
                return CommandEnd("was not run: the relay ends", 0.0)
            try:
                process = self._running = subprocess.Popen(
                    words,
                    cwd=self._cwd,
                    env=self._environ,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout or subprocess.DEVNULL,
                    stderr=subprocess.STDOUT,
                    # In a group of its own, so that all that it started can be ended with it.
                    start_new_session=True,
                )
            except OSError as error:
                return CommandEnd(f"{words[0]}: {error.strerror}", 0.0)
        try:
            code: int | None = process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with self._lock:
                self._running = None
            # Also after a normal end: what it left in the background must not run on.
            _kill(process)
            process.wait()
        took = time.monotonic() - began
        if code is None:
            return CommandEnd(f"took more than {self._seconds:g} s", took)
        return CommandEnd(f"exit code {code}" if code else "", took)

    def close(self) -> None:
        """End the command that runs, and begin none any more."""
        with self._lock:
            self._is_closed = True
            if self._running is not None:
                _kill(self._running)


class CommandCheck:
    """Runs a command for an item: exit code 0 confirms it.

    No shell reads the command. It is split into words first, then ``{item}`` is replaced in each,
    so an item with spaces or quotes stays within one argument.

    Args:
        command: The command.
        cwd: Where it runs.
        seconds: After these it has failed.
        environ: Its environment.

    Raises:
        ConfigurationError: It cannot be split, or there is nothing in it.
    """

    def __init__(self, command: str, cwd: str, seconds: float, environ: Mapping[str, str]) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise ConfigurationError("verify", command, f"a command; {error}") from error
        if not self._words:
            raise ConfigurationError("verify", command, "a command")
        self._command = UserCommand(cwd, seconds, environ)

    def __call__(self, item: str) -> Verdict:
        """Return whether the command confirms an item; else how the check failed.

        What it started and left behind is ended with it.
        """
        problem, _ = self._command.run([word.replace(ITEM, item) for word in self._words])
        return not problem or Rejection(problem)

    def close(self) -> None:
        """End the check that runs, and begin none any more."""
        self._command.close()


class TreeCheck:
    """Checks a whole tree by a command that a shell reads: exit code 0 confirms it.

    Args:
        command: The command.
        cwd: Where it runs.
        seconds: After these it has failed.
        environ: Its environment.
        output_path: The file for what it prints, made anew by each check.
    """

    def __init__(
        self, command: str, cwd: str, seconds: float, environ: Mapping[str, str], output_path: str
    ) -> None:
        self._words = (SHELL, "-c", command)
        self._command = UserCommand(cwd, seconds, environ)
        self._output_path = output_path

    def __call__(self) -> Verdict:
        """Return whether the command confirms the tree; else how it failed, with its last lines."""
        problem, _ = self._command.run(self._words, self._output_path)
        if not problem:
            return True
        lines = last_lines(self._output_path, MAX_REASON_LINES)
        return Rejection(f"{problem}: {' / '.join(lines)}" if lines else problem)

    def close(self) -> None:
        """End the check that runs, and begin none any more."""
        self._command.close()


def last_lines(path: str, count: int) -> list[str]:
    """Return the last lines of a file, each bounded, without control characters."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - count * _MAX_LINE_BYTES))
            lines = deque(file.read().decode("utf-8", "replace").splitlines(), count)
    except FileNotFoundError:
        return []
    return [sanitize(line)[:_MAX_LINE_BYTES] for line in lines if line.strip()]


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
