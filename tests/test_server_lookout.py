"""A server tells who registered that an agent vanished, also where no orchestrator looks."""

import signal
import subprocess
import sys

import pytest
from helpers.running_server import Serving

from ultramon import register, unregister
from ultramon.server.workers.lost_agents import LostAgents

AGENT = """
import sys
from ultramon import create_context_monitor
with create_context_monitor(sys.argv[1], run=sys.argv[2], parent_id="boss") as monitor:
    print("started", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def serving():
    with Serving() as serving:
        yield serving


@pytest.fixture
def begin(serving):
    """Start an agent in a process of its own."""
    begun = []

    def begin(agent_id, run="default"):
        process = subprocess.Popen(
            [sys.executable, "-c", AGENT, agent_id, run],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"ULTRAMON_BACKEND": serving.backend.url},
        )
        begun.append(process)
        assert process.stdout.readline() == b"started\n"
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def kinds(serving):
    claimed = serving.backend.queue.claim("boss", now=serving.services.clock.now(), limit=50)
    return [(message.sender, message.facts["kind"]) for message in claimed]


def test_a_killed_agent_is_told_once(serving, begin):
    """In whatever run it is; an agent that nobody registered stays silent."""
    lookout = LostAgents(serving.services)
    agents = [begin("scout-1"), begin("scout-2", run="audit"), begin("scout-3")]
    for agent_id in ("scout-1", "scout-2"):
        register(agent_id, "boss", backend=serving.backend)
    lookout.look()
    assert kinds(serving) == []
    for process in agents:
        process.send_signal(signal.SIGKILL)
        process.wait()
    lookout.look()
    lookout.look()
    told = kinds(serving)
    assert sorted(one for one in told if one[1] == "lost") == [
        ("scout-1", "lost"),
        ("scout-2", "lost"),
    ]
    assert not [one for one in told if one[0] == "scout-3"]


def test_runs_without_a_registration_are_left_alone(serving, begin):
    """When the last registration of a run ends, the run is looked at no longer."""
    lookout = LostAgents(serving.services)
    process = begin("scout-1")
    register("scout-1", "boss", backend=serving.backend)
    lookout.look()
    unregister("scout-1", "boss", backend=serving.backend)
    process.kill()
    process.wait()
    lookout.look()
    types = [event["type"] for event in serving.backend.events().events]
    assert types == ["agent_started"]
