"""`ultramon relay` with the real client: as a program, in a project under git."""

from __future__ import annotations

import json
import os
import signal
import subprocess

from helpers.program import PROGRAM

from real_client.api import Call, Reply, bash, marked
from real_client.client import MODEL

GOAL = marked("Write every file.")
RUN = "write"


class RelayedProject:
    """A project under git, and relays of it.

    Args:
        client: The client.
        directory: For states and lists.
    """

    def __init__(self, client, directory):
        self.client = client
        self.path = client.project
        self.directory = directory
        self.state = directory / "state"
        (self.path / "README").write_text("A project.\n")
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "Ada")
        self.git("config", "user.email", "ada@example.org")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "first")

    @property
    def tree(self):
        """The worktree of the run."""
        return self.state / "relay" / RUN / "worktree"

    def git(self, *arguments):
        done = subprocess.run(
            ["git", "-C", str(self.path), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout

    def items(self, *names):
        path = self.directory / "items.txt"
        path.write_text("".join(f"{name}\n" for name in names))
        return ("--items", str(path))

    def start(self, *arguments, extra=(), **environ):
        """Start a relay; `extra` goes to the client."""
        given = ("--program", str(self.client.program), "--json", "--", "--model", MODEL, *extra)
        return self._start(*arguments, *given, **environ)

    def resume(self, *arguments):
        """Start a relay that continues, with what it was begun with."""
        return self._start("--resume", RUN, *arguments, "--json")

    def _start(self, *arguments, **environ):
        return subprocess.Popen(
            [PROGRAM, "relay", *arguments],
            cwd=self.path,
            env=self.environ(**environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def environ(self, **more):
        path = os.pathsep.join((os.path.dirname(PROGRAM), os.environ["PATH"]))
        given = {"ULTRAMON_STATE_DIR": str(self.state), "PATH": path, **more}
        return self.client.environment() | given

    def run(self, *arguments, **options):
        return finish(self.start(*arguments, **options))


def finish(process, seconds=100):
    """Return exit code, result and stderr; the result is None where there is none."""
    try:
        output, told = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        output, told = process.communicate()
        raise AssertionError(f"the relay did not end: {told}") from None
    return process.returncode, json.loads(output) if output else None, told


def create(tokens, *subjects):
    """A reply that puts subjects into the task list."""
    inputs = ({"subject": one, "description": "d", "activeForm": "f"} for one in subjects)
    return Reply(tokens, calls=tuple(Call("TaskCreate", one) for one in inputs))


def complete(tokens, *numbers):
    """A reply that marks tasks as completed, by their number in this context."""
    inputs = ({"taskId": str(one), "status": "completed"} for one in numbers)
    return Reply(tokens, calls=tuple(Call("TaskUpdate", one) for one in inputs))


def touch(tokens, *names, gate=None):
    """A reply that makes files."""
    return bash(tokens, *(f"touch -- '{name}'" for name in names), gate=gate)
