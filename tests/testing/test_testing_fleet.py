"""The fleet's part of the test kit: `ultramon_fleet` and `assert_no_work_lost`."""

import subprocess
import sys

import pytest

from ultramon import HandoffRecord, create_context_monitor
from ultramon.testing import FakeClock, ScriptedAgent, assert_no_work_lost

KILLED = """
import os, signal
from ultramon import create_context_monitor

monitor = create_context_monitor("victim", run="audit").start()
monitor.plan(["a", "b", "c"])
with monitor.task("a"):
    pass
monitor.update_heartbeat()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def begin(make, ultramon_clock):
    """Start an agent of the run `audit` with a plan."""

    def begin(agent_id, *items, **given):
        monitor = make(agent_id, run="audit", **given)
        monitor.plan(items)
        monitor.update_heartbeat()
        return monitor

    return begin


@pytest.fixture
def check(store, ultramon_clock):
    """Check the run `audit`."""
    return lambda: assert_no_work_lost("audit", store, clock=ultramon_clock)


def test_a_fleet_on_the_fake_clock_sees_the_monitors_of_the_kit(ultramon_fleet, ultramon_monitor):
    """Both fixtures share clock and backend, so a poll delivers what the agent did."""
    fleet = ultramon_fleet("audit")
    ScriptedAgent(ultramon_monitor("scout", run="audit"), [("fill", 0.75), ("stop",)]).run()
    assert [event.name for event in fleet.poll()] == ["started", "prepare_handoff", "ended"]
    assert fleet.poll() == []


def test_a_fleet_on_the_fake_clock_judges_by_that_clock(
    ultramon_fleet, ultramon_monitor, ultramon_clock
):
    """Three silent intervals make an agent stale, without anybody waiting."""
    fleet = ultramon_fleet()
    agent = ultramon_monitor("scout")
    fleet.poll()
    agent._writer._saver.discard(agent._writer, saved=True)  # as if its thread hung
    ultramon_clock.advance(46)
    assert [event.name for event in fleet.poll()] == ["stale"]


def test_two_fleets_of_one_consumer_name_stand_by_for_each_other(ultramon_fleet, ultramon_monitor):
    """Only the first delivers; another name gets everything for itself."""
    first, second, other = ultramon_fleet(), ultramon_fleet(), ultramon_fleet(consumer="other")
    ultramon_monitor("scout")
    assert [len(fleet.poll()) for fleet in (first, second, other)] == [1, 0, 1]


def test_work_that_is_done_is_not_lost(begin, check):
    """An ended agent whose whole plan is done leaves nothing to look for."""
    agent = begin("w-1", "a", "b")
    for item in agent.pending():
        with agent.task(item):
            pass
    agent.stop()
    check()


def test_work_in_living_hands_is_not_lost(begin, check):
    """An agent that is active and beats has not given up anything."""
    begin("w-1", "a", "b")
    check()


def test_work_of_an_agent_that_ended_without_a_handoff_is_lost(begin, check):
    """The items and the agent that had them are named, whatever its outcome says."""
    begin("w-1", "a", "b").stop()
    with pytest.raises(AssertionError) as raised:
        check()
    assert str(raised.value) == (
        "run audit: 2 of 2 planned items are lost\n"
        "  a: w-1 (ended: completed)\n"
        "  b: w-1 (ended: completed)"
    )


def test_work_in_a_handoff_that_nobody_took_is_not_lost(begin, check):
    """It waits for a successor."""
    agent = begin("w-1", "a", "b")
    agent.hand_off()
    agent.stop()
    check()


def test_work_that_a_successor_took_and_dropped_is_lost(begin, check):
    """A handoff protects its items only until somebody carries on; all who had them are named."""
    first = begin("w-1", "a", "b")
    record = first.hand_off()
    first.stop()
    second = begin("w-2", continues=record)
    with second.task("a"):
        pass
    check()
    second.stop("failed")
    with pytest.raises(AssertionError, match="1 of 2 planned") as raised:
        check()
    assert "  b: w-1 (ended: completed), w-2 (ended: failed)" in str(raised.value)


def test_assigned_items_that_nobody_did_are_lost(begin, check, ultramon_fleet, store):
    """Also those that no plan names: given before the start, never done, and in no handoff."""
    fleet = ultramon_fleet("audit", backend=store)
    fleet.assign("w-1", ["a", "b"])
    fleet.assign("w-2", ["c"])
    agent = begin("w-1", "a")
    agent.complete_task("a")
    with pytest.raises(AssertionError, match=r"1 of 3 planned items are lost\n  c: w-2 \(not st"):
        check()
    begin("w-2", "c").complete_task("c")
    check()
    agent.stop()
    with pytest.raises(AssertionError, match=r"1 of 3 planned.*\n  b: w-1 \(ended: completed\)"):
        check()
    fleet.poll()
    check()


def test_an_agent_that_died_without_a_plan_proves_nothing(
    begin, check, ultramon_fleet, ultramon_clock, store
):
    """Nothing says what it had to do, noticed by a fleet or not; an assignment does."""
    fleet, hung = ultramon_fleet("audit", backend=store), FakeClock()
    begin("w-1", "a").complete_task("a")
    begin("w-2", clock=hung, lost_after_seconds=60)
    fleet.assign("w-3", ["a"])
    begin("w-3", clock=hung, lost_after_seconds=60)
    ultramon_clock.advance(100)
    expected = r"died without a plan, nobody knows their work:\n  w-2 \(lost: no heartbeat"
    for _ in range(2):
        with pytest.raises(AssertionError, match=expected) as raised:
            check()
        assert "w-3" not in str(raised.value)
        fleet.poll()


def test_work_taken_over_by_plan_and_not_by_continues_counts_as_taken(begin, check):
    """An orchestrator may give the items on as arguments: the last one who planned them decides."""
    first = begin("w-1", "a")
    first.hand_off()
    first.stop()
    second = begin("w-2", "a")
    check()
    second.stop("cancelled")
    with pytest.raises(AssertionError, match="w-2"):
        check()


def test_only_the_last_handoff_of_an_agent_protects_its_items(begin, check):
    """A record that was replaced is none that waits."""
    first = begin("w-1", "a", "b")
    first.hand_off()
    record = first.hand_off()
    first.stop()
    begin("w-2", continues=record).stop("failed")
    with pytest.raises(AssertionError, match="2 of 2"):
        check()


def test_a_second_handoff_of_one_epoch_protects_nothing(begin, check):
    """One successor can claim what an agent leaves in one epoch; what that one dropped is lost."""
    first = begin("w-1", "a")
    record = first.hand_off()
    begin("w-2", continues=record).stop("failed")
    first.hand_off()
    first.stop()
    with pytest.raises(AssertionError, match="1 of 1"):
        check()


def test_an_item_done_by_anyone_is_done(begin, check):
    """Also when the one who did it is known from its handoff alone: its state is a new life's."""
    first = begin("w-1", "a", "b")
    with first.task("a"):
        pass
    record = first.hand_off()
    first.stop()
    successor = begin("w-2", continues=record)
    again = begin("w-1", "z")
    for agent, item in ((successor, "b"), (again, "z")):
        with agent.task(item):
            pass
        agent.stop()
    check()


