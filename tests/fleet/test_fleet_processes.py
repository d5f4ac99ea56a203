"""Agents in real processes: killed, suspended, asked to return, followed by one successor."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import IMPORT_PATH
from helpers.fleet_worker import claim, command, end, reap, start_worker, tell
from helpers.requirements import missing

from ultramon import Fleet, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.memory import MemoryBackend
from ultramon.fleet import child_processes
from ultramon.system.processes import this_machine
from ultramon.testing import FakeClock, make_event, make_record
from ultramon.testing.clock import START


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

    def start(agent_id, mode="obey", *arguments, **options):
        left.append(start_worker(fleet, agent_id, mode, *arguments, **options))
        return left[-1]

    yield start
    for process in left:
        reap(process)


def kill(pid):
    """Kill a child and wait until it is dead, without taking its return code from its owner."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def names(events):
    return [event.name for event in events]


def lost(events):
    (event,) = [event for event in events if event.name == "lost"]
    return event


@pytest.mark.parametrize("attached", ["Popen", "pid"])
def test_a_killed_child_is_known_at_the_next_poll_with_its_signal(attached, fleet, worker):
    """What killed it is in both `lost` and `ended`."""
    process = worker("w")
    fleet.attach("w", process if attached == "Popen" else process.pid)
    tell(process, "start")
    assert names(fleet.poll()) == ["started"]
    kill(process.pid)
    events = fleet.poll()
    assert names(events) == ["handoff_ready", "lost", "ended"]
    for event in events[1:]:
        assert event.outcome == "lost"
        assert event.exit["returncode"] == -signal.SIGKILL
        assert event.exit["signal"] == "SIGKILL"
        assert not event.exit.get("outOfMemory")
    assert fleet.poll() == []


def test_a_killed_asyncio_process_is_known_with_its_signal(fleet, tmp_path):
    """Its loop learns the code some time after the process is gone; the fleet waits for that."""
    ends = []

    async def main():
        process = await asyncio.create_subprocess_exec(
            *command("obey"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**fleet.env("w"), "PYTHONPATH": IMPORT_PATH},
        )
        fleet.attach("w", process)
        process.stdin.write(b"start\n")
        await process.stdout.readline()
        async for event in fleet.watch():
            if event.name == "started":
                process.kill()
            if event.name == "ended":
                fleet.stop()
                ends.append((event.outcome, event.exit["signal"]))

    asyncio.run(main())
    assert ends == [("lost", "SIGKILL")]


def test_without_attach_a_vanished_pid_is_known_at_the_next_poll(fleet, worker):
    """The state tells the process; how it ended nobody can say."""
    process = worker("w")
    tell(process, "start")
    fleet.poll()
    kill(process.pid)
    event = lost(fleet.poll())
    assert event.exit is None
    assert event.reason == f"process {process.pid} is gone"


def test_a_process_that_ends_without_stop_is_lost_with_its_code(fleet, worker):
    """Leaving without a word is no success, whatever the return code says."""
    process = worker("w")
    fleet.attach("w", process)
    tell(process, "start")
    assert end(process) == 0
    assert lost(fleet.poll()).exit == {"returncode": 0}


def test_a_process_whose_agent_stopped_is_not_lost(fleet, worker):
    """The end of the process comes after the end of the agent and says nothing new."""
    process = worker("w")
    fleet.attach("w", process)
    tell(process, "start")
    tell(process, "stop")
    end(process)
    events = fleet.poll()
    assert [(event.name, event.outcome) for event in events] == [
        ("started", None),
        ("ended", "completed"),
    ]
    assert fleet.poll() == []


def test_a_process_that_never_starts_its_agent_is_lost(fleet):
    """A worker that fails on its first import is known too, though it has no state."""
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    fleet.attach("w", process)
    process.wait()
    events = fleet.poll()
    assert [(event.name, event.exit, event.state) for event in events] == [
        ("lost", {"returncode": 3}, None),
        ("ended", {"returncode": 3}, None),
    ]
    assert fleet.poll() == []


