"""Stale, lost or alive, judged by heartbeats and by real processes."""

import os
import resource
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultramon.state.liveness import is_beating, judge, lost_after
from ultramon.state.record import StateRecord
from ultramon.system.processes import (
    MachineIdentity,
    boot_seconds,
    process_started_at,
    this_machine,
)

NOW = 1_700_000_000.0
HERE = this_machine()
ELSEWHERE = MachineIdentity("another-host", "another-boot")
HOUR, MONTH = 3_600.0, 30 * 86_400.0


def agent(**values):
    """An active agent of this very process that beat just now."""
    fields = {
        "active": True,
        "phase": "working",
        "started_at": NOW - HOUR,
        "last_heartbeat": NOW,
        "heartbeat_interval_seconds": 15.0,
        "pid": os.getpid(),
        "pid_started_at": process_started_at(os.getpid()),
        "hostname": HERE.hostname,
        "boot_id": HERE.boot_id,
    }
    return StateRecord("a", **{**fields, **values})


def silent(seconds, **values):
    """The verdict about a remote agent that was silent so long."""
    record = agent(
        started_at=NOW - seconds,
        last_heartbeat=NOW - seconds,
        hostname=ELSEWHERE.hostname,
        boot_id=ELSEWHERE.boot_id,
        **values,
    )
    return judge(record, None, NOW, HERE)


@pytest.fixture
def gone():
    """The pid and start mark of a child process that has exited and been reaped."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        mark = process_started_at(child.pid)
    assert mark is not None
    return child.pid, mark


@pytest.mark.parametrize(
    ("seconds", "values", "verdict"),
    [
        (0, {}, "alive"),
        (45, {}, "alive"),
        (45.1, {}, "stale"),
        (600, {}, "stale"),
        (600.1, {}, "lost"),
        (899, {"heartbeat_interval_seconds": 300.0}, "alive"),
        (901, {"heartbeat_interval_seconds": 300.0}, "stale"),
        (3000, {"heartbeat_interval_seconds": 300.0}, "stale"),
        (3001, {"heartbeat_interval_seconds": 300.0}, "lost"),
        (101, {"lost_after_seconds": 100.0}, "lost"),
        (99, {"lost_after_seconds": 100.0}, "stale"),
        (20, {"lost_after_seconds": 10.0}, "lost"),
        (5000, {"lost_after_seconds": 9000.0}, "stale"),
        (MONTH, {"heartbeat_interval_seconds": None}, "alive"),
        (600, {"phase": "waiting"}, "alive"),
        (601, {"phase": "waiting"}, "lost"),
        (MONTH, {"phase": "in_tool"}, "lost"),
        (MONTH, {"active": False, "outcome": "completed"}, "ended"),
        (0, {"active": False}, "ended"),
    ],
)
def test_silence_is_judged_by_the_agents_own_interval(seconds, values, verdict):
    """Three intervals are stale, ten or ten minutes are lost; who waits is never stale."""
    assert silent(seconds, **values).verdict == verdict


def test_a_process_that_waits_here_is_alive_however_long_it_was_silent():
    """A suspended machine beats nothing; its waiting agent continues with the next key press."""
    record = agent(phase="waiting", started_at=NOW - MONTH, last_heartbeat=NOW - MONTH)
    assert judge(record, None, NOW, HERE).verdict == "alive"


def test_an_ended_agent_tells_its_outcome():
    """The reason is how it ended, whatever its process and heartbeat do."""
    assert silent(MONTH, active=False, outcome="failed").reason == "failed"
    assert silent(MONTH, active=False).reason == "ended"


def test_the_default_patience_is_ten_minutes_or_ten_intervals():
    """lost_after is the larger of the two unless the agent says otherwise."""
    assert lost_after(agent()) == 600.0
    assert lost_after(agent(heartbeat_interval_seconds=120.0)) == 1200.0
    assert lost_after(agent(heartbeat_interval_seconds=None)) == 600.0
    assert lost_after(agent(lost_after_seconds=5)) == 5.0


def test_a_living_process_is_no_proof_of_progress():
    """A hung agent on this machine becomes stale and lost by silence like any other."""
    old = {"started_at": NOW - HOUR, "last_heartbeat": NOW - 60}
    assert judge(agent(**old), None, NOW, HERE).verdict == "stale"
    assert judge(agent(), None, NOW, HERE).verdict == "alive"


def test_a_process_that_is_gone_is_lost_at_once(gone):
    """On its own machine a vanished process needs no silence, even while it waits."""
    pid, mark = gone
    for phase in ("working", "in_tool", "waiting"):
        verdict = judge(agent(pid=pid, pid_started_at=mark, phase=phase), NOW, NOW, HERE)
        assert (verdict.verdict, verdict.reason) == ("lost", f"process {pid} is gone")
    record = agent(pid=pid, pid_started_at=None, heartbeat_interval_seconds=None)
    assert judge(record, None, NOW, HERE).verdict == "lost"


def test_a_zombie_is_gone():
    """A process that ended and was not reaped yet does no more work."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        mark = process_started_at(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert os.path.exists(f"/proc/{child.pid}/stat")
        assert process_started_at(child.pid) is None
        verdict = judge(agent(pid=child.pid, pid_started_at=mark), NOW, NOW, HERE)
        assert verdict.verdict == "lost"


