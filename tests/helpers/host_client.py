"""A real client of a coding agent, run without a terminal beside ultramon."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager

from helpers.program import run_process
from helpers.resident_session import retire
from helpers.scripted_model import RUN_SECONDS
from helpers.terminal import Terminal
from ultramon.backends.local.state_files import StateDirectory
from ultramon.hosts import failure_log
from ultramon.hosts.calls.enforcement import REFS
from ultramon.hosts.resident.place import Place
from ultramon.system.processes import process_started_at


class HostClient:
    """A home of a client and a project, and a state directory beside them.

    Args:
        path: A folder for the three.
        host: Name of the host.
        folder: Name of the client's directory in the home.

    Attributes:
        variables: Environment of the client and of ultramon, beyond ``PATH`` and ``LANG``.
        run_seconds: How long a run may take.
        keeps_resident: Whether a resident outlives the scripted model that was served.
    """

    run_seconds = RUN_SECONDS
    keeps_resident = False

    def __init__(self, path, host, folder):
        self.host = host
        self.home, self.project, self.states = path / "home", path / "project", path / "state"
        self.configuration = self.home / folder
        for one in (self.configuration, self.project):
            one.mkdir(parents=True)
        self.variables = {"HOME": str(self.home), "ULTRAMON_STATE_DIR": str(self.states)}

    def ultramon(self, *arguments):
        """Run ultramon beside the client."""
        return run_process(*arguments, **self.variables)

    def enforce(self, limit_tokens):
        """Install once more, so that who does not return is ended, in a repository of git."""
        chosen = ("--enforce", "critical", "--context-limit", str(limit_tokens))
        done = self.ultramon("install", self.host, "--force", *chosen)
        assert done.returncode == 0, done.stderr
        subprocess.run(["git", "init", "-q"], cwd=self.project, check=True)

    def was_ended(self, record):
        """Whether a hook has ended an agent, with its handoff and a checkpoint."""
        ref = f"{REFS}/{record.agent_id.replace('.', '-')}"
        command = ["git", "rev-parse", "--verify", "-q", ref]
        done = subprocess.run(command, cwd=self.project, check=False, capture_output=True)
        return done.returncode == 0 and record.handoff is not None

    @contextmanager
    def serve(self, api):
        """Serve a scripted model; the client is run inside, and its resident ends with it."""
        try:
            yield api
        finally:
            api.close()
            if not self.keeps_resident:
                retire(Place(str(self.states), self.variables))

    def environ(self, **variables):
        """The environment of the client, which reaches nothing but the scripted model."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return kept | self.variables | variables

    def run_command(self, *command, **variables):
        """Run a command of the client in the project to its end; return the process."""
        return subprocess.run(
            command,
            env=self.environ(**variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            cwd=self.project,
            check=False,
            timeout=self.run_seconds,
        )

    def kill(self):
        """Kill the client that runs the only session; return true."""
        (record,) = self.records()
        os.kill(record.pid, signal.SIGKILL)
        return True

    def cut(self, number):
        """Return a condition that sends that client a signal, once, and holds when it has ended."""
        sent = []

        def has_ended():
            (record,) = self.records()
            if not sent:
                sent.append(number)
                os.kill(record.pid, number)
            return process_started_at(record.pid) != record.pid_started_at

        return has_ended

    @contextmanager
    def on_terminal(self, command, **variables):
        """Run a command of the client on a terminal, closed at the end; give the terminal."""
        environ = self.environ(**{"TERM": "xterm-256color", "LANG": "C.UTF-8"} | variables)
        seconds = self.run_seconds
        terminal = Terminal(command, self.project, environ, seconds, wait_seconds=seconds / 2)
        try:
            yield terminal
        finally:
            terminal.close()

    def state_of(self, agent):
        """Phase of an agent and what it waits for, by its place among all; None = not there yet."""
        records = self.records()
        if agent >= len(records):
            return None
        record = records[agent]
        return record.phase, record.extra[self.host].get("waitsFor")

    def records(self):
        """The states of all agents, sessions first."""
        directory = StateDirectory(str(self.states))
        return [directory.read(agent_id) for agent_id in sorted(directory.list_ids(), key=len)]

    def failures(self):
        """The problems in the failure log."""
        path = failure_log.log_path(str(self.states), self.host)
        return [failure["problem"] for failure in failure_log.read(path)]
