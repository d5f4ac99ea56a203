"""Several hosts and one database between real networks: a cable is pulled, a host falls silent."""

from __future__ import annotations

import itertools
import time

import pytest
from helpers.fault_writer import answer
from helpers.network_hosts import Host
from helpers.postgres_network import wait_until, work  # noqa: F401
from helpers.postgres_server import Server

from ultramon.backends.postgres.admin.setup import migrate
from ultramon.backends.postgres.backend import PostgresBackend

CUT_SECONDS = 30.0
"""Longer than anybody waits for anything."""
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def far():
    """A server that other hosts reach."""
    server = Server(listen="*")
    server.start()
    with_tables = PostgresBackend(server.url())
    migrate(with_tables.database)
    with_tables.close()
    yield server
    server.remove()


@pytest.fixture
def host():
    """Make hosts."""
    made = []

    def make():
        made.append(Host(next(numbers)))
        return made[-1]

    yield make
    for one in made:
        one.remove()


@pytest.fixture
def direct(far):
    backend = PostgresBackend(far.url())
    yield backend
    backend.close()


@pytest.fixture
def run_on(far, work):
    """Run workers on hosts."""

    def run(host, mode, *arguments):
        url = far.url(host=host.outside)
        return work(url, mode, host.name, *arguments, before=host.command(), state=host.name)

    return run


def tell(process, line):
    """Have an agent do something; return its answer."""
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    said, _seconds = answer(process)
    return said


def types(backend, agent_id):
    return [e["type"] for e in backend.events().events if e["agentId"] == agent_id]


@pytest.mark.exhaustive
def test_a_network_that_is_cut_for_longer_than_anybody_waits_loses_nothing(host, run_on, direct):
    """Agents continue and end; what they said arrives once, in order, when the cable is back."""
    cuts = {cut: host() for cut in ("pull", "blackhole")}
    agents = {cut: run_on(away, "agent", cut) for cut, away in cuts.items()}
    said = {cut: ["before", "0", "1", "2", "3"] for cut in cuts}
    for cut, agent in agents.items():
        tell(agent, "start")
        tell(agent, "plan one two three")
        tell(agent, f"send boss-{cut} before")
        # A store that is slow to answer has the message a moment later.
        wait_until(lambda agent=agent: tell(agent, "kept") == [0, 0])
    since = time.monotonic()
    for cut, away in cuts.items():
        getattr(away, cut)()
    for cut, agent in agents.items():
        for number, verb in enumerate(("track", "complete one", "crossing", "complete two")):
            tell(agent, verb)
            assert tell(agent, f"send boss-{cut} {number}") == 0
        wait_until(lambda agent=agent: tell(agent, "kept") == [1, 4])
    wait_until(lambda: tell(agent, "track") or time.monotonic() > since + CUT_SECONDS)
    for cut, agent in agents.items():
        tell(agent, "hand_off")
        tell(agent, "stop")
        assert direct.load(cut).record.active
    for away in cuts.values():
        away.connect()
    for cut, agent in agents.items():
        wait_until(lambda cut=cut: not direct.load(cut).record.active)
        wait_until(lambda agent=agent: tell(agent, "kept") == [0, 0])
        record = direct.load(cut).record
        assert (record.outcome, record.generation, record.tasks_completed) == ("returned", 1, 2)
        assert types(direct, cut) == [
            "agent_started",
            "context_threshold_reached",
            "handoff_ready",
            "agent_stopped",
        ]
        messages = direct.queue.peek(f"boss-{cut}", now=record.last_heartbeat)
        assert [message.text for message in messages] == said[cut]


@pytest.mark.slow
def test_one_orchestrator_looks_after_two_other_hosts(host, run_on):
    """A crossing here, a killed process there, and of two successors one gets the handoff."""
    here, there, third = host(), host(), host()
    orchestrator = run_on(third, "orchestrate")
    assert answer(orchestrator) == "ready"
    first, second = run_on(here, "agent", "first"), run_on(there, "agent", "second")
    seen = {}

    def wait_for(name, agent_id):
        while (name, agent_id) not in seen:
            event, about, handoff = answer(orchestrator)
            seen[event, about] = handoff
        return seen[name, agent_id]

    for agent in (first, second):
        tell(agent, "start")
    wait_for("started", "first")
    wait_for("started", "second")
    tell(first, "plan one two")
    tell(first, "crossing")
    wait_for("force_return", "first")
    tell(first, "hand_off")
    handoff = wait_for("handoff_ready", "first")
    second.kill()
    second.wait()
    wait_for("lost", "second")
    assert ("lost", "first") not in seen
    claimers = [run_on(where, "agent", f"next-{where.name}") for where in (here, there)]
    for claimer in claimers:
        claimer.stdin.write(f"claim {handoff}\n")
        claimer.stdin.flush()
    holders = {answer(claimer)[0] for claimer in claimers}
    assert len(holders) == 1
    assert holders <= {f"next-{where.name}" for where in (here, there)}
    tell(first, "stop")
    wait_for("ended", "first")