def test_a_reused_pid_is_not_the_agent():
    """The same number with another start is another process."""
    assert judge(agent(pid_started_at="1"), NOW, NOW, HERE).verdict == "lost"
    assert judge(agent(pid_started_at=None), NOW, NOW, HERE).verdict == "alive"
    assert judge(agent(pid_started_at="unknown"), NOW, NOW, HERE).verdict == "alive"


def test_out_of_descriptors_nobody_is_lost(gone):
    """A process whose start cannot be read still runs; one that is gone is still gone."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        mark = process_started_at(os.getpid())
        verdict = judge(agent(), NOW, NOW, HERE).verdict
        late = process_started_at(gone[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (mark, verdict, late) == ("unknown", "alive", None)


@pytest.mark.parametrize("machine", [{"hostname": "elsewhere"}, {"boot_id": "earlier"}], ids=str)
def test_a_pid_means_nothing_on_another_machine_or_boot(machine, gone):
    """There only silence counts."""
    pid, mark = gone
    record = agent(pid=pid, pid_started_at=mark, **machine)
    assert judge(record, NOW, NOW, HERE).verdict == "alive"
    assert judge(record, NOW, NOW + 700, HERE).verdict == "lost"


EARLIER = {"boot_id": "earlier:[1]", "heartbeat_interval_seconds": None}


@pytest.mark.parametrize(
    ("ago", "values", "verdict"),
    [
        (100, EARLIER, "lost"),
        (-100, EARLIER, "alive"),
        (100, EARLIER | {"phase": "waiting"}, "lost"),
        (100, EARLIER | {"hostname": "elsewhere"}, "alive"),
        (100, EARLIER | {"pid": None}, "alive"),
        (100, EARLIER | {"boot_id": ":[1]"}, "alive"),
        (100, EARLIER | {"boot_id": f"{HERE.boot_id.partition(':')[0]}:[1]"}, "alive"),
    ],
    ids=str,
)
def test_without_heartbeats_a_new_start_of_the_machine_ends_it(ago, values, verdict):
    """Where its last sign is older: a session of a coding agent, whose process nobody can see."""
    at = NOW - boot_seconds() - ago
    found = judge(agent(started_at=at, last_heartbeat=at, **values), None, NOW, HERE)
    assert found.verdict == verdict
    assert not found.is_gone


def test_an_agent_without_a_pid_is_judged_by_silence():
    """What has no process of its own can only be heard."""
    assert judge(agent(pid=None), NOW, NOW, HERE).verdict == "alive"
    assert judge(agent(pid=None), NOW, NOW + 100, HERE).verdict == "stale"


def test_the_newest_sign_of_life_counts():
    """Heartbeat file, state and start: whichever is the latest."""
    record = agent(started_at=NOW - 5000, last_heartbeat=NOW - 4000)
    assert judge(record, NOW - 10, NOW, HERE).heartbeat_age_seconds == 10
    assert judge(record, None, NOW, HERE).verdict == "lost"
    newborn = agent(started_at=NOW - 5, last_heartbeat=0.0)
    assert judge(newborn, None, NOW, HERE).verdict == "alive"


@pytest.mark.parametrize(
    ("ahead", "skewed"), [(0, False), (5, False), (5.1, True), (HOUR, True), (MONTH, True)]
)
def test_a_heartbeat_from_the_future_counts_as_now_and_is_flagged(ahead, skewed):
    """More than five seconds ahead is a wrong clock: reported, and never a negative age."""
    verdict = judge(agent(last_heartbeat=NOW + ahead), None, NOW, HERE)
    assert (verdict.verdict, verdict.clock_skew) == ("alive", skewed)
    assert verdict.heartbeat_age_seconds == 0.0


@pytest.mark.parametrize("jump", [-HOUR, HOUR, -MONTH, 2_147_483_648.0 - NOW])
def test_a_jump_of_the_clock_is_over_with_the_next_beat(jump):
    """Beats and judge read one clock: after one more beat on it the agent is alive again."""
    record = agent(hostname=ELSEWHERE.hostname)
    now = NOW + jump
    before = judge(record, NOW, now, HERE)
    assert before.verdict == ("alive" if jump < 0 else "lost")
    assert before.clock_skew is (jump < 0)
    after = judge(record, now, now, HERE)
    assert after.verdict == "alive"
    assert judge(record, now, now + 40, HERE).verdict == "alive"


@given(
    st.floats(0, 4e9),
    st.none() | st.floats(0, 4e9),
    st.floats(0, 4e9),
    st.none() | st.floats(0.001, 1e6),
    st.none() | st.floats(0.001, 1e6),
    st.sampled_from(["working", "in_tool", "waiting"]),
)
def test_more_silence_never_makes_an_agent_livelier(started, beat, now, interval, lost, phase):
    """Any stamps give a verdict, and a later look is never a better one."""
    record = agent(
        started_at=started,
        last_heartbeat=started,
        heartbeat_interval_seconds=interval,
        lost_after_seconds=lost,
        phase=phase,
        hostname=ELSEWHERE.hostname,
    )
    order = ["alive", "stale", "lost"]
    first, later = judge(record, beat, now, HERE), judge(record, beat, now + 1000, HERE)
    assert order.index(first.verdict) <= order.index(later.verdict)
    assert first.heartbeat_age_seconds is None or first.heartbeat_age_seconds >= 0


def test_this_process_runs_and_impossible_ones_do_not():
    """A start mark stays the same while a process lives; there is no process 0 or below."""
    assert process_started_at(os.getpid()) == process_started_at(os.getpid()) is not None
    assert process_started_at(0) is None
    assert process_started_at(-1) is None
    assert process_started_at(2**30) is None


@given(
    st.floats(-100, 100),
    st.none() | st.floats(-100, 100),
    st.none() | st.floats(0, 60),
    st.none() | st.floats(0, 60),
    st.sampled_from(["working", "waiting"]),
    st.sampled_from([HERE, ELSEWHERE]),
    st.sampled_from([None, process_started_at(os.getpid()), "1", "unknown"]),
    st.sampled_from([None, os.getpid(), 2**30]),
)
def test_who_is_beating_is_alive(saved, age, interval, lost, phase, machine, mark, pid):
    """The cheap question never says yes where the judge would not."""
    record = agent(
        heartbeat_interval_seconds=interval,
        last_heartbeat=NOW - saved,
        lost_after_seconds=lost,
        phase=phase,
        hostname=machine.hostname,
        boot_id=machine.boot_id,
        pid_started_at=mark,
        pid=pid,
    )
    beat = None if age is None else NOW - age
    if is_beating(record, beat, NOW, HERE):
        assert judge(record, beat, NOW, HERE).verdict == "alive"


def test_a_usual_agent_is_beating():
    """Within three intervals of its last beat, while its process runs, and no longer."""
    quiet = NOW - HOUR
    assert is_beating(agent(), None, NOW + 45, HERE)
    assert is_beating(agent(last_heartbeat=quiet), NOW - 45, NOW, HERE)
    assert not is_beating(agent(last_heartbeat=quiet), NOW - 46, NOW, HERE)
    assert not is_beating(agent(lost_after_seconds=20), None, NOW + 21, HERE)
    assert not is_beating(agent(pid=2**30), NOW, NOW, HERE)
    assert not is_beating(agent(heartbeat_interval_seconds=None), NOW, NOW, HERE)
