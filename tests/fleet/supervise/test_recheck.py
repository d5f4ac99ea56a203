"""A second call of the same run: what was done earlier, and asking about it again."""

from __future__ import annotations

import json
import threading

import pytest
from helpers.run_history import read_events
from helpers.supervised import effects, spawner

from ultramon import ConfigurationError, Fleet
from ultramon.testing.soundness import assert_run_is_sound

ITEMS = ["a", "b", "c"]


@pytest.fixture
def fleet():
    fleet = Fleet("job", poll_interval_seconds=0.2)
    yield fleet
    fleet.close()


def verified_at(fleet):
    events = [event for event in read_events(fleet.backend) if event["type"] == "items_verified"]
    return events[-1]["occurredAt"]


def done_in(tmp_path, asked):
    """A check of the effects that notes what it was asked."""

    def verify(item):
        asked.append(item)
        return item in effects(tmp_path)

    return verify


def test_a_second_call_says_what_an_earlier_one_had_verified_and_when(fleet, tmp_path):
    """It asks nothing again, so it cannot know that the outputs are gone."""
    asked = []
    verify, spawn = done_in(tmp_path, asked), spawner(tmp_path, "obey")
    first = fleet.supervise(spawn, ITEMS, verify=verify)
    assert (first.done_earlier, first.done_earlier_at) == (0, None)
    (tmp_path / "effects").unlink()
    second = fleet.supervise(spawn, ITEMS, verify=verify)
    at = verified_at(fleet)
    shown = f"{at[:10]} {at[11:16]}Z"
    assert str(second).startswith(f"3 of 3 verified (3 by an earlier call, the last {shown}), ")
    facts = json.loads(json.dumps(second.to_json()))
    assert (facts["done_earlier"], facts["done_earlier_at"][:16]) == (3, at[:16])
    assert sorted(asked) == ITEMS


def test_claims_that_nobody_verified_are_of_an_earlier_call_too(fleet, tmp_path):
    """What this call adds is not."""
    fleet.supervise(spawner(tmp_path, "obey"), ["a"])
    result = fleet.supervise(spawner(tmp_path, "obey"), ["a", "b"])
    assert str(result).startswith("2 of 2 claimed (1 by an earlier call, the last ")


def test_recheck_asks_about_all_and_reopens_what_fails(fleet, tmp_path):
    """The items whose outputs are gone are done again, by new contexts, and the rest is not."""
    asked, told = [], []
    spawn = spawner(tmp_path, "obey")
    fleet.supervise(spawn, ITEMS, verify=done_in(tmp_path, []))
    (tmp_path / "effects").write_text('"b"\n')
    result = fleet.supervise(
        spawn, verify=done_in(tmp_path, asked), recheck=True, on_event=told.append
    )
    assert result.raise_for_failure().counts.verified == 3
    assert effects(tmp_path) == ["b", "a", "c"]
    assert sorted(asked) == ["a", "a", "b", "c", "c"]
    assert (result.done_earlier, result.lost) == (0, ())
    (reopened,) = [step for step in told if step.name == "reopened"]
    assert (reopened.agent_id, sorted(reopened.items)) == (None, ["a", "c"])
    assert (reopened.counts.verified, reopened.counts.left) == (1, 2)
    events = read_events(fleet.backend)
    claimed = [event for event in events if event["type"] == "items_claimed"]
    done = [(event["agentId"], item) for event in claimed for item in event["items"]]
    assert_run_is_sound(result, events, done)


def test_at_the_end_every_item_is_asked_about_once_more(fleet, tmp_path):
    """What a later item has undone is done again, and then all of them are asked about again."""
    asked, told = [], []

    def verify(item):
        asked.append(item)
        if asked == ITEMS:
            (tmp_path / "effects").write_text('"b"\n"c"\n')
        return item in effects(tmp_path)

    spawn = spawner(tmp_path, "obey")
    result = fleet.supervise(spawn, ITEMS, verify=verify, recheck_at_end=True, on_event=told.append)
    assert result.raise_for_failure().counts.verified == 3
    assert effects(tmp_path) == ["b", "c", "a"]
    assert asked == [*ITEMS, *ITEMS, "a", *ITEMS]
    steps = [(step.name, step.items) for step in told if step.agent_id is None]
    everything = ("rechecking", ("a", "b", "c"))
    assert steps == [everything, ("reopened", ("a",)), everything]
    again = fleet.supervise(spawn, ITEMS, verify=verify, recheck_at_end=True)
    assert (again.counts.verified, len(asked)) == (3, 10)


def test_what_is_denied_at_the_end_three_times_is_set_aside(fleet, tmp_path):
    """Two items that undo each other would be done for ever."""
    asked = []

    def verify(item):
        asked.append(item)
        return item == "b" or asked.count("a") % 2 == 1

    spawn = spawner(tmp_path, "obey")
    result = fleet.supervise(spawn, ["a", "b"], verify=verify, recheck_at_end=True)
    assert result.set_aside == {"a": "denied at the end 3 times: not verified"}
    assert (result.counts.verified, result.counts.set_aside, result.ok) == (1, 1, False)
    assert asked.count("a") == 6
    events = read_events(fleet.backend)
    claimed = [event for event in events if event["type"] == "items_claimed"]
    done = [(event["agentId"], item) for event in claimed for item in event["items"]]
    assert_run_is_sound(result, events, done)


def test_an_item_can_be_reopened_again_and_again(fleet, tmp_path):
    """Each time for the same reason: those are as many events."""
    spawn = spawner(tmp_path, "obey")
    fleet.supervise(spawn, ["a"], verify=done_in(tmp_path, []))
    for number in (2, 3):
        (tmp_path / "effects").unlink()
        result = fleet.supervise(spawn, verify=done_in(tmp_path, []), recheck=True)
        assert (result.ok, len(result.contexts)) == (True, number)


def test_recheck_continues_a_run_that_is_not_finished(fleet, tmp_path):
    """What was verified in it is not asked again."""
    asked = []
    spawn = spawner(tmp_path, "obey")
    fleet.supervise(spawn, ["a"], verify=done_in(tmp_path, []))
    result = fleet.supervise(spawn, ["a", "b"], verify=done_in(tmp_path, asked), recheck=True)
    assert (result.ok, asked, result.done_earlier) == (True, ["b"], 1)


def test_a_recheck_that_is_cut_off_has_changed_nothing(fleet, tmp_path):
    """The next one asks about all."""
    spawn = spawner(tmp_path, "obey")
    fleet.supervise(spawn, ["a", "b"], verify=done_in(tmp_path, []))
    (tmp_path / "effects").unlink()
    never = threading.Event()

    def verify(item):
        if item == "b":
            fleet.stop()
            never.wait()
        return False

    stopped = fleet.supervise(spawn, verify=verify, recheck=True)
    never.set()
    assert (stopped.stopped, stopped.counts.verified) == ("stopped", 2)
    asked = []
    assert Fleet("job").supervise(spawn, verify=done_in(tmp_path, asked), recheck=True).ok
    assert effects(tmp_path) == ["a", "b"]
    assert asked[:2] == ["a", "b"]


def test_recheck_needs_something_to_ask(fleet):
    """It is refused before anything starts."""
    with pytest.raises(ConfigurationError, match="recheck"):
        fleet.supervise(lambda job: None, ["a"], recheck=True)
    with pytest.raises(ConfigurationError, match="recheck_at_end"):
        fleet.supervise(lambda job: None, ["a"], recheck_at_end=True)
