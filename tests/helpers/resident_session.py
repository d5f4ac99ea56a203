"""A session whose hooks ask a resident first, and the resident itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress

from helpers.hooked_session import HookedSession, encoded
from ultramon.hosts.resident.forwarder import HAVE_IT, encode_request
from ultramon.hosts.resident.place import Place

PATIENCE_SECONDS = 30.0


def until(check, what):
    """Return the first true value of a check; fail after a time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := check()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        threading.Event().wait(0.01)
    return found


def settle(place):
    """Wait until a resident has done everything that its calls have left for after their answer."""
    until(lambda: (place.ask() or {"atWork": 1})["atWork"] == 1, "the resident is not done")


def retire(place):
    """Have a resident end its calls, and then itself; without one nothing happens."""
    if running := place.running():
        with suppress(ProcessLookupError):
            os.kill(running["pid"], signal.SIGTERM)
            os.kill(running["pid"], signal.SIGCONT)  # one that a test has stopped
        until(lambda: place.running() is None, "it does not end")


class Said:
    """What the resident says to one request that a test sends itself."""

    def __init__(self, place, program, choices, payload, variables=b"", request=None):
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(PATIENCE_SECONDS)
        self.connection.connect(place.socket)
        sent = request or encode_request(program, os.fsencode(choices), variables, payload)
        self.connection.sendall(sent)

    def words(self):
        """All of it, to the end or to an answer, which is not confirmed."""
        said = b""
        while chunk := self.connection.recv(1 << 16):
            said += chunk
            if said[1:2] == b"A" and len(said) >= 10 + int(said[2:10]):
                break
        return said

    def confirm(self):
        """Say that an answer was printed, and wait until that is noted."""
        self.connection.sendall(HAVE_IT)
        assert self.connection.recv(1) == HAVE_IT
        self.close()

    def close(self):
        """Hang up."""
        self.connection.close()


class ResidentSession(HookedSession):
    """A session of an installation with a resident, in a folder of sockets of its own."""

    def __init__(self, path, session_id="session", sockets=None, **environ):
        # The path of a socket is short, the directory of a test is not.
        self._sockets = tempfile.mkdtemp(prefix="um-") if sockets is None else sockets
        super().__init__(path, session_id, XDG_RUNTIME_DIR=self._sockets, **environ)
        self.place = Place(str(self.state), self.environ)
        if sockets is None:
            self.freeze(resident=True, installed_at=time.time())

    def beside(self, session_id):
        """Another session of the same user, which the same resident answers."""
        return ResidentSession(self.path, session_id, self._sockets)

    def command(self):
        """What an installation with a resident runs."""
        return [*super().command(), "resident"]

    def begin(self):
        """Have the session begin, and with it the resident; return the resident's process."""
        self.call("SessionStart", source="startup")
        return self.running()["pid"]

    def running(self):
        """What the resident wrote about itself, once one runs."""
        return until(self.place.running, "no resident runs")

    def facts(self):
        """How the resident does, in its own words."""
        return until(self.place.ask, "the resident does not answer")

    def at_once(self):
        """How many calls were answered before their reading; each is counted after its answer."""
        self.settle()
        return self.facts()["atOnce"]

    def settle(self):
        """Wait until everything is done that a call has left for after its answer."""
        settle(self.place)

    def record(self, agent=None):
        """The state of the session, or of one of its subagents."""
        self.settle()
        return super().record(agent)

    def events(self, *kinds):
        """The events in the journal, all or of some types."""
        self.settle()
        return super().events(*kinds)

    def ask(self, event, variables=b"", request=None, **fields):
        """Send a request as a forwarder would, and leave the rest to the test."""
        payload = encoded(self.payload(event, **fields))
        pairs = [f"{n}={v}".encode() for n, v in self.environ.items() if n != "PATH"]
        listed = variables or b"\0".join(pairs)
        return Said(self.place, "claude-code hook", self.installed, payload, listed, request)

    def start_another(self):
        """Start one more resident for the same state directory."""
        from ultramon.hosts.resident import program

        script = [sys.executable, "-I", "-S", program.__file__]
        environ = {n: self.environ[n] for n in ("HOME", "PATH", "XDG_RUNTIME_DIR")}
        command = [*script, str(self.state), "claude-code", str(os.getpid())]
        return subprocess.Popen(command, env=environ, start_new_session=True)

    def close(self):
        """Kill the resident, also one that is stopped."""
        while running := self.place.running():
            with suppress(ProcessLookupError):
                os.kill(running["pid"], signal.SIGKILL)
            until(lambda was=running: self.place.running() != was, "it does not end")
        for name in os.listdir(self._sockets):
            os.unlink(os.path.join(self._sockets, name))
        os.rmdir(self._sockets)


def opened(path):
    """A session with a resident, which is killed at the end."""
    return closing(ResidentSession(path))
