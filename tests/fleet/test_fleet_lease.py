"""Who holds a consumer name: leases of the living, the suspended, the forked and the dead."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import closing, suppress

import pytest
from helpers import IMPORT_PATH
from helpers.fleet_fixtures import names
from helpers.fleet_orchestrator import Orchestrators
from helpers.fleet_worker import end, reap

from ultramon import Fleet, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.fleet.consumer import LEASE_SECONDS
from ultramon.testing import FakeClock

FORKING = """
import os, sys
from ultramon import Fleet
from ultramon.backends.local.backend import LocalBackend
from ultramon.testing import FakeClock

fleet = Fleet("audit", backend=LocalBackend(sys.argv[1]), clock=FakeClock())
fleet.poll()
parent = os.getpid()
{fork}
print(os.getpid(), flush=True)
sys.stdin.read()
"""
FORKS = {
    "the parent, whose child closed its copy": """
if os.fork() == 0:
    fleet.close()
    os._exit(0)
os.wait()
""",
    "the child, whose parent has ended": """
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    os.sched_yield()
fleet.poll()
""",
}


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def backend(tmp_path):
    backend = LocalBackend(str(tmp_path / "state"))
    yield backend
    backend.close()


@pytest.fixture
def agent(backend, clock):
    """A function that lets an agent begin and end; return the names of its events."""

    def live(agent_id):
        with create_context_monitor(agent_id, run="audit", backend=backend, clock=clock):
            pass
        return ["started", "ended"]

    return live


@pytest.fixture
def fleet(backend, clock):
    fleet = Fleet("audit", backend=backend, clock=clock)
    yield fleet
    fleet.close()


@pytest.fixture
def in_hand(tmp_path, agent):
    """An orchestrator that waits in the handler of its first event: its pid, and how it ends."""
    log = tmp_path / "delivered"
    agent("a")
    orchestrators = Orchestrators(tmp_path / "state", log)
    word, pid = orchestrators.start(0)
    assert word == "handling"
    yield int(pid), orchestrators.ended, lambda: log.read_text().split()[0]
    with suppress(ProcessLookupError):
        os.kill(int(pid), signal.SIGKILL)
    orchestrators.close()


def test_a_killed_orchestrator_is_followed_at_once(fleet, in_hand):
    """No lease is waited for, and what it had in hand comes again."""
    pid, ended, delivered_id = in_hand
    assert fleet.poll() == []
    os.kill(pid, signal.SIGKILL)
    assert ended() == -signal.SIGKILL
    events = fleet.poll()
    assert names(events) == ["started", "ended"]
    assert events[0].event_id == delivered_id()


def test_a_suspended_orchestrator_keeps_its_lease(fleet, clock, in_hand):
    """A stopped process is not dead: the name is free when the lease runs out, not before."""
    pid, ended, _ = in_hand
    os.kill(pid, signal.SIGSTOP)
    clock.advance(LEASE_SECONDS - 1)
    assert fleet.poll() == []
    clock.advance(1)
    assert names(fleet.poll()) == ["started", "ended"]
    os.kill(pid, signal.SIGKILL)
    assert ended() == -signal.SIGKILL


@pytest.mark.parametrize("fork", FORKS.values(), ids=FORKS.keys())
def test_after_a_fork_the_name_is_held_by_whoever_asked_for_it(tmp_path, fleet, agent, fork):
    """A copy of a fleet in another process neither gives the name up nor lends it its life."""
    process = subprocess.Popen(
        [sys.executable, "-B", "-c", FORKING.format(fork=fork), tmp_path / "state"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": IMPORT_PATH},
    )
    try:
        with closing(os.fdopen(os.pidfd_open(int(process.stdout.readline())))) as holder:
            told = agent("a")
            assert fleet.poll() == []
            assert end(process) == 0
            select.select([holder], [], [])
        assert names(fleet.poll()) == told
    finally:
        reap(process)


def test_a_fleet_that_is_dropped_in_a_living_process_keeps_its_lease(backend, clock, fleet, agent):
    """Nothing tells that an object of this process is used no more, so its lease has to run out."""
    dropped = Fleet("audit", backend=backend, clock=clock)
    dropped.poll()
    del dropped
    told = agent("a")
    assert fleet.poll() == []
    clock.advance(LEASE_SECONDS)
    assert names(fleet.poll()) == told
