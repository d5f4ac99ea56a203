"""`ultramon.worker`: the loop of an agent, supervised or not."""

from __future__ import annotations

import signal

import pytest
from helpers.postgres_network import answers, network  # noqa: F401
from helpers.waiting import until

from ultramon import (
    ConfigurationError,
    ContextConfig,
    Fleet,
    HandoffTakenError,
    StateError,
    open_backend,
    worker,
)
from ultramon.fleet.supervise.jobs import make_event
from ultramon.testing import fill

CONFIG = ContextConfig(context_limit_tokens=10_000, on_error="raise")


def stored(agent):
    return open_backend().load(agent.agent_id).record


def status(agent):
    return {task["name"]: task["status"] for task in stored(agent).tasks}


@pytest.fixture
def assign(monkeypatch):
    """Put this process into the place of a supervised context."""
    files = Fleet("job")

    def assign(work, agent_id="job.1", fleet=files):
        backend, cursor = fleet.backend, None
        while (page := backend.events(cursor)).events:
            cursor = page.cursor
        fleet.assign(agent_id, work)
        for name, value in {
            **fleet.env(agent_id),
            "ULTRAMON_SUPERVISED": "1",
            "ULTRAMON_ASSIGNMENT": cursor or "",
        }.items():
            monkeypatch.setenv(name, value)
        return fleet

    return assign


def test_on_its_own_it_is_a_plain_agent():
    """Each item is begun, in work, and done when the loop asks for the next."""
    with worker(CONFIG, items=["a", "b"]) as agent:
        for item in agent.pending():
            agent.track_content("some text")
            assert status(agent)[item] == "in_progress"
            if item == "b":
                assert status(agent)["a"] == "done"
    assert stored(agent).outcome == "completed"
    assert stored(agent).handoff is None


def test_at_the_warning_the_loop_ends_between_two_items():
    """What is left is handed off when the block ends, with the notes."""
    with worker(CONFIG, items=["a", "b", "c"], goal="read") as agent:
        for _item in agent.pending():
            fill(agent.monitor, 0.7)
            agent.notes = "a is odd"
    record = stored(agent)
    assert (record.outcome, record.handoff["reason"]) == ("returned", "threshold_warning")
    assert record.handoff["completed"] == ["a"]
    assert record.handoff["remaining"] == ["b", "c"]
    assert (record.handoff["notes"], record.handoff["goal"]) == ("a is odd", "read")


def test_it_may_wait_for_the_critical_level():
    """For agents whose items are small."""
    with worker(CONFIG, items=["a", "b", "c"], hand_over_at="critical") as agent:
        fill(agent.monitor, 0.72)
        for item in agent.pending():
            fill(agent.monitor, 0.74 if item == "a" else 0.85)
    assert status(agent) == {"a": "done", "b": "done", "c": "pending"}


@pytest.mark.parametrize(
    ("hand_over_at", "ratios"),
    [("critical", [0.30, 0.50, 0.80]), ("warning", [0.30, 0.65])],
)
def test_an_item_that_would_reach_the_critical_level_is_left_to_the_next_context(
    hand_over_at, ratios
):
    """By what the largest item so far took, the next one would not fit."""
    items = [f"item {number}" for number in range(9)]
    with worker(CONFIG, items=items, hand_over_at=hand_over_at) as agent:
        for _item, ratio in zip(agent.pending(), ratios, strict=False):
            fill(agent.monitor, ratio)
    record = stored(agent)
    assert record.handoff["completed"] == items[: len(ratios)]
    assert record.handoff["interrupted"] == []
    assert (record.usage_ratio, record.handoff["reason"]) == (ratios[-1], "threshold_critical")


def test_the_first_item_comes_whatever_it_takes():
    """A context that gave none out would be followed by another, for ever."""
    with worker(CONFIG, items=["a", "b"], hand_over_at="critical") as agent:
        fill(agent.monitor, 0.84)
        assert [item for item in agent.pending() if fill(agent.monitor, 0.99)] == ["a"]


def test_an_item_that_the_loop_is_left_in_is_interrupted():
    """It may be half done, and the next context begins with it."""
    with worker(CONFIG, items=["a", "b"]) as agent:
        for _item in agent.pending():
            break
    assert stored(agent).handoff["interrupted"] == ["a"]


def test_an_exception_leaves_a_handoff_too():
    """The notes are not lost with it, and it passes on."""
    agents = []

    def work():
        with worker(CONFIG, items=["a", "b"]) as agent:
            agents.append(agent)
            for _item in agent.pending():
                agent.notes = "so far"
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    record = stored(agents[0])
    assert (record.outcome, record.exit) == ("failed", {"error": "ZeroDivisionError"})
    assert (record.handoff["reason"], record.handoff["interrupted"]) == ("error", ["a"])
    assert record.handoff["notes"] == "so far"


def test_a_supervised_one_does_what_it_was_assigned(assign):
    """Its own items are for when it is not supervised."""
    assign(["x", "y"])
    with worker(CONFIG, items=["a"]) as agent:
        assert (agent.agent_id, agent.handoff) == ("job.1", None)
        assert list(agent.pending()) == ["x", "y"]
    assert stored(agent).run == "job"