def test_an_agent_restarted_under_its_id_is_not_taken_for_the_dead_one(fleet, worker):
    """What is known of the first process does not hold for the second, attached or not."""
    first = worker("w")
    fleet.attach("w", first)
    tell(first, "start")
    kill(first.pid)
    fleet.poll()
    second = worker("w")
    tell(second, "start")
    assert names(fleet.poll()) == ["started"]
    assert fleet.poll() == []
    kill(second.pid)
    assert lost(fleet.poll()).event.generation == 2


def test_what_is_no_process_cannot_be_attached(fleet):
    """A mistake shows when it is made."""
    with pytest.raises(TypeError, match="attach a process that was started or a pid, not str"):
        fleet.attach("w", "4711")


def test_a_pid_that_does_not_run_has_ended(fleet):
    """A process that was gone before it was attached is known as well."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    fleet.attach("w", child)
    assert lost(fleet.poll()).exit is None


def test_a_kill_for_want_of_memory_is_told(fleet, worker, tmp_path, monkeypatch):
    """The kernel counts such kills per control group; a higher count at the end tells."""
    found = re.search(r"^0::(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    if found is None:
        missing("the kernel has no unified control groups")
    counts = tmp_path / found[1].lstrip("/") / "memory.events"
    counts.parent.mkdir(parents=True, exist_ok=True)
    counts.write_text("oom 4\noom_kill 2\n")
    monkeypatch.setattr(child_processes, "_CGROUPS", str(tmp_path))
    process = worker("w")
    fleet.attach("w", process)
    tell(process, "start")
    counts.write_text("oom 5\noom_kill 3\n")
    kill(process.pid)
    assert lost(fleet.poll()).exit["outOfMemory"]


def test_a_state_saved_just_before_the_end_counts(fleet, worker, backend):
    """An agent that ends well between two readings of the fleet is not called lost."""

    class Late(LocalBackend):
        """Lets the worker finish after its state was read."""

        def changes(self, run, seen):
            look = super().changes(run, seen)
            if process.poll() is None and len(looks) == 1:
                tell(process, "stop")
                end(process)
            looks.append(look)
            return look

    looks = []
    process = worker("w")
    tell(process, "start")
    other = Fleet("audit", backend=Late(backend.directory.path), consumer="late")
    looked = other.poll() + other.poll() + other.poll()
    assert [(event.name, event.outcome) for event in looked] == [
        ("started", None),
        ("ended", "completed"),
    ]
    assert len(looks) > 2


def test_a_handler_sees_the_state_that_its_event_led_to():
    """Events are stored a moment before states: a fleet in between waits for the state."""
    writes = []

    class Slow(MemoryBackend):
        """Stores a state only after somebody has read the older one."""

        def load(self, agent_id):
            agent = super().load(agent_id)
            if writes:
                writes.pop()()
            return agent

    store, clock = Slow(), FakeClock()
    monitor = create_context_monitor("a", backend=store, clock=clock).start()
    fleet = Fleet(backend=store, clock=clock)
    fleet.poll()
    clock.advance(10)
    before = store.directory.states["a"]
    monitor.stop()
    after, store.directory.states["a"] = store.directory.states["a"], before
    writes.append(lambda: store.directory.states.update(a=after))
    (ended,) = fleet.poll()
    assert (ended.name, ended.state.active, ended.state.outcome) == ("ended", False, "completed")


def test_an_agent_killed_before_its_end_was_stored_ends_once(fleet, backend):
    """The event of its end is there, the state is not: it is lost, with what the state says."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    record = make_record("w", run="audit", pid=child.pid, pid_started_at="1")
    record.tasks = [{"name": "a", "status": "in_progress", "result": None}]
    stopped = make_event("w", "agent_stopped", run="audit", at=START + 1, outcome="completed")
    backend.start_agent(
        "w",
        lambda stored, _: (record, [stopped]),
        takeover=False,
        now=START,
        machine=this_machine(),
    )
    events = fleet.poll() + fleet.poll()
    assert [(event.name, event.outcome) for event in events] == [
        ("handoff_ready", None),
        ("lost", "lost"),
        ("ended", "lost"),
    ]
    assert events[-1].handoff.interrupted == ("a",)


