"""Several processes and one agent: take-overs, forks, held locks, clocks that jump."""

from __future__ import annotations

import logging
import signal

import pytest
from helpers.fault_writer import AGENT, IMPATIENT, NOW, VERBS, answer, finish, run_writer

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import AgentAlreadyRunningError, FencedError, StateWriteError
from ultramon.state.liveness import ALIVE, LOST, STALE, judge
from ultramon.system.processes import this_machine
from ultramon.testing.clock import FakeClock

HOUR = 3600.0


def tell(process, count):
    """Let an owner write so many times; return (written, fenced, refused heartbeats)."""
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    return answer(process)


@pytest.mark.parametrize("writes", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_of_two_processes_with_one_id_only_the_newer_writes(tmp_path, writes):
    """After a take-over the old owner's writes are all refused and its heartbeat is none."""
    files = StateDirectory(str(tmp_path))
    old = run_writer(tmp_path, "own", "fair")
    assert answer(old) == 1
    assert tell(old, 10) == [10, 0, []]
    new = run_writer(tmp_path, "own", "takeover")
    assert answer(new) == 2
    for process in (old, new):
        process.stdin.write(f"{writes}\n")
        process.stdin.flush()
    assert answer(new) == [writes, 0, []]
    assert answer(old) == [0, writes, [AGENT]]
    record = files.read(AGENT)
    assert (record.generation, record.seq, record.pid) == (2, 10 + writes, new.pid)
    assert finish(old) == finish(new) == []


def test_a_take_over_in_the_middle_of_writing_loses_no_write_of_the_new_owner(tmp_path):
    """Racing for the lock, the old owner stops at one moment and never writes after it."""
    old = run_writer(tmp_path, "own", "fair")
    answer(old)
    old.stdin.write("400\n")
    old.stdin.flush()
    new = run_writer(tmp_path, "own", "takeover")
    answer(new)
    assert tell(new, 200)[0] == 200
    written, fenced, refused = answer(old)
    assert written + fenced == 400
    assert refused == ([AGENT] if fenced else refused)
    record = StateDirectory(str(tmp_path)).read(AGENT)
    assert (record.generation, record.pid) == (2, new.pid)
    assert tell(old, 5) == [0, 5, [AGENT]]
    finish(old)
    finish(new)


def test_a_living_owner_is_not_replaced_without_asking(tmp_path):
    """A second start says who owns the agent, and the owner continues undisturbed."""
    owner = run_writer(tmp_path, "own", "fair")
    answer(owner)
    newcomer = create_context_monitor(
        AGENT, backend=LocalBackend(str(tmp_path)), clock=FakeClock(NOW)
    )
    with pytest.raises(AgentAlreadyRunningError) as caught:
        newcomer.start()
    assert caught.value.pid == owner.pid
    assert tell(owner, 3) == [3, 0, []]
    finish(owner)


def test_a_restart_after_a_kill_continues_with_the_next_generation(tmp_path):
    """A killed owner needs no take-over: same epoch and level, next generation, no new alarm."""
    killed = run_writer(tmp_path, "verbs", "log", "no-stop", "wait")
    answer(killed)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    killed.communicate()
    backend = LocalBackend(str(tmp_path))
    before = backend.load(AGENT).record
    assert (before.generation, before.active, before.threshold_status) == (1, True, "critical")
    crossings = count_events(backend, "context_threshold_reached")
    config = ContextConfig(context_limit_tokens=10_000, on_error="raise")
    with create_context_monitor(AGENT, config, backend=backend, clock=FakeClock()) as monitor:
        state = monitor.get_state()
        assert (state.generation, state.epoch) == (2, before.epoch)
        assert state.threshold_status == "critical"
        assert monitor.report_usage(input_tokens=9600).should_return
        assert monitor.pending() == ["two", "three"]
    assert count_events(backend, "context_threshold_reached") == crossings
    assert backend.load(AGENT).record.seq > before.seq
    backend.close()


def count_events(backend, kind):
    return sum(event["type"] == kind for event in backend.events().events)


def test_a_fenced_monitor_says_so_and_changes_nothing(tmp_path):
    """With ``raise`` the next save of the old owner raises; whatever follows stores nothing."""
    old_clock, new_clock = FakeClock(), FakeClock()
    config = ContextConfig(context_limit_tokens=1000, on_error="raise")
    backend = LocalBackend(str(tmp_path))
    old = create_context_monitor(AGENT, config, backend=backend, clock=old_clock).start()
    new = create_context_monitor(
        AGENT, config, backend=backend, clock=new_clock, takeover=True
    ).start()
    events = backend.events().events
    with pytest.raises(FencedError) as caught:
        old.report_usage(input_tokens=950)
    assert (caught.value.generation, caught.value.current_generation) == (1, 2)
    old.report_usage(input_tokens=10)
    old_clock.advance(HOUR)
    old.stop("failed")
    assert backend.events().events == events
    assert backend.load(AGENT).record.active
    assert backend.load(AGENT).heartbeat_at == new_clock.now()
    new.stop()
    assert backend.load(AGENT).record.outcome == "completed"
    backend.close()


def test_the_heartbeat_of_a_fenced_monitor_does_not_beat(tmp_path):
    """An owner that only beats learns at its next beat that it was replaced."""
    clocks = FakeClock(), FakeClock()
    backend = LocalBackend(str(tmp_path))
    monitors = [
        create_context_monitor(AGENT, backend=backend, clock=clock, takeover=True).start()
        for clock in clocks
    ]
    first = backend.load(AGENT).heartbeat_at
    clocks[0].advance(600)
    assert backend.load(AGENT).heartbeat_at == first
    clocks[1].advance(20)
    assert backend.load(AGENT).heartbeat_at > first
    assert backend.load(AGENT).record.generation == 2
    monitors[1].stop()
    backend.close()


def test_a_forked_child_writes_nothing_as_its_parent(tmp_path):
    """The child's copy is mute, the parent continues, and the child may own an agent of its own."""
    (said,) = finish(run_writer(tmp_path, "forks", stderr=-3))
    assert said == {
        "status": 0,
        "relocked": True,
        "state_unchanged": True,
        "new_events": 0,
        "childs_own_events": 2,
        "outcome": "completed",
        "level": "critical",
    }


@pytest.mark.parametrize("holding", ["hold_lock", "hold_journal"])
def test_no_verb_waits_for_a_process_that_holds_a_lock(tmp_path, holding):
    """Every verb returns while the lock is held; once it is free, all is stored exactly once."""
    holder = run_writer(tmp_path, holding)
    assert answer(holder) == "held"
    agent = run_writer(tmp_path, "verbs", "log", "wait", env=IMPATIENT)
    said = answer(agent)
    assert holder.poll() is None
    assert still_held(tmp_path, holding)
    assert said["raised"] == {}
    assert len(said["log"]) <= 1
    finish(holder)
    assert finish(agent) == []
    assert agent.returncode == 0
    backend = LocalBackend(str(tmp_path))
    record = backend.load(AGENT).record
    assert (record.active, record.generation, record.pending) == (False, 1, None)
    events = [event for event in backend.events().events if event["agentId"] == AGENT]
    assert count_of(events, "agent_started") == count_of(events, "agent_stopped") == 1
    assert count_of(events, "handoff_ready") == 1
    assert count_of(events, "context_threshold_reached") == 2
    backend.close()


def count_of(events, kind):
    return sum(event["type"] == kind for event in events)


def still_held(directory, holding):
    backend = LocalBackend(str(directory))
    try:
        if holding == "hold_journal":
            record = backend.load(AGENT).record
            return not backend._append([{**backend.events().events[0], "n": 99}], record)
        with backend.directory.locked(AGENT, 0.0):
            return False
    except StateWriteError:
        return True
    finally:
        backend.close()


def test_every_public_verb_is_among_the_verbs_tried_under_faults():
    """The fault tests call each method a monitor offers, or the one it is the async twin of."""
    monitor = create_context_monitor(AGENT)
    offered = {name for name in dir(monitor) if name[0] != "_" and callable(getattr(monitor, name))}
    assert {name.removesuffix("_async") for name in offered} - {"task"} <= set(VERBS)


JUMPS = {
    "an hour back": -HOUR,
    "an hour ahead": HOUR,
    "thirty days back": -30 * 24 * HOUR,
    "to 1970": -FakeClock().now() + 1.0,
    "past 2038": 2**31 - FakeClock().now() + HOUR,
}


def seen(backend):
    """What a judge looks at: the agent's state and the time of its heartbeat."""
    agent = backend.load(AGENT)
    return agent.record, agent.heartbeat_at


@pytest.mark.parametrize("jump", JUMPS.values(), ids=JUMPS.keys())
def test_a_wall_clock_that_jumps_makes_nobody_stale(tmp_path, jump, caplog):
    """A beating agent is alive one beat after the jump, and its events keep their order."""
    clock = FakeClock()
    backend = LocalBackend(str(tmp_path))
    config = ContextConfig(context_limit_tokens=1000, on_error="raise")
    with caplog.at_level(logging.WARNING, "ultramon"):
        monitor = create_context_monitor(AGENT, config, backend=backend, clock=clock).start()
        clock.advance(20)
        clock.jump(jump)
        before = judge(*seen(backend), clock.now(), this_machine())
        assert before.clock_skew == (jump < 0)
        clock.advance(config.heartbeat_interval_seconds)
        verdict = judge(*seen(backend), clock.now(), this_machine())
        assert (verdict.verdict, verdict.clock_skew) == (ALIVE, False)
        assert verdict.heartbeat_age_seconds <= config.heartbeat_interval_seconds
        assert monitor.report_usage(input_tokens=900).should_return
        clock.advance(120)
        monitor.stop()
    assert caplog.messages == []
    kinds = [event["type"] for event in backend.events().events]
    assert kinds == ["agent_started", "context_threshold_reached", "agent_stopped"]
    assert backend.load(AGENT).record.outcome == "completed"
    backend.close()


@pytest.mark.parametrize("hours", [1, 8])
def test_after_a_suspend_the_agent_beats_again_without_a_storm(tmp_path, hours):
    """Wall time that passed without the monotonic clock costs one beat, not one per interval."""
    beats = []

    class Counting(LocalBackend):
        def heartbeat(self, pairs, now):
            beats.append(now)
            return super().heartbeat(pairs, now)

    clock = FakeClock()
    backend = Counting(str(tmp_path))
    monitor = create_context_monitor(AGENT, backend=backend, clock=clock).start()
    clock.advance(15)
    clock.jump(hours * HOUR)
    agent = backend.load(AGENT)
    seen = judge(agent.record, agent.heartbeat_at, clock.now(), this_machine())
    assert seen.verdict in (STALE, LOST), "silence is all that another process can see"
    clock.advance(15)
    assert len(beats) == 2
    agent = backend.load(AGENT)
    assert judge(agent.record, agent.heartbeat_at, clock.now(), this_machine()).verdict == ALIVE
    monitor.stop()
    backend.close()
