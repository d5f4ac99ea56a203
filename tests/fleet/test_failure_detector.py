"""What a fleet notices that no agent says of itself: stale, lost, expired, going in circles."""

from __future__ import annotations

from functools import partial

import pytest

from ultramon import create_context_monitor
from ultramon.fleet.consumer import LEASE_SECONDS
from ultramon.system.processes import MachineIdentity, this_machine
from ultramon.testing import FakeClock, fill, make_record
from ultramon.testing.clock import START

HOUR = 3600.0
ELSEWHERE = MachineIdentity("elsewhere", "another-boot")


@pytest.fixture
def clock(ultramon_clock):
    return ultramon_clock


@pytest.fixture
def agent_clock():
    """The clock of agents that hang while nobody moves it."""
    return FakeClock()


@pytest.fixture
def fleet_on(ultramon_fleet, store):
    """A factory of fleets on each kind of backend."""
    return partial(ultramon_fleet, backend=store)


def names(events):
    return [event.name for event in events]


def put(store, record):
    """Store a state as its owner would; return it."""
    store.start_agent(
        record.agent_id,
        lambda stored, generation: (record, []),
        takeover=True,
        now=record.started_at,
        machine=this_machine(),
    )
    return record


def test_each_silence_is_stale_once_and_recovered_once(make, fleet_on, clock, agent_clock):
    """However often it is looked, an episode has one beginning and one end; the next is another."""
    fleet, monitor = fleet_on(), make("a", clock=agent_clock)
    seen = []
    for _ in range(3):
        for _ in range(60):
            clock.advance(1)
            seen += names(fleet.poll())
        agent_clock.advance(60)
        for _ in range(5):
            seen += names(fleet.poll())
    assert seen == ["started", *["stale", "recovered"] * 3]
    assert monitor.get_state().active


def test_a_long_silence_is_stale_then_lost_once(make, fleet_on, clock, agent_clock):
    """After its limit a silent agent is lost: first what it left, then the end, then nothing."""
    fleet, monitor = fleet_on(), make("a", clock=agent_clock, lost_after_seconds=120)
    monitor.plan(["one", "two"])
    agent_clock.advance(1)
    seen = []
    for _ in range(30):
        clock.advance(10)
        seen += fleet.poll()
    assert names(seen) == ["started", "stale", "handoff_ready", "lost", "ended"]
    assert seen[3].outcome == seen[4].outcome == "lost"
    assert seen[4].reason.startswith("no heartbeat for")
    assert seen[2].handoff.remaining == ("one", "two")
    assert seen[2].handoff == seen[3].handoff == seen[4].handoff
    assert not seen[4].handoff_follows


def test_a_lost_agent_that_beats_again_has_recovered(make, fleet_on, clock, agent_clock):
    """A wrong verdict is taken back, once."""
    fleet = fleet_on()
    monitor = make("a", clock=agent_clock)
    clock.advance(700)
    fleet.poll()
    agent_clock.advance(700)
    assert names(fleet.poll()) == ["recovered"]
    assert fleet.poll() == []
    monitor.stop()
    assert names(fleet.poll()) == ["ended"]


def test_a_waiting_agent_is_not_dead(make, fleet_on, clock, agent_clock):
    """An agent that waits for a person may be silent for as long as its process lives."""
    fleet, monitor = fleet_on(), make("a", clock=agent_clock)
    monitor.waiting()
    agent_clock.advance(1)
    clock.advance(24 * HOUR)
    assert names(fleet.poll()) == ["started"]


def test_an_agent_without_a_heartbeat_of_its_own_is_never_stale(fleet_on, store, clock):
    """A host that tells no interval cannot be late."""
    put(store, make_record("a", heartbeat_interval_seconds=None))
    clock.advance(24 * HOUR)
    assert fleet_on().poll() == []


@pytest.mark.parametrize("seconds", [HOUR, -HOUR, 30 * 24 * HOUR, -30 * 24 * HOUR, 2**31 - START])
def test_a_clock_that_is_set_makes_no_storm(seconds, make, fleet_on, clock):
    """T1: agents that beat by the new time are neither stale nor lost nor recovered."""
    fleet = fleet_on()
    agents = [make(f"a-{number}") for number in range(20)]
    assert len(fleet.poll()) == 20
    clock.advance(7)
    clock.jump(seconds)
    seen = []
    for _ in range(12):
        seen += fleet.poll()
        clock.advance(5)
    assert seen == []
    assert all(agent.get_state().active for agent in agents)


def test_a_suspended_machine_makes_no_storm(make, fleet_on, clock, agent_clock):
    """T2: after eight hours of sleep everybody gets two intervals to beat; who does not is lost."""
    fleet = fleet_on()
    agents = [make(f"a-{number}") for number in range(20)]
    hung = make("hung", clock=agent_clock)
    fleet.poll()
    clock.jump(8 * HOUR)
    seen = fleet.poll()
    clock.advance(29)
    seen += fleet.poll()
    assert seen == []
    clock.advance(1)
    assert [(event.name, event.agent_id) for event in fleet.poll()] == [
        ("handoff_ready", "hung"), ("lost", "hung"), ("ended", "hung"),
    ]  # fmt: skip
    assert all(agent.get_state().active for agent in (*agents, hung))


