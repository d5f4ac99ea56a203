"""Checks an item by a command of the user."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError
from ultramon.fleet.supervise.verification import Rejection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.fleet.supervise.verification import Verdict

ITEM = "{item}"


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
        self._cwd = cwd
        self._seconds = seconds
        self._environ = dict(environ)
        self._running: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def __call__(self, item: str) -> Verdict:
        """Return whether the command confirms an item; else how the check failed.

        What it started and left behind is ended with it.
        """
        words = [word.replace(ITEM, item) for word in self._words]
        with self._lock:
            if self._is_closed:
                return False
            try:
                process = self._running = subprocess.Popen(
                    words,
                    cwd=self._cwd,
                    env=self._environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    # In a group of its own, so that all that it started can be ended with it.
                    start_new_session=True,
                )
            except OSError as error:
                return Rejection(f"{words[0]}: {error.strerror}")
        try:
            code: int | None = process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with self._lock:
                self._running = None
            # Also after a normal end: what a check left in the background must not run on.
            _kill(process)
            process.wait()
        if code is None:
            return Rejection(f"took more than {self._seconds:g} s")
        return code == 0 or Rejection(f"exit code {code}")

    def close(self) -> None:
        """End the check that runs, and begin none any more."""
        with self._lock:
            self._is_closed = True
            if self._running is not None:
                _kill(self._running)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
