"""A program on a terminal of tmux, which is read and typed into as a person does."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from helpers.requirements import require_tool

PASTE_SECONDS = 0.05
"""An Enter within 30 ms of another key is part of a pasted text for some clients."""


class Terminal:
    """A client under tmux.

    Args:
        command: What runs on the terminal.
        directory: Where it runs.
        environment: All that it sees of the environment, beside what tmux tells about the pane.
        run_seconds: How long it may run.
        wait_seconds: How long a text may take to appear.
    """

    def __init__(
        self,
        command: list[str],
        directory: Path,
        environment: dict[str, str],
        run_seconds: float,
        wait_seconds: float = 20,
    ) -> None:
        self._tmux = require_tool("tmux")
        self._wait_seconds = wait_seconds
        # The path of a socket is short, the directory of a test is not.
        self._sockets = tempfile.TemporaryDirectory(prefix="tmux-")
        told = [f"{name}={value}" for name, value in environment.items()]
        line = shlex.join(["timeout", "-k", "5", str(run_seconds), "env", "-i", *told])
        line += ' TMUX="$TMUX" TMUX_PANE="$TMUX_PANE" ' + shlex.join(command)
        self._do("-f", "/dev/null", "new-session", "-d", "-x", "160", "-y", "45",
                 "-c", str(directory), line)  # fmt: skip

    def _do(self, *arguments: str) -> str:
        socket = str(Path(self._sockets.name) / "socket")
        done = subprocess.run(
            [self._tmux, "-S", socket, *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
        return done.stdout

    @property
    def screen(self) -> str:
        """What the terminal shows now."""
        return self._do("capture-pane", "-p")

    def wait_for(self, text: str) -> None:
        """Return when the screen shows a text."""
        deadline = time.monotonic() + self._wait_seconds
        while text not in self.screen:
            assert time.monotonic() < deadline, f"no {text!r} on the screen:\n{self.screen}"
            threading.Event().wait(0.05)

    def enter(self, text: str, meaning: str = "") -> None:
        """Type a line, and send it when the client shows it, and the meaning of a command."""
        self._do("send-keys", "-l", text)
        self.wait_for(text)
        self.wait_for(meaning)
        threading.Event().wait(PASTE_SECONDS)
        self.press("Enter")

    def enter_until(self, text: str, is_heard: Callable[[], bool]) -> None:
        """Type a line, and send it again and again: a client that is busy may miss a key."""
        self._do("send-keys", "-l", text)
        self.wait_for(text)
        while not is_heard():
            threading.Event().wait(PASTE_SECONDS)
            try:
                self.press("Enter")
            except subprocess.CalledProcessError:  # the terminal is gone where the line ended it
                threading.Event().wait(PASTE_SECONDS)
                if not is_heard():
                    raise

    def press(self, key: str) -> None:
        """Press one key."""
        self._do("send-keys", key)

    def close(self) -> None:
        """Kill what runs on the terminal."""
        subprocess.run(
            [self._tmux, "-S", str(Path(self._sockets.name) / "socket"), "kill-server"],
            check=False,
            capture_output=True,
            timeout=10,
        )
        self._sockets.cleanup()
