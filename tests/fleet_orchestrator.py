"""Orchestrators to be killed: each line of input starts one, in a process forked for it.

Run as ``python fleet_orchestrator.py <directory> <log>``. A line is ``<at> <handled>``: the wall
time of its clock, and how many events its handler returns from before it waits for the end.
"""

from __future__ import annotations

import os
import signal
import sys

from ultramon import Fleet
from ultramon.backends.local import LocalBackend
from ultramon.fleet_event import EVENT_NAMES
from ultramon.testing import FakeClock


def orchestrate(directory, log, at, handled):
    """Write down what is delivered; say when a handler waits, and when all was delivered."""
    fleet = Fleet("audit", backend=LocalBackend(directory), clock=FakeClock(at))
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    count = 0

    def note(event):
        nonlocal count
        os.write(file, f"{event.event.event_id} {event.name}\n".encode())
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
        at, handled = line.split()
        child = os.fork()
        if child == 0:
            orchestrate(directory, log, float(at), int(handled))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say(f"ended {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
