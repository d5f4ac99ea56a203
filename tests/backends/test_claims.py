"""A handoff outlives the successor that claimed it and never began."""

import os
import signal
import subprocess
import sys

import pytest
from helpers import IMPORT_PATH
from helpers.fleet_fixtures import agent_clock, clock, fleet_on, make, names  # noqa: F401 - fixtures

from ultramon import (
    AgentAlreadyRunningError,
    Fleet,
    HandoffTakenError,
    create_context_monitor,
    open_backend,
)
from ultramon.backends.memory import MemoryBackend
from ultramon.errors import StateWriteError
from ultramon.state.liveness import LOST_AFTER_SECONDS
from ultramon.testing import assert_no_work_lost

ITEMS = ["a", "b", "c"]

# Dies by SIGKILL in the middle of its start, before the call that is named.
SUCCESSOR = """
import os, signal, sys
from ultramon import HandoffRecord, create_context_monitor
from ultramon.backends.local.claims import JournalClaims
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.backends.postgres.store.event_log import EventLog

owner, method = sys.argv[1].split(".")
setattr(globals()[owner], method, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
create_context_monitor(continues=HandoffRecord.model_validate_json(sys.argv[2])).start()
"""
BEFORE_THE_STATE = [
    ("file", "LocalBackend.start_agent"),
    ("file", "StateDirectory.replace"),
    ("postgres", "PostgresBackend.start_agent"),
    ("postgres", "EventLog.insert"),
]


@pytest.fixture
def hand_off(make):
    """Let an agent leave its items to a successor."""

    def hand_off(agent_id="first", items=ITEMS, run="audit"):
        with make(agent_id, run=run) as monitor:
            monitor.plan(items)
            return monitor.hand_off()

    return hand_off


@pytest.fixture
def fleet(shared_store):
    fleet = Fleet("audit")
    yield fleet
    fleet.close()


def start_and_die(fleet, handoff, where):
    """Start a successor in a process of its own, and wait until it is dead."""
    program = [sys.executable, "-c", SUCCESSOR, where, handoff.model_dump_json(by_alias=True)]
    process = subprocess.Popen(program, env={**fleet.env("second"), "PYTHONPATH": IMPORT_PATH})
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process


def offered(events):
    return [event.handoff for event in events if event.name == "handoff_ready"]


def first_handoff(fleet):
    """Have an agent hand off through the store of the environment."""
    with create_context_monitor("first", run="audit") as monitor:
        monitor.plan(ITEMS)
        monitor.hand_off()
    (handoff,) = offered(fleet.poll())
    return handoff


@pytest.mark.parametrize("attached", [True, False])
@pytest.mark.parametrize(("shared_store", "where"), BEFORE_THE_STATE, indirect=["shared_store"])
def test_a_successor_killed_in_its_start_leaves_the_handoff(fleet, where, attached):
    """SIGKILL between claim and first state: the same handoff is offered again, once."""
    handoff = first_handoff(fleet)
    process = start_and_die(fleet, handoff, where)
    if attached:
        fleet.attach("second", process)
    with pytest.raises(AssertionError, match=r"a: first .*second \(claimed it and never began\)"):
        assert_no_work_lost("audit")
    happened = fleet.poll()
    (again,) = offered(happened)
    assert again == handoff
    told = [name for name in names(happened) if name != "started"]
    assert told == ["handoff_ready", *(["lost", "ended"] if attached else [])]
    assert process.wait() == -signal.SIGKILL
    assert_no_work_lost("audit")
    with create_context_monitor("third", run="audit", continues=again) as third:
        assert third.pending() == ITEMS
        for item in ITEMS:
            third.complete_task(item)
    assert names(fleet.poll()) == ["started", "ended"]
    assert_no_work_lost("audit")


@pytest.mark.parametrize("shared_store", ["file"], indirect=True)
def test_a_successor_killed_before_its_claim_was_confirmed_keeps_it(fleet):
    """Its state is stored and names the handoff: it is lost like any agent, with its own plan."""
    handoff = first_handoff(fleet)
    start_and_die(fleet, handoff, "JournalClaims._confirm_claim").wait()
    assert open_backend().load("second").record.continues_handoff_id == handoff.handoff_id
    (rebuilt,) = offered(fleet.poll() + fleet.poll())
    assert (rebuilt.agent_id, list(rebuilt.remaining)) == ("second", ITEMS)
    assert open_backend().pending_claims() == []
    with pytest.raises(HandoffTakenError, match="already claimed by second"):
        handoff.claim("third")


