"""Orchestrators to be killed: each line of input starts one, in a process forked for it.

Run as ``python fleet_orchestrator.py <directory> <log>``. A line is how many events its handler
returns from before it waits for the end. Their clock stands still, so no lease runs out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from helpers import IMPORT_PATH
from ultramon import Fleet
from ultramon.backends.local.backend import LocalBackend
from ultramon.fleet.events import EVENT_NAMES
from ultramon.testing import FakeClock


class Orchestrators:
    """Starts orchestrators one after the other."""

    def __init__(self, directory, log):
        self._process = subprocess.Popen(
            [sys.executable, "-B", __file__, directory, log],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": IMPORT_PATH},
        )

    def start(self, handled):
        """Start the next one; return what it says when it waits in a handler or is done."""
        self._process.stdin.write(f"{handled}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().split()

    def ended(self):
        word, status = self._process.stdout.readline().split()
        assert word == "ended"
        return int(status)

    def close(self):
        self._process.communicate()
        assert self._process.returncode == 0


def orchestrate(directory, log, handled):
    """Write down what is delivered; say when a handler waits, and when all was delivered."""
    fleet = Fleet("audit", backend=LocalBackend(directory), clock=FakeClock())
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    count = 0

    def note(event):
        nonlocal count
        os.write(file, f"{event.event_id} {event.name}\n".encode())
        if count == handled:
            say(f"handling {os.getpid()}")
            signal.pause()
        count += 1

    for name in EVENT_NAMES:
        fleet.on(name)(note)
    fleet.poll()
    fleet.close()
    say(f"delivered {count}")


def say(line):
    os.write(1, f"{line}\n".encode())


def main(directory, log):
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            orchestrate(directory, log, int(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say(f"ended {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