def test_a_long_interval_of_one_agent_does_not_settle_the_others(fleet_on, store, clock):
    """Each agent gets two intervals of its own after a jump."""
    put(store, make_record("quick", heartbeat_interval_seconds=1.0))
    put(store, make_record("slow", heartbeat_interval_seconds=HOUR))
    fleet = fleet_on()
    fleet.poll()
    clock.jump(5 * HOUR)
    fleet.poll()
    clock.advance(2)
    assert [event.agent_id for event in fleet.poll() if event.name == "lost"] == ["quick"]


def test_a_clock_set_back_does_not_bring_anybody_back(fleet_on, store, clock):
    """Only a new beat is a recovery."""
    put(store, make_record("a", heartbeat_interval_seconds=15.0))
    fleet = fleet_on()
    clock.advance(60)
    assert names(fleet.poll()) == ["stale"]
    clock.jump(-HOUR)
    for _ in range(5):
        clock.advance(20)
        assert fleet.poll() == []


def test_grace_runs_out_once(make, fleet_on, clock):
    """Asked to return and not gone in its grace, an agent is expired; it continues all the same."""
    fleet, monitor = fleet_on(), make("a", grace_seconds=30, context_limit_tokens=1000)
    fill(monitor, 0.9)
    fleet.poll()
    clock.advance(29.9)
    assert fleet.poll() == []
    clock.advance(0.1)
    (expired,) = fleet.poll()
    assert (expired.name, expired.outcome, expired.state.active) == ("ended", "expired", True)
    assert expired.handoff_follows
    clock.advance(HOUR)
    assert fleet.poll() == []


def test_a_lost_agent_does_not_expire(make, fleet_on, clock, agent_clock):
    """An agent that vanished in its grace period ends once."""
    fleet, monitor = fleet_on(), make("a", clock=agent_clock, grace_seconds=900)
    fill(monitor, 0.9)
    clock.advance(601)
    assert [event.outcome for event in fleet.poll() if event.name == "ended"] == ["lost"]
    clock.advance(600)
    assert fleet.poll() == []


def test_a_handoff_after_the_grace_is_still_delivered(make, fleet_on, clock):
    """Late is better than never."""
    fleet, monitor = fleet_on(), make("a", grace_seconds=30)
    monitor.plan(["one"])
    fill(monitor, 0.9)
    fleet.poll()
    clock.advance(31)
    assert names(fleet.poll()) == ["ended"]
    monitor.hand_off()
    monitor.stop("returned")
    events = fleet.poll()
    assert names(events) == ["handoff_ready", "ended"]
    assert events[0].handoff.remaining == ("one",)
    assert (events[1].outcome, events[1].handoff_follows) == ("returned", False)
    assert events[1].handoff == events[0].handoff


@pytest.mark.parametrize("way_out", ["hand_off", "stop", "clear", "report"])
def test_whoever_leaves_the_critical_level_in_time_does_not_expire(way_out, make, fleet_on, clock):
    """A handoff, an end, a new epoch and a lower level each end the grace period."""
    fleet, monitor = fleet_on(), make("a", context_limit_tokens=10_000)
    fill(monitor, 0.9)
    fleet.poll()
    clock.advance(20)
    {
        "hand_off": monitor.hand_off,
        "stop": monitor.stop,
        "clear": monitor.clear,
        "report": lambda: fill(monitor, 0.75),
    }[way_out]()
    clock.advance(20)
    assert "expired" not in [event.outcome for event in fleet.poll()]


def test_a_second_window_has_a_grace_of_its_own(make, fleet_on, clock):
    """A crossing of the next epoch that is read together with the first one is not forgotten."""
    fleet, monitor = fleet_on(), make("a", context_limit_tokens=10_000)
    fill(monitor, 0.9)
    monitor.clear()
    fill(monitor, 0.9)
    fleet.poll()
    clock.advance(31)
    (expired,) = fleet.poll()
    assert (expired.outcome, expired.epoch) == ("expired", 2)


def test_a_request_expires_at_its_deadline_whatever_the_level(make, fleet_on, clock):
    """Who was asked to return and stays is expired once, also for a fleet that did not ask."""
    fleet, other = fleet_on(), fleet_on(consumer="other")
    make_held = make("a")
    fleet.request_return("a", deadline_seconds=10)
    seen = fleet.poll() + other.poll()
    clock.advance(9.9)
    seen += fleet.poll() + other.poll()
    assert names(seen) == ["started", "started"]
    clock.advance(0.1)
    seen = fleet.poll() + other.poll() + fleet.poll() + other.poll()
    assert [event.outcome for event in seen] == ["expired", "expired"]
    assert len({event.event_id for event in seen}) == 1
    assert make_held.get_state().active