def test_a_claim_of_a_living_process_ages(store, hand_off, fleet_on, clock):
    """After ten minutes without a state the handoff is offered again, not a moment before."""
    fleet = fleet_on("audit")
    handoff = hand_off()
    fleet.poll()
    handoff.claim("second", clock=clock)
    clock.advance(LOST_AFTER_SECONDS)
    assert fleet.poll() == []
    clock.advance(1)
    assert offered(fleet.poll()) == [handoff]
    assert fleet.poll() == []


def test_a_successor_that_comes_back_late_is_refused(store, make, hand_off, fleet_on, clock):
    """Its first state is not stored; who claimed the handoff meanwhile has it."""
    fleet = fleet_on("audit")
    handoff = hand_off()
    slow = LateStore(store)
    late = create_context_monitor(
        "second", run="audit", continues=handoff, backend=slow, clock=clock
    )
    slow.meanwhile = lambda: (clock.advance(LOST_AFTER_SECONDS + 1), fleet.poll())
    with pytest.raises(HandoffTakenError, match="first is offered again"):
        late.start()
    assert not late.is_active
    slow.meanwhile = lambda: (
        clock.advance(LOST_AFTER_SECONDS + 1),
        fleet.poll(),
        make("third", run="audit", continues=handoff),
    )
    with pytest.raises(HandoffTakenError, match="already claimed by third"):
        late.start()
    assert [agent.agent_id for agent in store.list_agents()] == ["first", "third"]
    types = [(event["type"], event["agentId"]) for event in store.events().events]
    assert ("agent_started", "second") not in types
    assert types.count(("handoff_ready", "first")) == 3


class LateStore:
    """A store that something happens to before the next agent starts."""

    def __init__(self, store):
        self._store = store
        self.meanwhile = None

    def __getattr__(self, name):
        return getattr(self._store, name)

    def start_agent(self, *args, **given):
        self.meanwhile()
        return self._store.start_agent(*args, **given)


def test_an_agent_that_runs_unsaved_is_fenced_when_its_claim_is_released(hand_off, clock):
    """It comes back with its first state after another successor has begun, and stores nothing."""

    class Refusing(MemoryBackend):
        """Takes no new agent until it is asked to."""

        refuses = False

        def start_agent(self, *args, **given):
            if self.refuses:
                raise StateWriteError("memory:", "the disk is full")
            return super().start_agent(*args, **given)

    store = Refusing()
    with create_context_monitor("first", run="audit", backend=store, clock=clock) as first:
        first.plan(ITEMS)
        handoff = first.hand_off()
    store.refuses = True
    second = create_context_monitor("second", continues=handoff, backend=store, clock=clock).start()
    fleet = Fleet("audit", backend=store, clock=clock)
    fleet.poll()
    clock.advance(LOST_AFTER_SECONDS + 1)
    assert offered(fleet.poll()) == [handoff]
    store.refuses = False
    create_context_monitor("third", continues=handoff, backend=store, clock=clock).start()
    second.update_heartbeat()
    clock.advance(60)
    assert sorted(agent.agent_id for agent in store.list_agents()) == ["first", "third"]


def test_a_successor_of_the_same_id_may_try_again(store, make, hand_off, fleet_on, clock):
    """An orchestrator that names successors by their handoff starts the same one twice."""
    fleet = fleet_on("audit")
    again = hand_off()
    fleet.poll()
    for _ in range(2):
        again.claim("second", clock=clock)
        clock.advance(LOST_AFTER_SECONDS + 1)
        (again,) = offered(fleet.poll())
    assert make("second", run="audit", continues=again).pending() == ITEMS
    assert store.load("second").record.continues_handoff_id == again.handoff_id


def test_a_handoff_is_offered_again_after_each_successor(store, hand_off, fleet_on, clock):
    """Each release is an event of its own, also where the clock stands still."""
    fleet = fleet_on("audit")
    handoff = hand_off()
    fleet.poll()
    child = [sys.executable, "-c", ""]
    for number in range(3):
        handoff.claim(f"next-{number}", clock=clock)
        process = subprocess.Popen(child)
        fleet.attach(f"next-{number}", process)
        process.wait()
        assert offered(fleet.poll()) == [handoff]
    keys = [event["n"] for event in store.events().events if event["type"] == "handoff_ready"]
    assert len(set(keys)) == 4