def test_an_agent_that_continues_itself_has_taken_its_handoff(begin, check):
    """A new life under the same id may drop the items too."""
    first = begin("w-1", "a")
    record = first.hand_off()
    first.stop()
    begin("w-1", continues=record).stop()
    with pytest.raises(AssertionError, match="1 of 1"):
        check()


def test_work_of_a_killed_process_is_lost_until_a_fleet_saves_it(tmp_path):
    """Without a fleet no agent has b and c; a fleet rebuilds the handoff, a successor does it."""
    from ultramon import Fleet

    killed = subprocess.run([sys.executable, "-c", KILLED], check=False, timeout=60)
    assert killed.returncode == -9
    with pytest.raises(AssertionError, match=r"2 of 3 planned.*\n  b: victim \(lost: process"):
        assert_no_work_lost("audit")

    fleet = Fleet("audit")
    (handoff,) = [event.handoff for event in fleet.poll() if event.name == "handoff_ready"]
    fleet.close()
    assert isinstance(handoff, HandoffRecord)
    assert_no_work_lost("audit")
    with create_context_monitor("successor", run="audit", continues=handoff) as successor:
        for item in successor.pending():
            with successor.task(item):
                pass
    assert_no_work_lost("audit")


def test_a_run_without_agents_proves_nothing(check):
    """A misspelt run must not pass."""
    with pytest.raises(AssertionError, match="no agent of run audit is stored in"):
        check()


@pytest.mark.parametrize("store", ["memory", "file"], indirect=True)
def test_a_state_that_cannot_be_read_proves_nothing(begin, check, store, tmp_path):
    """It may hold items that no agent has named."""
    begin("w-1").stop()
    if store.url == "memory:":
        store.directory.states["w-1"] = b"{}"
    else:
        (tmp_path / "state" / "subagents" / "w-1.json").write_bytes(b"{}")
    with pytest.raises(AssertionError, match="states cannot be read:\n  w-1: "):
        check()


def test_other_runs_are_not_looked_at(begin, check, make):
    """What another orchestration loses is its own affair."""
    begin("w-1").stop()
    other = make("x-1", run="other")
    other.plan(["a"])
    other.stop()
    check()
