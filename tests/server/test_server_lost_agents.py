"""A server notifies about a vanished agent, also in runs without an orchestrator."""

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


def test_a_killed_agent_is_notified_once(serving, begin):
    """In every run; an agent without a registration stays silent."""
    lost_agents = LostAgents(serving.services)
    agents = [begin("scout-1"), begin("scout-2", run="audit"), begin("scout-3")]
    for agent_id in ("scout-1", "scout-2"):
        register(agent_id, "boss", backend=serving.backend)
    lost_agents.check()
    assert kinds(serving) == []
    for process in agents:
        process.send_signal(signal.SIGKILL)
        process.wait()
    lost_agents.check()
    lost_agents.check()
    notices = kinds(serving)
    assert sorted(one for one in notices if one[1] == "lost") == [
        ("scout-1", "lost"),
        ("scout-2", "lost"),
    ]
    assert not [one for one in notices if one[0] == "scout-3"]


def test_runs_without_a_registration_are_left_alone(serving, begin):
    """When the last registration of a run ends, the run is not checked any more."""
    lost_agents = LostAgents(serving.services)
    process = begin("scout-1")
    register("scout-1", "boss", backend=serving.backend)
    lost_agents.check()
    unregister("scout-1", "boss", backend=serving.backend)
    process.kill()
    process.wait()
    lost_agents.check()
    types = [event["type"] for event in serving.backend.events().events]
    assert types == ["agent_started"]
