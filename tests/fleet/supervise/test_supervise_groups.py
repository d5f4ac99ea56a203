"""Supervised processes that start others: what is left of a process group is ended with it."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from helpers.run_history import read_events
from helpers.supervised import effects, spawner, start_orchestrator
from helpers.waiting import until

from ultramon import Fleet
from ultramon.backends.lease_holder import name_holder
from ultramon.fleet.supervise import children, supervisor
from ultramon.fleet.supervise.children import process_facts
from ultramon.fleet.supervise.jobs import make_event
from ultramon.fleet.supervise.process_group import ProcessGroup, group_led_by
from ultramon.system.process_search import processes_with
from ultramon.system.processes import process_started_at


@pytest.fixture
def fleet(monkeypatch):
    """A run with little patience."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(children, "TERMINATE_SECONDS", 0.3)
    fleet = Fleet("job", poll_interval_seconds=0.1)
    yield fleet
    fleet.close()


@pytest.fixture(autouse=True)
def no_tool_outlives_its_test(tmp_path):
    yield
    for pid in running_tools(tmp_path):
        os.kill(pid, signal.SIGKILL)


def running_tools(tmp_path):
    """The pids of the programs that agents started and that run."""
    started = [one for one in effects(tmp_path) if isinstance(one, list)]
    return [pid for pid, since in started if process_started_at(pid) == since]


def running_at_each_start(tmp_path, **more):
    """Return a `spawn`, and a list of how many programs ran when it was called."""
    running = []
    start = spawner(tmp_path, "employs", **more)

    def spawn(job):
        running.append(len(running_tools(tmp_path)))
        return start(job)

    return spawn, running


@pytest.mark.parametrize("more", [{}, {"STUBBORN": 1}])
def test_the_programs_of_an_overdue_agent_are_ended_with_it(more, fleet, tmp_path):
    """By SIGTERM, and by SIGKILL where they do not listen, before another agent starts."""
    spawn, running = running_at_each_start(tmp_path, in_a_group=True, **more)
    result = fleet.supervise(spawn, ["wait"], enforce=True, grace_seconds=0)
    assert {context.reason for context in result.contexts} == {"lost (SIGTERM)"}
    assert running == [0, 0, 0]
    assert len(effects(tmp_path)) == 3
    assert running_tools(tmp_path) == []


@pytest.mark.parametrize("more", [{}, pytest.param({"STUBBORN": 1}, marks=pytest.mark.exhaustive)])
def test_what_an_agent_leaves_running_is_ended_before_its_successor_starts(more, fleet, tmp_path):
    """Also where it was killed by somebody else: two would work on the same item."""
    spawn, running = running_at_each_start(tmp_path, in_a_group=True, **more)
    result = fleet.supervise(spawn, ["a", "kill", "b"])
    assert [context.reason for context in result.contexts][:1] == ["lost (SIGKILL)"]
    assert list(result.set_aside) == ["kill"]
    assert result.counts.claimed == 2
    assert len(running) >= 3
    assert set(running) == {0}
    assert running_tools(tmp_path) == []


def test_programs_in_a_group_that_is_not_the_agents_are_left_alone(fleet, tmp_path):
    """It shares ours: nobody can tell whose they are."""
    assert fleet.supervise(spawner(tmp_path, "employs"), ["a", "b"]).ok
    assert len(running_tools(tmp_path)) == 2


def test_an_error_ends_the_whole_group(fleet, tmp_path):
    """The call raises, and nothing of it runs on."""
    spawn = spawner(tmp_path, "employs", in_a_group=True)
    started = []

    def one_then_none(job):
        started.append(spawn(job) if not started else None)
        until(lambda: effects(tmp_path))
        return started[-1]

    with pytest.raises(TypeError, match="spawn returned NoneType"):
        fleet.supervise(one_then_none, ["wait", "b"], workers=2, grace_seconds=0)
    assert started[0].wait(60) in (-signal.SIGTERM, -signal.SIGKILL)
    until(lambda: not running_tools(tmp_path))


