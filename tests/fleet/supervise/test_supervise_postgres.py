"""Supervised runs in a database that others use too: long transactions, a pooler, a cut network."""

from __future__ import annotations

import re
from contextlib import closing, contextmanager

import psycopg
import pytest
from helpers.pgbouncer import Pooler
from helpers.postgres_network import backend, direct, network  # noqa: F401
from helpers.supervised import spawner
from test_supervise_steps import Child, Steps

from ultramon import Fleet
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.fleet.supervise.jobs import make_event
from ultramon.fleet.supervise.run_log import RunLog
from ultramon.testing import FakeClock
from ultramon.testing.clock import START


@contextmanager
def foreign_transaction(server):
    """Keep a transaction of another program open, older than all that follows."""
    with psycopg.connect(server.url().partition("?")[0]) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        yield connection


@pytest.fixture(params=["direct", "pooler"])
def url(request, postgres, postgres_store):
    """A store, also behind the documented PgBouncer."""
    if request.param == "direct":
        yield postgres_store
        return
    pooler = Pooler(postgres)
    try:
        pooler.wait()
        yield pooler.url(re.search(r"schema=(\w+)", postgres_store)[1])
    finally:
        pooler.remove()


def kinds(backend):
    found, cursor = [], None
    while (page := backend.events(cursor)).events:
        found += [event["type"] for event in page.events]
        cursor = page.cursor
    return found


def note(agent_id, kind, **details):
    return make_event("job", agent_id, kind, source="fleet:main", at=START, **details)


@pytest.mark.parametrize("truth", [True, False])
def test_a_foreign_transaction_delays_other_readers_and_not_the_run(postgres, direct, truth):
    """It ends while nobody else can read its events; each claim was verified, and once a time."""
    asked = []
    with foreign_transaction(postgres):
        run = Steps(
            direct, FakeClock(), ["a", "b"], verify=lambda item: asked.append(item) or truth
        )
        result = run.to_the_end()
        assert kinds(direct) == []
    assert (result.ok, result.lost, result.unverified) == (truth, (), ())
    assert result.counts.verified == (2 if truth else 0)
    assert sorted(result.set_aside) == ([] if truth else ["a", "b"])
    # A claim is asked about once, and once more where the answer was no.
    assert sorted(asked) == (["a", "b"] if truth else sorted(["a", "b"] * 6))
    contexts = 1 if truth else 3
    for kind in ("agent_assigned", "context_closed"):
        assert kinds(direct).count(kind) == contexts


@pytest.mark.timeout(600)
def test_a_process_finds_its_work_and_its_lies_are_found(
    postgres, postgres_store, url, monkeypatch, tmp_path
):
    """Others cannot read its assignment yet; the result is not ok, in later calls neither."""
    monkeypatch.setenv("ULTRAMON_BACKEND", url)
    asked = []

    def supervise(*items):
        fleet = Fleet("job", poll_interval_seconds=0.1)
        try:
            return fleet.supervise(spawner(tmp_path, "claims"), items, verify=asked.append)
        finally:
            fleet.close()

    with foreign_transaction(postgres):
        result = supervise("x")
    assert (result.ok, result.counts.claimed, list(result.set_aside)) == (False, 0, ["x"])
    assert asked == ["x"] * 6
    assert not supervise().ok


@pytest.mark.parametrize("withheld", [True, False])
def test_what_is_claimed_of_a_closed_context_is_verified_by_the_next_call(
    postgres, direct, withheld
):
    """Nobody verified it before: another orchestrator does, and puts back what is not done."""
    first = Steps(direct, FakeClock(), ["a", "b"]).to_the_end()
    assert (first.ok, first.counts.claimed) == (True, 2)
    done = {"a"}
    with foreign_transaction(postgres) if withheld else open_nothing():
        again = Steps(direct, FakeClock(), [], verify=lambda item: item in done)
        while not again.running:
            again()
        assert (again.jobs[0].items, again.supervisor.pool.counts.verified) == (("b",), 1)
        done.add("b")
        result = again.to_the_end()
    assert (result.ok, result.counts.verified, result.unverified) == (True, 2, ())


@contextmanager
def open_nothing():
    yield


def test_two_orchestrators_that_take_over_assign_and_verify_once(postgres, postgres_store, direct):
    """The second one knows what the first one assigned and claimed, whoever else can read it."""
    asked = []
    clock = FakeClock()

    def verify(item):
        asked.append(item)
        return True

    with closing(PostgresBackend(postgres_store)) as other, foreign_transaction(postgres):
        first = Steps(direct, clock, ["a", "b"], verify=verify)
        first()
        first.children["job.1"].complete("a")
        while first().verified == 0:
            pass
        clock.advance(60)  # its lease is over
        second = Steps(other, clock, ["a", "b"], verify=verify)
        second(2)
        assert second.jobs == []
        first.children["job.1"].complete("b")
        first.children["job.1"].end()
        while not (first.supervisor.is_over and second.supervisor.is_over):
            first()
            second()
        assert first.supervisor.pool.counts == second.supervisor.pool.counts
        second.fleet.close()
    assert (sorted(asked), first.supervisor.pool.counts.verified) == (["a", "b"], 2)
    assert kinds(direct).count("agent_assigned") == kinds(direct).count("context_closed") == 1


CUTS = [*range(1, 40, 8), 28]
"""In 28 it is the reading of a state that breaks, after the end of its agent."""
OTHER_CUTS = [*{*range(1, 160)} - {*CUTS}]


@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize(
    "cut", [*CUTS, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in OTHER_CUTS)]
)
def test_no_lie_is_accepted_across_a_cut_network(
    postgres, postgres_store, network, backend, cut, is_heard
):
    """Wherever the connection of the orchestrator breaks, all claims are judged in the end."""
    asked = []

    class Elsewhere(Child):
        """An agent on another machine, whose network is not cut."""

        def __init__(self, job, _backend, clock):
            super().__init__(job, elsewhere, clock)

    with closing(PostgresBackend(postgres_store)) as elsewhere, foreign_transaction(postgres):
        run = Steps(backend, FakeClock(), ["a"], verify=asked.append)
        run.child = Elsewhere
        network.cut_at(cut, is_heard=is_heard)
        result = run.to_the_end()
    assert (result.ok, list(result.set_aside), result.lost) == (False, ["a"], ())
    assert len(asked) >= 6


def test_a_late_commit_makes_the_pool_anew(postgres, direct):
    """What appears before events that were read has its place there, as for any other reader."""
    log = RunLog(direct, "job", 3)
    direct.append_events([note("job.pool", "items_added", items=["a", "b"])])
    assigned = note("job.1", "agent_assigned", items=["a"], supervisor="one")
    with direct.database.transaction() as late:
        direct.log.insert(late, [assigned])
        second = note("job.2", "agent_assigned", items=["a", "b"], supervisor="two")
        direct.append_events([second])
        assert [step.agent_id for step in log.read()] == ["job.2"]
        assert log.pool.contexts["job.2"].items == ["a", "b"]
    assert [step.agent_id for step in log.read()] == ["job.1"]
    assert {one: known.items for one, known in log.pool.contexts.items()} == {
        "job.1": ["a"],
        "job.2": ["b"],
    }
    assert log.read() == []