def test_the_handoff_of_a_killed_worker_is_rebuilt_from_its_plan(fleet, worker):
    """Done, half done and left, as last saved; a successor continues from there."""
    process = worker("w")
    fleet.attach("w", process)
    for line in ("start", "plan a b c d", "begin a", "done a", "begin b", "update_heartbeat"):
        tell(process, line)
    fleet.poll()
    kill(process.pid)
    (event,) = [event for event in fleet.poll() if event.name == "handoff_ready"]
    handoff = event.handoff
    assert (handoff.reason, handoff.generation_count) == ("lost", 1)
    assert handoff.completed == ("a",)
    assert handoff.interrupted == ("b",)
    assert handoff.remaining == ("c", "d")
    with create_context_monitor(
        "w.2", run="audit", continues=handoff, backend=fleet.backend
    ) as next_:
        assert next_.pending() == ["b", "c", "d"]
    assert names(fleet.poll()) == ["started", "ended"]


def test_a_suspended_process_is_stale_and_recovers_when_it_goes_on(backend, worker):
    """S12: SIGSTOP for longer than three intervals, then SIGCONT: one verdict each, never lost."""
    clock = FakeClock()
    fleet = Fleet("audit", backend=backend, clock=clock)
    process = worker("w", "obey", "stepped")
    fleet.attach("w", process)
    tell(process, "start")
    assert names(fleet.poll()) == ["started"]
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    process.stdin.write("advance 60\n")
    process.stdin.flush()
    seen = []
    for second in range(60):
        clock.advance(1)
        seen += [(second + 1, name) for name in names(fleet.poll())]
    assert seen == [(46, "stale")]
    process.send_signal(signal.SIGCONT)
    assert process.stdout.readline() == "none\n"
    assert names(fleet.poll() + fleet.poll()) == ["recovered"]
    tell(process, "stop")
    assert names(fleet.poll()) == ["ended"]


def test_of_many_processes_one_gets_the_handoff(fleet, worker, backend, tmp_path):
    """The first to claim has it; all others learn who that is."""
    with create_context_monitor("a", run="audit", backend=backend) as monitor:
        handoff = monitor.hand_off()
    path = tmp_path / "handoff.json"
    path.write_text(handoff.model_dump_json())
    claimers = [worker(f"s-{number}", claim.__name__, path, f"s-{number}") for number in range(5)]
    for process in claimers:
        assert process.stdout.readline() == "ready\n"
    for process in claimers:
        process.stdin.close()
    winners = {process.stdout.read().strip() for process in claimers}
    assert len(winners) == 1
    assert winners < {f"s-{number}" for number in range(5)}


def test_a_worker_asked_to_return_hands_off_in_time(fleet, worker):
    """From `request_return` to `handoff_ready`, across processes and well below any rung."""
    process = worker("w")
    fleet.attach("w", process)
    for line in ("start", "plan a b", "update_heartbeat"):
        assert tell(process, line) == "none"
    fleet.request_return("w", deadline_seconds=60)
    assert tell(process, "until_return") == "force_return"
    tell(process, "hand_off")
    tell(process, "stop returned")
    seen = fleet.poll()
    assert names(seen) == ["started", "handoff_ready", "ended"]
    assert seen[1].handoff.remaining == ("a", "b")


def test_the_events_of_a_store_without_processes_are_judged_too(fleet, backend):
    """An event of an agent that is no longer stored is delivered without a state."""
    backend.append_events([make_event("gone", "agent_stopped", run="audit", at=START)])
    (event,) = fleet.poll()
    assert (event.name, event.agent_id, event.state) == ("ended", "gone", None)