@pytest.mark.parametrize("dies_first", [False, True])
def test_the_next_orchestrator_ends_the_group_of_the_one_before(dies_first, fleet, tmp_path):
    """It finds the process in the journal, and what that leaves running as well."""
    first = start_orchestrator(
        tmp_path, "employs", ["wait"], verifies=False, in_a_group=True, workers=1
    )
    until(lambda: effects(tmp_path), first)
    first.kill()
    first.wait()
    first.stdout.close()
    (leader,) = [
        event["pid"] for event in read_events(fleet.backend) if event["type"] == "context_spawned"
    ]
    running_at_start = []

    def refuse(job):
        running_at_start.append(len(running_tools(tmp_path)))
        raise OSError("no more processes")

    options = {} if dies_first else {"deadline_seconds": 0, "grace_seconds": 0}
    second = fleet._supervisor(refuse, None, {"max_restarts": 1, **options})
    second.step()
    if dies_first:
        os.kill(leader, signal.SIGKILL)
    result = second.run()
    assert running_at_start == ([0] if dies_first else [])
    assert result.contexts[0].reason == "lost"
    assert running_tools(tmp_path) == []
    assert process_started_at(leader) is None


def assign(fleet, *more):
    """Assign an item as an orchestrator of this machine did that is gone; return its name."""
    fleet.add_items(["a"])
    holder = name_holder()
    given = {"number": 0, "source": "fleet:main", "at": 0.0, "supervisor": holder}
    assigned = fleet._deliveries.assignments.event("job.1", ["a"], 0, **given)
    fleet.backend.append_events([assigned, *more])
    return holder


def ended_at_start(fleet, tmp_path, *processes):
    """Supervise; return which of the processes had ended when the successor was started."""
    ended = []
    start = spawner(tmp_path, "obey")

    def spawn(job):
        ended.append([process.poll() is not None for process in processes])
        return start(job)

    assert fleet.supervise(spawn).ok
    return ended


def test_a_process_that_is_no_agent_yet_is_found_by_its_marks(fleet, tmp_path):
    """Its orchestrator was killed before it stored the start; the process of another one lives."""
    holder = assign(fleet)
    command = ["tail", "-f", "/dev/null"]
    env = fleet.env("job.1")
    with (
        subprocess.Popen(command, env={**env, "ULTRAMON_SUPERVISED": holder}) as marked,
        subprocess.Popen(command, env={**env, "ULTRAMON_SUPERVISED": name_holder()}) as other,
    ):
        try:
            until(lambda: processes_with({"ULTRAMON_SUPERVISED": holder}), marked)
            assert ended_at_start(fleet, tmp_path, marked, other) == [[True, False]]
            assert marked.returncode == -signal.SIGTERM
        finally:
            marked.kill()
            other.kill()


def test_a_stored_number_that_was_given_away_again_ends_nobody(fleet, tmp_path):
    """Neither as a pid nor as that of a group: nothing proves that it is the same."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, process_group=0) as stranger:
        facts = {**process_facts(stranger.pid), "pidStartedAt": "1", "processGroup": stranger.pid}
        spawned = make_event("job", "job.1", "context_spawned", source="it", at=0.0, **facts)
        assign(fleet, spawned)
        assert ended_at_start(fleet, tmp_path, stranger) == [[False]]
        stranger.stdin.close()
        assert stranger.wait(60) == 0


def test_a_group_is_known_while_its_leader_runs_and_never_ours():
    """A pid alone is no group."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as member:
        assert group_led_by(member.pid) is None
        assert group_led_by(os.getpgrp()) is None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, process_group=0) as leader:
        assert group_led_by(leader.pid) is not None
    assert group_led_by(leader.pid) is None


def test_a_group_whose_number_has_a_new_leader_is_another_one():
    """After the end of the old one was seen, a process with its number is a stranger."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, process_group=0) as stranger:
        assert not ProcessGroup(stranger.pid).runs_without_leader


def test_zombies_of_a_group_do_not_run():
    """Nobody may ever wait for them, and the call would never end."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, process_group=0) as leader:
        member = subprocess.Popen(["cat"], stdin=subprocess.PIPE, process_group=leader.pid)
    group = ProcessGroup(leader.pid)
    assert group.runs_without_leader
    member.stdin.close()
    os.waitid(os.P_PID, member.pid, os.WEXITED | os.WNOWAIT)
    assert not group.runs_without_leader
    member.wait()
    assert not group.runs_without_leader
