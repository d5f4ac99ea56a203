"""Supervised runs with agents that misbehave by a seed: sound, whatever the agents do."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from ultramon import Fleet, HandoffTakenError
from ultramon.backends.memory import MemoryBackend
from ultramon.testing import FakeClock, UnreliableAgents, assert_run_is_sound, simulate
from ultramon.testing.unreliable import FAULTS


def options_of(seed):
    """Return the options of a run, chosen by its seed."""
    chance = Random(f"options {seed}")
    return {
        "items": [f"item {number}" for number in range(chance.choice([1, 3, 8, 20]))],
        "verify": chance.random() < 0.6,
        "workers": chance.randrange(1, 5),
        "enforce": chance.random() < 0.5,
        "grace_seconds": chance.choice([0.0, 5.0, 30.0]),
        "deadline_seconds": chance.choice([None, None, 20.0, 120.0]),
        "max_contexts": chance.choice([None, None, 1, 3]),
        "calls": chance.choice([1, 4]),
        "fault_ratio": chance.choice([0.05, 0.15, 0.3]),
    }


def check(run, options):
    """Assert that a run is sound, and that its agents failed only as they should."""
    assert_run_is_sound(run.result, run.events, run.really_done)
    assert run.held_twice == []
    # One that fell silent between its claim and its start may find that another has the work.
    assert {type(agent.error) for agent in run.agents} <= {type(None), HandoffTakenError}
    if options["verify"] and not run.result.stopped:
        assert run.result.counts.claimed == 0
    signalled = sum(agent.returncode in (-9, -15) for agent in run.agents)
    fell_silent = {
        event["agentId"]
        for event in run.events
        if event["type"] == "agent_lost" and event["exit"] == {}
    }
    kills = signalled + len(fell_silent)
    assert len(run.result.repeated) <= kills
    assert run.result.killed <= kills
    if options.get("max_contexts"):
        assert len(run.result.contexts) <= options["max_contexts"] * options["calls"]


SEEDS = [
    *range(30),
    *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(30, 1000)),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_agents_do_the_run_is_sound(seed, caplog):
    """Nothing is lost, verified without being done, or done twice without need."""
    caplog.set_level(logging.CRITICAL)
    options = options_of(seed)
    check(simulate(seed, **options), options)


def test_a_run_can_be_kept_in_a_store_on_a_clock():
    """For pages and commands that are to show it afterwards."""
    store, clock = MemoryBackend(), FakeClock(1_000_000.0)
    kept = simulate(3, ["a", "b"], faults=(), run="night", backend=store, clock=clock)
    assert {event["run"] for event in kept.events} == {"night"}
    assert store.events().events[: len(kept.events)] == kept.events
    assert clock.now() > 1_000_000.0
    stored = [one.record for one in store.list_agents("night")]
    assert len(stored) == len(kept.agents)
    assert all(record.started_at >= 1_000_000.0 for record in stored)


@pytest.mark.parametrize("seed", [178])
def test_a_lost_agent_that_stops_after_all_is_believed(seed):
    """What it did between its silence and its end is not done again."""
    options = options_of(seed)
    run = simulate(seed, **options)
    check(run, options)
    stopped_after_all = {
        event["agentId"] for event in run.events if event["type"] == "agent_lost"
    } & {event["agentId"] for event in run.events if event["type"] == "agent_stopped"}
    assert stopped_after_all == {"simulation.2"}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_alone_leaves_a_sound_run(fault, caplog):
    """Half of the agents have it; the others get the work done."""
    caplog.set_level(logging.CRITICAL)
    options = {"items": ["a", "b", "c", "d"], "workers": 2, "enforce": True, "verify": True}
    seen = []
    for seed in range(4):
        run = simulate(seed, faults=[fault], fault_ratio=0.5, **options)
        check(run, options)
        counts = run.result.counts
        assert counts.verified + counts.set_aside == 4
        seen += [name for agent in run.agents for name in agent.faults]
        seen += [context.reason for context in run.result.contexts]
    wanted = "lost (spawn raised OSError: the seed lets no process start)"
    assert (wanted if fault == "no_spawn" else fault) in seen


def test_reliable_agents_do_each_item_once():
    """Without a fault a run is what it is with processes."""
    run = simulate(1, ["a", "b", "c"], faults=(), workers=2)
    assert run.result.ok
    assert sorted(item for _, item in run.really_done) == ["a", "b", "c"]
    assert {agent.returncode for agent in run.agents} == {0}


SHOW = """
from ultramon.testing import simulate
run = simulate(1, [f"item {n}" for n in range(8)], workers=3, fault_ratio=0.3)
for event in run.events:
    print(event["occurredAt"], event["type"], event["agentId"], event.get("items"))