def test_the_end_of_an_attached_child_releases_its_claim(store, hand_off, fleet_on, clock):
    """Also where its orchestrator, which lives, claimed for it."""
    fleet = fleet_on("audit")
    handoff = hand_off()
    fleet.poll()
    handoff.claim("second", clock=clock)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    fleet.attach("second", process)
    assert fleet.poll() == []
    process.communicate()
    events = fleet.poll()
    assert sorted(names(events)) == ["ended", "handoff_ready", "lost"]
    assert offered(events) == [handoff]


def test_one_of_several_fleets_releases_a_claim(store, hand_off, fleet_on, clock):
    """All of them get the event, which is stored once; fleets of other runs change nothing."""
    fleets = [fleet_on("audit", consumer=name) for name in ("main", "second")]
    other = fleet_on("other")
    handoff = hand_off()
    for fleet in fleets:
        fleet.poll()
    handoff.claim("next", clock=clock)
    clock.advance(LOST_AFTER_SECONDS + 1)
    assert other.poll() == []
    assert len(store.pending_claims()) == 1
    assert [offered(fleet.poll()) for fleet in fleets] == [[handoff], [handoff]]
    types = [event["type"] for event in store.events().events]
    assert types.count("handoff_ready") == 2


@pytest.mark.parametrize("left", [ITEMS, []])
def test_an_agent_that_claims_while_it_runs_keeps_the_handoff(
    store, make, hand_off, fleet_on, clock, left
):
    """It was active after the claim and planned what is left, which may be nothing."""
    fleet = fleet_on("audit")
    handoff = hand_off(items=left)
    runner = make("runner", run="audit")
    runner.update_heartbeat()
    clock.advance(1)
    handoff.claim("runner", clock=clock)
    runner.plan([*left[1:], *left[:1], "more"])
    runner.track_content("it goes on")
    runner.update_heartbeat()
    clock.advance(LOST_AFTER_SECONDS + 1)
    assert offered(fleet.poll()) == [handoff]
    assert store.pending_claims() == []
    with pytest.raises(HandoffTakenError):
        handoff.claim("another", clock=clock)


def test_an_older_life_of_a_successor_proves_nothing(store, make, hand_off, fleet_on, clock):
    """That the id had these items before the claim does not mean that it began now."""
    fleet = fleet_on("audit")
    before = make("second", run="audit")
    before.plan(ITEMS)
    before.stop("returned")
    clock.advance(1)
    handoff = hand_off()
    fleet.poll()
    handoff.claim("second", clock=clock)
    clock.advance(LOST_AFTER_SECONDS + 1)
    assert offered(fleet.poll()) == [handoff]


def test_a_start_that_is_refused_gives_the_handoff_back(store, make, hand_off, fleet_on, clock):
    """Its id belongs to a living agent: the handoff is offered again at once, to anybody."""
    fleet = fleet_on("audit")
    handoff = hand_off()
    make("busy", run="audit")
    fleet.poll()
    with pytest.raises(AgentAlreadyRunningError):
        make("busy", run="audit", continues=handoff)
    assert offered(fleet.poll()) == [handoff]
    assert make("second", run="audit", continues=handoff).pending() == ITEMS


def test_a_second_owner_takes_nothing_from_a_successor_that_runs(
    store, make, hand_off, fleet_on, clock
):
    """Refused at its start, it gives back nothing: the handoff is in living hands."""
    fleet = fleet_on("audit")
    handoff = hand_off()
    make("second", run="audit", continues=handoff)
    fleet.poll()
    with pytest.raises(AgentAlreadyRunningError):
        make("second", run="audit", continues=handoff)
    clock.advance(LOST_AFTER_SECONDS + 1)
    assert offered(fleet.poll()) == []


def test_a_claim_names_an_agent(store, hand_off):
    """An id that no agent can have is refused before anything is claimed."""
    handoff = hand_off()
    with pytest.raises(ValueError, match="no/agent"):
        handoff.claim("no/agent")
    handoff.claim("second")
