"""Work that is given before the start: whatever becomes of an agent, it is handed over or done."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from helpers.fleet_fixtures import agent_clock, clock, fleet_on, make, names  # noqa: F401 - fixtures
from helpers.fleet_worker import end, reap, start_worker, tell

from ultramon import (
    AgentAlreadyRunningError,
    ConfigurationError,
    Fleet,
    HandoffTakenError,
    create_context_monitor,
)
from ultramon.backends.local.backend import LocalBackend
from ultramon.state.plan import MAX_PLAN_BYTES


@pytest.fixture
def backend(tmp_path):
    backend = LocalBackend(str(tmp_path / "state"))
    yield backend
    backend.close()


@pytest.fixture
def fleet(backend):
    fleet = Fleet("audit", backend=backend)
    yield fleet
    fleet.close()


@pytest.fixture
def worker(fleet):
    """Start obedient workers; those that are left at the end of the test are killed."""
    left = []

    def start(agent_id, mode="obey", *arguments):
        left.append(start_worker(fleet, agent_id, mode, *arguments))
        return left[-1]

    yield start
    for process in left:
        reap(process)


def die(fleet, agent_id, code="import os; os.kill(os.getpid(), 9)"):
    """Run a process of an agent that ends before it starts its agent."""
    process = subprocess.Popen([sys.executable, "-c", code])
    fleet.attach(agent_id, process)
    process.wait()


def handoffs(events):
    return [event.handoff for event in events if event.name == "handoff_ready"]


def test_an_agent_killed_before_its_first_state_leaves_what_it_was_given(fleet):
    """Killed while importing: all items remain, and the end with its signal comes behind them."""
    fleet.assign("w", ["a", "b"])
    die(fleet, "w")
    events = fleet.poll()
    assert names(events) == ["handoff_ready", "lost", "ended"]
    assert events[0].handoff.remaining == ("a", "b")
    assert events[0].handoff.reason == "lost"
    for event in events[1:]:
        assert (event.outcome, event.exit["signal"]) == ("lost", "SIGKILL")
        assert event.handoff == events[0].handoff
        assert not event.handoff_follows
    assert fleet.poll() == []


def test_an_agent_killed_before_its_plan_leaves_what_it_was_given(fleet, worker):
    """A state without a plan says nothing of the work: the assignment does."""
    fleet.assign("w", ["a", "b"])
    process = worker("w")
    fleet.attach("w", process)
    tell(process, "start")
    process.kill()
    process.wait()
    events = fleet.poll()
    assert names(events) == ["started", "handoff_ready", "lost", "ended"]
    assert events[1].handoff.remaining == ("a", "b")


def test_a_plan_replaces_the_assignment_but_for_what_it_left_out(fleet, worker):
    """What the child planned is the truth; what it was given and did not plan remains as well."""
    fleet.assign("w", ["a", "b", "c"])
    process = worker("w")
    fleet.attach("w", process)
    for line in ("start", "plan a b x", "begin a", "done a", "begin b", "update_heartbeat"):
        tell(process, line)
    process.kill()
    process.wait()
    (left,) = handoffs(fleet.poll())
    assert (left.completed, left.interrupted, left.remaining) == (("a",), ("b",), ("x", "c"))


def test_a_handoff_that_was_given_comes_again_as_it_is(fleet, backend):
    """The successor died before its claim: the next one can claim the very same record."""
    with create_context_monitor("first", run="audit", backend=backend) as first:
        first.plan(["a"])
        left = first.hand_off(notes="look at page 7")
    fleet.poll()
    fleet.assign("second", left)
    die(fleet, "second")
    events = fleet.poll()
    assert names(events) == ["handoff_ready", "lost", "ended"]
    assert events[0].agent_id == "second"
    assert events[0].handoff == left
    third = create_context_monitor("third", run="audit", continues=left, backend=backend)
    with third:
        assert third.pending() == ["a"]


def test_agents_that_die_early_one_after_the_other_make_no_progress(fleet):
    """A worker that cannot even start is not started for ever."""
    work = ["a"]
    seen = []
    for number in range(4):
        fleet.assign(f"w{number}", work)
        die(fleet, f"w{number}", "raise SystemExit(3)")
        ready = fleet.poll()[0]
        seen.append(ready.name)
        work = ready.handoff
    assert seen == ["handoff_ready", "handoff_ready", "no_progress", "no_progress"]


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled"])
def test_an_end_without_a_handoff_leaves_what_is_not_done(outcome, make, fleet_on):
    """However an agent ends: what it was given and did not record as done comes before its end."""
    fleet = fleet_on("default")
    fleet.assign("a", ["one", "two", "three"])
    monitor = make("a")
    monitor.plan(["one", "two"])
    monitor.complete_task("one")
    monitor.stop(outcome)
    events = fleet.poll() + fleet.poll()
    assert names(events) == ["started", "handoff_ready", "ended"]
    left, ended = events[1:]
    assert left.handoff.completed == ("one",)
    assert left.handoff.remaining == ("two", "three")
    assert (ended.outcome, ended.handoff) == (outcome, left.handoff)
    assert ended.event.type == "agent_stopped"


def test_a_handoff_offered_again_brings_no_second_end(make, fleet_on, store):
    """One that the fleet made holds the end of its agent; a copy of it does not deliver that."""
    fleet = fleet_on("default")
    fleet.assign("a", ["one"])
    make("a").stop()
    assert names(fleet.poll()) == ["started", "handoff_ready", "ended"]
    (made,) = [event for event in store.events().events if event["type"] == "handoff_ready"]
    store.append_events([{**made, "eventId": "again", "n": made["n"] + 1}])
    assert names(fleet.poll()) == ["handoff_ready"]


def test_what_an_own_handoff_left_out_comes_in_a_second_one(make, fleet_on):
    """The agent did not know of it: its own record stands, the rest has one of its own."""
    fleet = fleet_on("default")
    fleet.assign("a", ["one", "two"])
    monitor = make("a")
    monitor.plan(["one"])
    own = monitor.hand_off()
    monitor.stop("returned")
    events = fleet.poll()
    assert names(events) == ["started", "handoff_ready", "handoff_ready", "ended"]
    assert [left.remaining for left in handoffs(events)] == [("one",), ("two",)]
    assert len({left.handoff_id for left in handoffs(events)} - {own.handoff_id}) == 1


def test_an_agent_that_did_what_it_was_given_leaves_nothing(make, fleet_on):
    """Also where it made no plan: an item that is recorded as done is done."""
    fleet = fleet_on("default")
    fleet.assign("a", ["one", "two"])
    with make("a") as monitor:
        monitor.complete_task("one")
        with monitor.task("two"):
            pass
    events = fleet.poll()
    assert names(events) == ["started", "ended"]
    assert events[1].handoff is None


def test_an_assignment_survives_the_orchestrator(backend, fleet):
    """It stands in the journal: the next fleet of the name hands the work over."""
    fleet.assign("w", ["a"])
    fleet.poll()
    fleet.close()
    following = Fleet("audit", backend=backend)
    die(following, "w")
    assert handoffs(following.poll())[0].remaining == ("a",)
    following.close()


def test_an_agent_that_never_starts_is_lost_after_ten_minutes(fleet_on, clock):
    """The orchestrator died before it started it: the work is not forgotten, and announced once."""
    fleet_on("default").assign("w", ["a"])
    fleet, other = fleet_on("default"), fleet_on("default", consumer="other")
    clock.advance(600)
    assert fleet.poll() + other.poll() == []
    clock.advance(1)
    events = fleet.poll()
    assert names(events) == ["handoff_ready", "lost", "ended"]
    assert events[0].handoff.remaining == ("a",)
    assert names(other.poll()) == ["handoff_ready", "lost", "ended"]
    clock.advance(5)
    assert fleet.poll() + other.poll() == []


def test_only_places_of_assignments_are_remembered_with_the_cursor(backend, fleet):
    """A hundred thousand items stay in the journal; an agent that ended costs nothing."""
    for number in range(100):
        fleet.assign(f"w{number}", [f"{number}/{item}" for item in range(1000)])
    fleet.on("ended")(lambda event: None)
    with create_context_monitor("w0", run="audit", backend=backend) as monitor:
        for item in range(1000):
            monitor.complete_task(f"0/{item}")
    assert names(fleet.poll()) == ["started", "ended"]
    held = backend.subscribe(
        "audit/main", fleet._deliveries._consumer._holder, now=0, lease_seconds=30
    )
    assert len(repr(held.memory)) < 100 * 300
    assert "w0'" not in repr(held.memory)
    assert "w99'" in repr(held.memory)


def test_work_is_given_before_the_start(make, fleet_on):
    """A living agent cannot be given work; one that ended can, for its next life."""
    fleet = fleet_on("default")
    monitor = make("a")
    with pytest.raises(AgentAlreadyRunningError, match="agent a is already running in run default"):
        fleet.assign("a", ["one"])
    monitor.stop()
    fleet.assign("a", ["one"])
    make("a").stop()
    assert names(fleet.poll()) == ["started", "ended", "started", "handoff_ready", "ended"]


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (["x" * MAX_PLAN_BYTES], "at most 655360 bytes as stored"),
        ("one text", "a list of items, not one text"),
        ([7], "non-empty text or a path"),
    ],
)
def test_what_no_plan_can_hold_cannot_be_given(work, reason, fleet):
    """It is refused before anything is stored or started."""
    with pytest.raises(ConfigurationError, match=reason):
        fleet.assign("w", work)
    assert fleet.backend.events().events == []


def test_a_successor_that_came_too_late_is_not_lost(fleet, worker, backend, tmp_path):
    """Its claim was refused and it exits: it ended as cancelled, once, and leaves nothing."""
    with create_context_monitor("first", run="audit", backend=backend) as first:
        first.plan(["a"])
        left = first.hand_off()
    left.claim("winner")
    fleet.poll()
    fleet.assign("loser", left)
    given = left.model_dump_json(by_alias=True)
    process = worker("loser", "items", tmp_path / "effects", given, 9)
    fleet.attach("loser", process)
    assert end(process) == 1
    (event,) = fleet.poll() + fleet.poll()
    assert (event.name, event.outcome, event.handoff) == ("ended", "cancelled", None)
    assert event.reason == str(HandoffTakenError("first", "winner"))


def test_an_id_whose_second_life_dies_early_is_lost_again(fleet, worker):
    """The first life has ended or is lost: the process that follows it is known all the same."""
    process = worker("w")
    fleet.attach("w", process)
    tell(process, "start")
    tell(process, "stop")
    end(process)
    assert names(fleet.poll()) == ["started", "ended"]
    for _ in range(2):
        fleet.assign("w", ["a"])
        die(fleet, "w")
        assert names(fleet.poll()) == ["handoff_ready", "lost", "ended"]
    process = worker("w")
    tell(process, "start")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert names(fleet.poll()) == ["started", "handoff_ready", "lost", "ended"]
    die(fleet, "w")
    assert names(fleet.poll()) == ["lost", "ended"]


def test_a_process_attached_after_its_agent_ended_is_not_lost(fleet, worker):
    """Also where the agent ran in a process below it: what it was assigned tells the life."""
    fleet.assign("w", [])
    process = worker("w")
    tell(process, "start")
    tell(process, "stop")
    end(process)
    with subprocess.Popen(["true"]) as wrapper:
        fleet.attach("w", wrapper)
    events = fleet.poll() + fleet.poll()
    assert [(event.name, event.outcome) for event in events] == [
        ("started", None),
        ("ended", "completed"),
    ]


def test_an_id_that_goes_on_in_another_run_has_one_end_in_the_first(fleet, worker, backend):
    """The agent completed; that its process ends later, and its state is another's, is no loss."""
    process = worker("w")
    fleet.attach("w", process)
    tell(process, "start")
    tell(process, "stop")
    with create_context_monitor("w", run="other", backend=backend):
        end(process)
        events = fleet.poll() + fleet.poll()
    assert [(event.name, event.outcome) for event in events] == [
        ("started", None),
        ("ended", "completed"),
    ]


