"""A client's home and a state directory, and the client's hook run as a real process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager

from helpers.hooked_session import Answer
from helpers.resident_session import retire, settle
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.hosts import failure_log
from ultramon.hosts.installed_choices import InstalledChoices, choices_path
from ultramon.hosts.resident.place import Place


class HostSession:
    """One home of a client.

    Args:
        path: A folder for the home and the state directory.
        host: Name of the host.
        script: Path of its hook.
        variables: Environment of the client beyond ``PATH`` and ``HOME``.

    Attributes:
        started_as: A word in the command line of the process that calls the hook, a shell's then;
            None = this process calls it.
        caller: The process that calls it instead; None = as `started_as` says.
    """

    started_as = None
    caller = None

    def __init__(self, path, host, script, variables):
        self.host, self.script = host, script
        self.state = path / "state"
        self.state.mkdir(mode=0o700)
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(path), **variables}
        self.place = Place(str(self.state), self.environ)
        self._choices = {}

    def choose(self, **choices):
        """Install with other choices than the defaults."""
        installed = InstalledChoices(choices_path(str(self.state), self.host))
        self._choices |= choices
        for name, value in self._choices.items():
            setattr(installed, name, value)
        installed.save()

    @contextmanager
    def asking_resident(self, sockets=None):
        """Have every hook inside ask a resident, in a folder of sockets; it ends at the end."""
        with tempfile.TemporaryDirectory(prefix="um-") as own:
            self.environ["XDG_RUNTIME_DIR"] = sockets or own
            self.place = Place(str(self.state), self.environ)
            self.choose(resident=True, installed_at=time.time())
            try:
                yield self.place
            finally:
                self.place.end_pause()
                retire(self.place)

    def command(self):
        """What an installation runs."""
        installed = choices_path(str(self.state), self.host)
        more = ["resident"] if self._choices.get("resident") else []
        return [sys.executable, "-I", "-S", self.script, installed, *more]

    def run(self, payload):
        """Run the hook on a payload, or on any bytes."""
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        command = self.command()
        if self.caller is not None:
            return Answer(*self.caller.run(command, data, self.environ))
        if self.started_as is not None:
            command = ["sh", "-c", '"$@"; exit $?', self.started_as, *command]
        done = subprocess.run(
            command,
            input=data,
            capture_output=True,
            env=self.environ,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def record(self, agent_id):
        """The state of an agent."""
        settle(self.place)
        return StateDirectory(str(self.state)).read(agent_id)

    def ids(self):
        """The agents that have a state."""
        return StateDirectory(str(self.state)).list_ids()

    def events(self, kind):
        """The events of a type in the journal."""
        backend = LocalBackend(str(self.state))
        try:
            return [one for one in backend.events(limit=1_000).events if one["type"] == kind]
        finally:
            backend.close()

    def failures(self):
        """The problems in the failure log."""
        path = failure_log.log_path(str(self.state), self.host)
        return [failure["problem"] for failure in failure_log.read(path)]