def test_the_deadline_of_a_request_survives_the_orchestrator(make, fleet_on, clock):
    """It stands in the journal: the next fleet knows it."""
    monitor = make("a")
    fleet_on(consumer="gone").request_return("a", deadline_seconds=10)
    clock.advance(11)
    fleet = fleet_on()
    fleet.poll()
    assert [event.outcome for event in fleet.poll()] == ["expired"]
    assert monitor.get_threshold_action().should_return


def test_what_was_noticed_survives_a_restart_of_the_orchestrator(
    make, fleet_on, clock, agent_clock
):
    """The next fleet of the name neither repeats what is known nor forgets to take it back."""
    hung = make("hung", clock=agent_clock)
    critical = make("critical", grace_seconds=300)
    fill(critical, 0.9)
    clock.advance(46)
    first = fleet_on()
    assert sorted(names(first.poll())) == ["force_return", "stale", "started", "started"]
    clock.advance(LEASE_SECONDS)
    second = fleet_on()
    assert second.poll() == []
    agent_clock.advance(76)
    assert names(second.poll()) == ["recovered"]
    clock.advance(300)
    third = fleet_on()
    assert [event.outcome for event in third.poll() if event.agent_id == "critical"] == ["expired"]
    assert hung.get_state().active


def test_a_verdict_that_could_not_be_stored_is_found_again(
    make, store, fleet_on, clock, agent_clock
):
    """A journal that refuses costs a delay, never the verdict."""
    from ultramon.errors import StateWriteError

    class Refusing(type(store)):
        refuses = True

        def append_events(self, events, records=()):
            if self.refuses:
                raise StateWriteError("journal", "database is locked")
            super().append_events(events, records)

    make("a", clock=agent_clock)
    clock.advance(46)
    store.__class__ = Refusing
    fleet = fleet_on()
    with pytest.raises(StateWriteError):
        fleet.poll()
    Refusing.refuses = False
    assert names(fleet.poll()) == ["started", "stale"]


def test_a_verdict_of_a_killed_orchestrator_is_taken_back_by_the_next(
    make, fleet_on, clock, agent_clock
):
    """What it had stored and not acknowledged is delivered, then the agent has recovered."""
    monitor = make("a", clock=agent_clock)
    clock.advance(46)
    first = fleet_on()
    next(first._deliveries.step())
    first.close()
    agent_clock.advance(46)
    second = fleet_on()
    assert names(second.poll() + second.poll()) == ["started", "stale", "recovered"]
    assert monitor.get_state().active


def test_an_agent_on_another_host_is_judged_by_its_beats(fleet_on, store, clock):
    """A pid says nothing there: silence alone makes it stale, then lost."""
    put(store, make_record("a", machine=ELSEWHERE, pid=2**22 + 1, pid_started_at="1"))
    fleet = fleet_on()
    assert fleet.poll() == []
    clock.advance(46)
    assert names(fleet.poll()) == ["stale"]
    clock.advance(600)
    assert names(fleet.poll()) == ["handoff_ready", "lost", "ended"]


def test_the_handoff_of_a_lost_agent_says_how_long_its_chain_was(
    make, fleet_on, clock, agent_clock
):
    """The rebuilt record continues the count of generations."""
    with make("a") as first:
        first.plan(["one", "two"])
        handoff = first.hand_off()
    second = make("b", continues=handoff, clock=agent_clock)
    clock.advance(601)
    ends = [event for event in fleet_on().poll() if event.agent_id == "b"]
    (lost,) = [event.handoff for event in ends if event.name == "handoff_ready"]
    assert (lost.generation_count, lost.predecessor_id) == (2, "a")
    assert (lost.reason, lost.remaining) == ("lost", ("one", "two"))
    assert second.pending() == ["one", "two"]


def test_a_handoff_that_was_left_is_not_rebuilt(make, fleet_on, clock, agent_clock):
    """An agent lost after its handoff leaves that one, and no second."""
    monitor = make("a", clock=agent_clock)
    left = monitor.hand_off(notes="mine")
    clock.advance(601)
    events = [event for event in fleet_on().poll() if event.handoff]
    assert names(events) == ["handoff_ready", "lost", "ended"]
    assert {event.handoff.handoff_id for event in events} == {left.handoff_id}


def test_an_agent_started_again_is_a_new_life(store, fleet_on, clock, agent_clock):
    """Lost and restarted under its id, an agent can be lost again, with a handoff of its own."""
    fleet, seen = fleet_on(), []
    for _ in range(2):
        start = FakeClock(clock.now())
        monitor = create_context_monitor("a", backend=store, clock=start, takeover=True).start()
        monitor.plan(["one"])
        start.advance(1)
        clock.advance(601)
        seen += fleet.poll()
    assert names(seen) == ["started", "handoff_ready", "lost", "ended"] * 2
    handoffs = [event.handoff for event in seen if event.handoff]
    assert len({handoff.handoff_id for handoff in handoffs}) == 2