def test_an_agent_that_was_lost_and_ends_after_all_ends_once(make, fleet_on, clock, agent_clock):
    """A suspended agent that continues and stops between two looks is not announced twice."""
    fleet, monitor = fleet_on(), make("a", clock=agent_clock)
    clock.advance(601)
    assert names(fleet.poll()) == ["started", "handoff_ready", "lost", "ended"]
    agent_clock.advance(601)
    monitor.stop()
    assert fleet.poll() + fleet.poll() == []


def test_a_life_whose_id_goes_on_in_another_run_is_handed_over(fleet, worker, backend):
    """Killed and replaced before a fleet looked: its work stays in its run."""
    fleet.assign("w", ["a", "b", "c"])
    process = worker("w")
    for line in ("start", "plan a b", "begin a", "update_heartbeat"):
        tell(process, line)
    process.kill()
    process.wait()
    with create_context_monitor("w", run="other", backend=backend) as monitor:
        assert monitor.pending() == []
        events = fleet.poll() + fleet.poll()
    assert names(events) == ["started", "handoff_ready", "handoff_ready", "lost", "ended"]
    assert [(left.interrupted, left.remaining) for left in handoffs(events)] == [
        (("a",), ("b",)),
        ((), ("c",)),
    ]
    assert events[-1].reason == "its id went on in run other"
