"""`ultramon relay` with the real Codex: as a program, in a project under git."""

from __future__ import annotations

import os
import subprocess

from helpers.program import PROGRAM
from helpers.relayed import RelayedProject

SETTINGS = ("--dangerously-bypass-approvals-and-sandbox",)
"""Of the client: the stand-in for its model decides what is run."""


class CodexRelay(RelayedProject):
    """A project under git, and relays of it by a client.

    Args:
        client: The client, of `helpers.codex_client`.
        directory: For states and lists.
    """

    def __init__(self, client, directory):
        super().__init__(directory)
        self.client = client
        client.states = self.state
        client.variables["ULTRAMON_STATE_DIR"] = str(self.state)

    def begin(self, *arguments, run="job", goal="Write every file.", agent="codex", **environ):
        """Start a new run of that name."""
        given = (goal, "--agent", agent, "--run", run, *arguments)
        return self.relay(*given, **environ)

    def relay(self, *arguments, extra=("--", *SETTINGS), **environ):
        """Start a relay; `extra` comes last."""
        return subprocess.Popen(
            [PROGRAM, "relay", *arguments, "--state-dir", str(self.state), "--json", *extra],
            cwd=self.path,
            env=self.environ(**environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def environ(self, **more):
        """The environment of a relay that finds the client."""
        folders = (os.path.dirname(PROGRAM), str(self.client.program.parent), os.environ["PATH"])
        return self.client.environ() | {"PATH": os.pathsep.join(folders), **more}


def plan(*steps):
    """A call that keeps steps, each with its status, as the plan."""
    kept = [{"step": step, "status": status} for step, status in steps]
    return ("update_plan", {"plan": kept})


def touch(*names):
    """A call that makes files."""
    return " && ".join(f"touch -- '{name}'" for name in names)
