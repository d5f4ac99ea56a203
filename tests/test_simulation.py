"""Agents that misbehave by a seed."""

from __future__ import annotations

import pytest

from ultramon import Fleet
from ultramon.testing import UnreliableAgents


def test_agents_serve_an_orchestrator_of_ones_own(ultramon_backend, ultramon_clock):
    """`UnreliableAgents` is a `spawn`: its agents are attached as processes are."""
    from ultramon.fleet.jobs import Job

    agents = UnreliableAgents(
        1, backend=ultramon_backend, clock=ultramon_clock, faults=["die"], fault_ratio=1.0
    )
    fleet = Fleet("job", backend=ultramon_backend, clock=ultramon_clock)
    fleet.assign("worker", ["a", "b"])
    agent = agents(Job("worker", ("a", "b"), None, fleet.env("worker")))
    fleet.attach("worker", agent)
    ends = []
    fleet.on("ended")(lambda event: ends.append((event.agent_id, event.outcome)))
    while agents.running:
        agents.act()
        ultramon_clock.advance(1)
    fleet.poll()
    assert agent.returncode == -9
    assert ends == [("worker", "lost")]
    with pytest.raises(ValueError, match="no fault 'nonsense'"):
        UnreliableAgents(1, backend=ultramon_backend, clock=ultramon_clock, faults=["nonsense"])
