"""Of many agents only those that may have vanished are judged, and none of these is passed over."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultramon.fleet.check_schedule import CheckSchedule
from ultramon.state.liveness import is_beating
from ultramon.system.processes import MachineIdentity, process_started_at, this_machine
from ultramon.testing.clock import START
from ultramon.testing.samples import make_record

HERE = this_machine()
ELSEWHERE = {"hostname": "elsewhere", "boot_id": "another-boot"}


def remote(agent_id, at=START, **fields):
    return make_record(agent_id, 1, at=at, **{**ELSEWHERE, **fields})


def local(agent_id, **fields):
    pid = os.getpid()
    own = {"hostname": HERE.hostname, "boot_id": HERE.boot_id, "pid": pid}
    return make_record(agent_id, 1, pid_started_at=process_started_at(pid), **{**own, **fields})


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (remote("a"), set()),
        (remote("a", active=False), set()),
        (remote("a", at=START - 46), {"a"}),
        (remote("a", heartbeat_interval_seconds=None), {"a"}),
        (remote("a", lost_after_seconds=20.0, at=START - 21), {"a"}),
        (local("a"), {"a"}),
        (local("a", active=False), set()),
    ],
)
def test_the_first_turn_places_every_agent(record, expected):
    assert CheckSchedule(HERE).due({"a": record}, {}, (), START) == expected


def test_an_agent_comes_up_when_its_beat_grows_old():
    schedule, records = CheckSchedule(HERE), {"a": remote("a")}
    assert schedule.due(records, {"a": START}, (), START) == set()
    assert schedule.due(records, {"a": START}, (), START + 45) == set()
    assert schedule.due(records, {"a": START}, (), START + 46) == {"a"}
    assert schedule.due(records, {"a": START + 46}, (), START + 47) == set()
    assert schedule.due(records, {"a": START + 46}, (), START + 92) == {"a"}


def test_a_beat_in_time_is_found_when_the_old_one_would_end():
    schedule, records = CheckSchedule(HERE), {"a": remote("a")}
    schedule.due(records, {"a": START}, (), START)
    assert schedule.due(records, {"a": START + 40}, (), START + 46) == set()
    assert schedule.due(records, {"a": START + 40}, (), START + 86) == {"a"}


def test_a_clock_that_is_set_back_forgets_what_was_known():
    schedule, records = CheckSchedule(HERE), {"a": remote("a")}
    schedule.due(records, {"a": START + 7200}, (), START + 7200)
    assert schedule.due(records, {}, (), START + 60) == {"a"}


def test_a_beat_may_be_earlier_than_the_one_before():
    """After the clock was set back the older number is the newer beat, and counts in time."""
    schedule, records = CheckSchedule(HERE), {"a": remote("a", at=START - 1)}
    schedule.due(records, {"a": START}, (), START)
    schedule.due(records, {"a": START}, (), START - 1)
    assert schedule.due(records, {"a": START - 1}, (), START + 45) == {"a"}


def test_who_is_gone_is_forgotten():
    schedule = CheckSchedule(HERE)
    assert schedule.due({"a": local("a")}, {}, (), START) == {"a"}
    assert schedule.due({}, {}, ("a",), START + 1) == set()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["beat", "save", "end", "delete", "pass"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(-20, 70),
    ),
    max_size=30,
)


@given(steps=STEPS)
def test_whoever_is_left_out_beats(steps):
    """Whatever happens in whatever order: an active agent that is not judged is plainly alive."""
    schedule = CheckSchedule(HERE)
    records = {name: remote(name) for name in "abc"}
    heartbeats, now = {}, START
    for what, name, seconds in steps:
        changed = set()
        if what == "pass":
            now += seconds
        elif what == "beat":
            heartbeats[name] = now
        elif what == "delete":
            records.pop(name, None)
            changed = {name}
        else:
            records[name] = remote(name, at=now - max(seconds, 0), active=what == "save")
            changed = {name}
        near = schedule.due(records, heartbeats, changed, now)
        assert near <= set(records)
        for agent_id, record in records.items():
            if record.active and agent_id not in near:
                assert is_beating(record, heartbeats.get(agent_id), now, HERE)


def test_a_host_is_known_by_name_and_boot():
    same_name = MachineIdentity(HERE.hostname, "another-boot")
    assert CheckSchedule(same_name).due({"a": local("a")}, {"a": START}, (), START) == set()