def test_a_successor_has_the_handoff_and_wins_its_claim(assign):
    """It reads exactly its own assignment, wherever that is in the journal."""
    with worker(CONFIG, items=["a", "b"]) as first:
        for _item in first.pending():
            fill(first.monitor, 0.9)
            first.notes = "page 7"
    left = Fleet().poll()[-2].handoff
    assign(left, "job.2")
    with worker(CONFIG) as agent:
        assert agent.handoff.notes == "page 7"
        assert list(agent.pending()) == ["b"]
    with pytest.raises(HandoffTakenError):
        left.claim("another")


def test_work_that_was_put_back_before_it_began_is_not_its_work(assign):
    """An orchestrator took over and assigned the items anew."""
    fleet = assign(["x"])
    lost = make_event("job", "job.1", "agent_lost", source="fleet:main", at=0.0, outcome="lost")
    fleet.backend.append_events([lost])
    with worker(CONFIG) as agent:
        assert agent.should_hand_over
        assert list(agent.pending()) == []
    assert (stored(agent).outcome, stored(agent).handoff) == ("cancelled", None)


def put_back(fleet):
    """Close the context of job.1, as a supervisor does."""
    facts = {"reason": "lost", "died": True, "killed": False, "progress": False}
    closed = make_event(
        "job", "job.1", "context_closed", source="it", at=1.0, begun=[], blamed=[], **facts
    )
    fleet.backend.append_events([closed])


def test_work_that_is_put_back_while_it_works_is_not_its_work_any_more(assign):
    """It was lost by silence, and comes back: it begins nothing more, and leaves nothing."""
    fleet = assign(["x", "y"])
    begun = []
    with worker(CONFIG) as agent:
        for item in agent.pending():
            begun.append(item)
            put_back(fleet)
        assert agent.should_hand_over
    assert begun == ["x"]
    record = stored(agent)
    assert (record.outcome, record.handoff) == ("cancelled", None)


def test_in_the_middle_of_an_item_it_is_asked_to_leave_as_well(assign):
    """It looks as often as it beats."""
    fleet = assign(["x", "y"])
    config = ContextConfig(context_limit_tokens=10_000, heartbeat_interval_seconds=0.01)
    with worker(config) as agent:
        for _item in agent.pending():
            assert not agent.should_hand_over
            put_back(fleet)
            until(lambda: agent.should_hand_over)
            break
    assert stored(agent).outcome == "cancelled"


def test_cut_off_for_as_long_as_it_may_be_silent_it_begins_nothing_more(
    network, assign, monkeypatch
):
    """Its work may be in other hands by now; its handoff says what is left, where it is not."""
    monkeypatch.setenv("ULTRAMON_BACKEND", network.url)
    fleet = Fleet("job")
    assign(["x", "y"], fleet=fleet)
    config = ContextConfig(
        context_limit_tokens=10_000, heartbeat_interval_seconds=0.2, lost_after_seconds=1.0
    )
    begun = []
    with worker(config) as agent:
        for item in agent.pending():
            begun.append(item)
            network.refuse()
            until(lambda: agent.should_hand_over)
        network.accept()
        until(lambda: answers(fleet.backend))
    assert begun == ["x"]
    record = stored(agent)
    assert (record.outcome, record.handoff["remaining"]) == ("returned", ["y"])
    fleet.close()


def test_without_its_assignment_it_does_not_begin(assign, monkeypatch):
    """A child of another agent's process has that one's environment, and not its work."""
    assign(["x"])
    monkeypatch.setenv("ULTRAMON_AGENT_ID", "other")
    with pytest.raises(StateError, match="no work is assigned to agent other"):
        worker(CONFIG)


def test_without_a_job_and_without_items_it_says_what_is_missing(caplog):
    """An agent with items of its own, though they are none, is one."""
    with worker(CONFIG) as agent:
        assert list(agent.pending()) == []
    assert "pass env=job.env to the process that supervise starts" in caplog.text
    caplog.clear()
    with worker(CONFIG, items=[]) as agent:
        assert list(agent.pending()) == []
    assert caplog.text == ""


def test_a_supervised_one_ignores_ctrl_c_inside_the_block(assign):
    """A terminal interrupts the whole group; the supervisor asks for the return."""
    before = signal.getsignal(signal.SIGINT)
    with worker(CONFIG, items=["a"]) as agent:
        assert signal.getsignal(signal.SIGINT) is before
        list(agent.pending())
    assign(["x"])
    with worker(CONFIG) as agent:
        signal.raise_signal(signal.SIGINT)
        assert list(agent.pending()) == ["x"]
    assert signal.getsignal(signal.SIGINT) is before


def test_there_are_two_levels_to_hand_over_at():
    """Another one is a mistake, named."""
    with pytest.raises(ConfigurationError, match="hand_over_at"):
        worker(hand_over_at="soon")


def test_readings_go_to_the_monitor():
    """Whichever way the model's SDK counts."""
    with worker(CONFIG, items=[]) as agent:
        agent.report_usage(input_tokens=6000)
        assert agent.monitor.get_state().estimated_tokens == 6000
        agent.report_response({"usage": {"input_tokens": 7000, "output_tokens": 0}})
        assert agent.should_hand_over
