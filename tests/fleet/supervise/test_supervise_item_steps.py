"""Supervised contexts that are killed inside an item: a successor has the steps done before it."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from helpers.supervised import effects, spawner
from test_supervise_steps import Child, Steps

from ultramon import Fleet, open_backend
from ultramon.state.item_steps import MAX_STEPS_BYTES
from ultramon.testing import FakeClock

ALL = ["read", "parse", "load", "check"]


def supervise(tmp_path, items, dies_behind, *, environ=None, **options):
    fleet = Fleet("job", poll_interval_seconds=0.1)
    given = {"DIES_BEHIND": json.dumps(dies_behind), **(environ or {})}
    spawn = spawner(tmp_path, "in_steps", **given)
    try:
        return fleet.supervise(spawn, items, **options)
    finally:
        fleet.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("last", range(4))
def test_a_successor_begins_behind_the_last_step(shared_store, tmp_path, last):
    """Of the item that was in work alone; what was done before its kill is done once."""
    result = supervise(tmp_path, ["a", "b", "c"], ["b", ALL[last]])
    assert (result.ok, result.counts.claimed, result.repeated) == (True, 3, ("b",))
    done = effects(tmp_path)
    assert Counter((item, step) for item, step, _ in done) == Counter(
        (item, step) for item in "abc" for step in ALL
    )
    before = [step for item, step, agent_id in done if (item, agent_id) == ("b", "job.1")]
    assert before == ALL[: last + 1]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 43))],
)
def test_killed_at_any_moment_a_context_repeats_one_step(shared_store, tmp_path, seed):
    """The one in work, at most: it was done, and its step was not stored yet."""
    victims = json.dumps([str(tmp_path / "victim"), 8])
    items = [f"item {number}" for number in range(12)]
    result = supervise(
        tmp_path, items, [], environ={"VICTIMS": victims, "SEED": seed}, workers=2,
        max_restarts=100,
    )  # fmt: skip
    assert (result.ok, result.counts.claimed) == (True, 12), result
    done = Counter((item, step) for item, step, _ in effects(tmp_path))
    assert set(done) == {(item, step) for item in items for step in ALL}
    killed = sum(context.is_killed for context in result.contexts)
    assert killed
    assert done.total() - len(done) <= killed


def test_the_successor_is_given_the_results(shared_store, tmp_path):
    supervise(tmp_path, ["a"], ["a", "parse"])
    backend = open_backend()
    events = backend.committed_events(None, run="job").events
    backend.close()
    assigned = [event for event in events if event["type"] == "agent_assigned"]
    assert [event.get("steps") for event in assigned] == [
        None,
        {
            "a": {
                "read": {"by": "job.1", "behind": []},
                "parse": {"by": "job.1", "behind": ["read"]},
            }
        },
    ]
    results = [
        (event["agentId"], event["step"], event["result"]["behind"])
        for event in events
        if event["type"] == "step_completed"
    ]
    assert results[2:] == [
        ("job.2", "load", ["read", "parse"]), ("job.2", "check", ["read", "parse", "load"])
    ]  # fmt: skip


def test_an_item_whose_check_fails_begins_with_its_first_step(shared_store, tmp_path):
    """Its steps led to that: the next context does all of them again."""
    asked = []

    def verify(item):
        asked.append(item)
        return item != "b" or asked.count("b") > 2

    result = supervise(tmp_path, ["a", "b"], [], verify=verify)
    assert (result.ok, result.counts.verified) == (True, 2)
    done = [(step, agent_id) for item, step, agent_id in effects(tmp_path) if item == "b"]
    assert done == [(step, agent_id) for agent_id in ("job.1", "job.2") for step in ALL]


class Stepping(Child):
    """A child that a test has do steps."""

    def step(self, item, name, result=None):
        self.monitor.set_current_task(item)
        self.monitor.update_heartbeat()
        self.monitor.step(name, result)

    def die(self):
        self.monitor._writer.release()
        self.returncode = -9


@pytest.fixture
def run(ultramon_backend, ultramon_clock):
    def start(items, **options):
        made = Steps(ultramon_backend, ultramon_clock, items, **options)
        made.child = Stepping
        return made

    return start


def test_a_context_with_a_new_step_has_made_progress(run):
    """An item of many steps is no attempt while it advances; the same steps again are none."""
    made = run(["a"])
    for number in range(1, 6):
        while f"job.{number}" not in made.children:
            made()
        child = made.children[f"job.{number}"]
        assert made.jobs[-1].steps == ({"a": made.jobs[-1].steps["a"]} if number > 1 else {})
        child.step("a", f"step {number}", number)
        child.end(1)
        child.monitor.stop("failed")
    assert list(made.jobs[-1].steps["a"]) == [f"step {number}" for number in range(1, 5)]
    for number in range(6, 9):
        while f"job.{number}" not in made.children:
            made()
        child = made.children[f"job.{number}"]
        child.step("a", "step 1", "again")
        child.end(1)
        child.monitor.stop("failed")
    while not made.supervisor.is_over:
        made()
    result = made.supervisor.result()
    assert (result.stopped, len(result.contexts), result.set_aside) == ("broken_worker", 8, {})


def test_two_orchestrators_and_a_large_result(ultramon_backend):
    """The next orchestrator knows the steps from the journal, to the last byte."""
    clock = FakeClock()
    first = Steps(ultramon_backend, clock, ["a", "b"])
    first.child = Stepping
    first()
    large = "x" * (MAX_STEPS_BYTES - 20)
    first.children["job.1"].step("b", "parse", large)
    first.children["job.1"].end(1)
    first.children["job.1"].monitor.stop("failed")
    clock.advance(60)  # its lease is over
    second = Steps(ultramon_backend, clock, [])
    second.child = Stepping
    while not second.jobs:
        second()
    assert second.jobs[0].steps == {"b": {"parse": large}}
    child = second.children[second.jobs[0].agent_id]
    assert child.monitor.steps("b") == {"parse": large}
    result = second.to_the_end()
    first.fleet.close()
    assert result.ok