print(run.result, run.really_done, run.steps)
"""


def test_a_seed_is_the_whole_run():
    """In another process too, whatever its hashes."""
    shown = {
        subprocess.run(
            [sys.executable, "-c", SHOW],
            env={"PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    }
    assert len(shown) == 1


def test_a_verify_of_ones_own_looks_at_what_was_done(tmp_path):
    """`do` is what agents do, and false claims do not pass."""
    run = simulate(
        3,
        ["a", "b", "c"],
        do=lambda item: (tmp_path / item).touch(),
        verify=lambda item: (tmp_path / item).exists(),
        faults=["claim"],
        fault_ratio=0.5,
    )
    assert_run_is_sound(run.result, run.events, run.really_done)
    done = {path.name for path in tmp_path.iterdir()}
    assert done == {item for _, item in run.really_done}
    assert run.result.counts.verified <= len(done)


def test_a_verify_that_believes_everything_is_found_out(caplog):
    """The checker names the items that were only claimed."""
    caplog.set_level(logging.CRITICAL)
    for seed in range(20):
        run = simulate(seed, ["a", "b"], verify=lambda item: True, faults=["claim"])
        if len({item for _, item in run.really_done}) < 2:
            with pytest.raises(AssertionError, match=r"[ab]: verified, not done"):
                assert_run_is_sound(run.result, run.events, run.really_done)
            return
    raise AssertionError("no seed claims falsely")


@pytest.fixture(scope="module")
def sound():
    run = simulate(1, ["a", "b"], faults=())
    assert_run_is_sound(run.result, run.events, run.really_done)
    return run


def test_an_unsound_history_is_told(sound):
    """Each promise that was not kept has a line of its own."""
    (first, item), *_ = sound.really_done
    closed = [event for event in sound.events if event["type"] == "context_closed"]
    assigned = [event for event in sound.events if event["type"] == "agent_assigned"]
    another = {**assigned[0], "agentId": "simulation.9"}
    claimed = next(event for event in sound.events if event["type"] == "items_claimed")
    for result, events, really_done, told in (
        (sound.result, sound.events, [], "a: verified, not done"),
        (
            sound.result,
            sound.events,
            [*sound.really_done, ("simulation.9", item)],
            f"{item}: done by {first}, which lived, and again by simulation.9",
        ),
        (sound.result, [*sound.events, *closed], sound.really_done, "closed 2 times"),
        (
            sound.result,
            [event for event in sound.events if event not in closed],
            sound.really_done,
            "closed 0 times",
        ),
        (sound.result, [*sound.events, another], sound.really_done, "was assigned what"),
        (
            sound.result,
            [*sound.events, {**claimed, "agentId": "simulation.9"}],
            sound.really_done,
            "claimed by simulation.9, which has it not",
        ),
        (replace(sound.result, lost=("a",)), sound.events, sound.really_done, "recorded nowhere"),
        (
            replace(sound.result, left=("a",)),
            sound.events,
            sound.really_done,
            "ended by itself and left a",
        ),
        (
            replace(sound.result, counts=replace(sound.result.counts, assigned=3)),
            sound.events,
            sound.really_done,
            "do not add up",
        ),
        (
            replace(sound.result, counts=replace(sound.result.counts, verified=1, left=1)),
            sound.events,
            sound.really_done,
            "the journal has 2 items as verified",
        ),
    ):
        with pytest.raises(AssertionError, match=told):
            assert_run_is_sound(result, events, really_done)


def test_agents_serve_an_orchestrator_of_ones_own(ultramon_backend, ultramon_clock):
    """`UnreliableAgents` is a `spawn`: its agents are attached as processes are."""
    from ultramon.fleet.supervise.jobs import Job

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


@pytest.mark.exhaustive
def test_the_seeds_have_seen_every_fault_and_every_end():
    """Else a thousand runs would prove less than they say."""
    faults, stopped = Counter(), Counter()
    for seed in range(100):
        run = simulate(seed, **options_of(seed))
        stopped[run.result.stopped] += 1
        for agent in run.agents:
            faults.update(agent.faults)
    assert set(faults) == set(FAULTS) - {"no_spawn"}
    assert {None, "deadline", "max_contexts"} <= set(stopped)
