"""The supervisor step by step: a clock that only the test moves, and agents in this process."""

from __future__ import annotations

import os
from concurrent.futures import Executor, Future
from contextlib import suppress
from itertools import pairwise

import pytest
from helpers.requirements import require_root_mount, unmount

from ultramon import ContextConfig, Fleet, create_context_monitor
from ultramon.backends.lease_holder import name_holder
from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import StateError
from ultramon.fleet.supervise import children
from ultramon.handoff import HandoffRecord
from ultramon.system.processes import MachineIdentity
from ultramon.testing import FakeClock, fill

CONFIG = ContextConfig(context_limit_tokens=10_000)


class Child:
    """The process of a job, played by the test."""

    pid = os.getpid()

    def __init__(self, job, backend, clock):
        self.returncode = None
        self.monitor = create_context_monitor(
            job.agent_id, CONFIG, run="job", continues=job.handoff, backend=backend, clock=clock
        )
        if job.handoff is None:
            self.monitor.plan(job.items)
        self.monitor.start()

    def poll(self):
        return self.returncode

    def complete(self, *items):
        for item in items or self.monitor.pending():
            self.monitor.complete_task(item)
        self.monitor.update_heartbeat()

    def end(self, code=0):
        if code == 0:
            self.monitor.stop("completed" if not self.monitor.pending() else "returned")
        self.returncode = code

    def terminate(self):
        self.returncode = -15

    def kill(self):
        self.returncode = -9


class Steps:
    """A supervisor, and the children that it has started."""

    def __init__(self, backend, clock, items, **options):
        self.clock = self.child_clock = clock
        self.child = Child
        self.children = {}
        self.jobs = []
        self.told = []
        self.fleet = Fleet("job", backend=backend, clock=clock)
        self.fleet.add_items(items)
        options.setdefault("on_event", lambda event: self.told.append(event.name))
        self.supervisor = self.fleet._supervisor(self.start, None, options)

    def start(self, job):
        self.jobs.append(job)
        self.children[job.agent_id] = self.child(job, self.fleet.backend, self.child_clock)
        return self.children[job.agent_id]

    def __call__(self, count=1):
        for _ in range(count):
            self.supervisor.step()
            self.clock.advance(1)
        return self.supervisor.pool.counts

    @property
    def running(self):
        return [child for child in self.children.values() if child.returncode is None]

    def to_the_end(self):
        for _ in range(500):
            if self.supervisor.is_over:
                self.fleet.close()
                return self.supervisor.result()
            self()
            for child in self.running:
                child.complete()
                child.end()
        raise AssertionError("it does not end")


@pytest.fixture
def steps(ultramon_backend, ultramon_clock):
    def start(items, **options):
        return Steps(ultramon_backend, ultramon_clock, items, **options)

    return start


def test_ten_thousand_items_are_done_in_bounded_parts(steps):
    """Each context has at most five hundred."""
    items = [f"some/directory/of/files/{number}.txt" for number in range(10_000)]
    result = steps(items, workers=3).to_the_end()
    assert (result.counts.claimed, result.lost) == (10_000, ())
    assert max(context.items for context in result.contexts) == 500
    assert sum(context.finished for context in result.contexts) == 10_000


def test_what_is_claimed_is_told_before_its_context_ends(steps):
    """A reader sees progress as it is made."""
    run = steps(["a", "b"])
    run()
    run.children["job.1"].complete("a")
    assert run().claimed == 1
    run.children["job.1"].end(-9)
    assert run(2).left == 1
    assert run.told == ["started", "claimed", "ended", "restarted"]


def test_an_unseen_process_has_ten_minutes_to_become_an_agent(steps):
    """Its orchestrator died on another machine, maybe between its start and the record of it."""
    run = steps([])
    run.fleet.add_items(["a"])
    elsewhere = name_holder(MachineIdentity("elsewhere", "boot:1"))
    event = run.fleet._deliveries.assignments.event(
        "job.1", ["a"], 0, number=0, source="fleet:main", at=run.clock.now(), supervisor=elsewhere
    )
    run.fleet.backend.append_events([event])
    run(590)
    assert run.jobs == []
    run(20)
    assert [job.agent_id for job in run.jobs] == ["job.2"]
    assert run.to_the_end().ok


def test_without_proc_a_lost_agent_must_have_been_silent_before_another_starts(steps, monkeypatch):
    """Its end proves nothing of what it has left, and nothing of that can be found there."""
    before = steps(["a"])
    before.child_clock = FakeClock()
    before(2)
    before.fleet.close()
    record = before.fleet.backend.load("job.1").record
    facts = {"outcome": "lost", "reason": "process 1 is gone", "exit": {}}
    lost = record.event("agent_lost", source="fleet:main", at=before.clock.now(), n=1, **facts)
    before.fleet.backend.append_events([lost])
    monkeypatch.setattr(children, "shows_environments", lambda: False)
    after = steps([])
    after(590)
    assert after.jobs == []
    after(20)
    assert [job.agent_id for job in after.jobs] == ["job.2"]
    assert after.to_the_end().ok


class Client(Child):
    """What stands for a client that knows no handoffs: it stores one when it sees the end."""

    looks = 0
    """So many times the process still runs after the end of its agent."""

    def __init__(self, job, backend, clock):
        super().__init__(job, backend, clock)
        self.agent_id, self.backend, self.clock = job.agent_id, backend, clock

    def poll(self):
        state = self.backend.load(self.agent_id).record
        if self.returncode is None and not state.active:
            self.looks -= 1
            if self.looks < 0:
                self.leave_handoff(state)
                self.returncode = 0
        return self.returncode

    def leave_handoff(self, state):
        now = self.clock.now()
        tasks = [{"name": "a", "status": "done", "result": None}]
        handoff = HandoffRecord.of(state, tasks, now=now, reason="task_complete", suffix="-end")
        event = state.event("handoff_ready", source="it", at=now, n=1, handoff=handoff.to_json())
        self.backend.append_events([event])


@pytest.mark.parametrize("looks", range(8))
def test_what_a_process_leaves_at_its_end_is_claimed(steps, looks):
    """At whichever look within a step its end is seen."""
    run = steps(["a"])
    run.child = Client
    run()
    (client,) = run.running
    client.looks = looks
    client.monitor.stop("completed")
    run(8)
    assert run.supervisor.pool.counts.claimed == 1
    assert run.told == ["started", "claimed", "ended"]


def test_what_cannot_be_adopted_yet_is_asked_for_again(steps, ultramon_backend, ultramon_clock):
    """A store that refuses for a moment does not cost an orchestrator its stand-ins."""
    before = steps(["a"])
    before(2)
    (child,) = before.running
    before.fleet.close()
    asked = []

    def adopt(agent_id):
        asked.append(agent_id)
        if len(asked) == 1:
            raise StateError(agent_id, "cannot be read", "try again")
        return child

    after = steps([], adopt=adopt)
    after(2)
    assert asked == ["job.1", "job.1"]
    child.complete()
    child.end()
    after(4)
    assert (asked, after.supervisor.pool.counts.claimed) == (["job.1", "job.1"], 1)
    assert after.jobs == []


class AtOnce(Executor):
    """Makes each call when it is submitted."""

    def submit(self, function, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future


def test_a_claim_may_come_true_by_the_end_of_its_context(steps):
    """The agent said so too early: what was rejected is asked for once more, and then stands."""
    written = set()
    run = steps(["a", "b"], verify=written.__contains__, executor=AtOnce())
    run()
    (child,) = run.running
    child.complete("a")
    run(3)
    assert run.told == ["started", "claimed", "rejected"]
    written.update("ab")
    child.complete("b")
    child.end()
    run(4)
    assert run.told[3:] == ["claimed", "verified", "verified", "ended"]
    assert run.supervisor.result().counts.verified == 2


@pytest.mark.parametrize("beats_first", [False, True])
def test_what_a_lost_agent_hands_off_after_all_reaches_its_successor(beats_first, steps):
    """Its record was rebuilt in its silence; the notes that it writes itself are the newer ones."""
    run = steps(["a", "b"], grace_seconds=100)
    run.child_clock = FakeClock()
    run()
    run.clock.advance(700)
    run(2)
    (child,) = run.running
    (rebuilt,) = [e for e in run.fleet.backend.events().events if e["type"] == "handoff_ready"]
    assert rebuilt["handoff"]["reason"] == "lost"
    run.child_clock.jump(710)
    if beats_first:
        child.monitor.update_heartbeat()
        run()
    child.complete("a")
    child.monitor.hand_off(notes="b is on page 7")
    child.end()
    run(3)
    assert (run.jobs[1].handoff.notes, run.jobs[1].items) == ("b is on page 7", ("b",))
    handoffs = [e for e in run.fleet.backend.events().events if e["type"] == "handoff_ready"]
    assert len(handoffs) == 2
    assert run.to_the_end().repeated == ()


def test_pauses_grow_until_the_call_ends(ultramon_backend, ultramon_clock, monkeypatch):
    """A program that cannot start does not keep a machine busy."""
    starts = []

    def start(self, job):
        starts.append(ultramon_clock.monotonic())
        raise OSError("no memory")

    monkeypatch.setattr(Steps, "start", start)
    run = Steps(ultramon_backend, ultramon_clock, ["a"], max_restarts=8)
    run(100)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert gaps == sorted(gaps)
    assert 30 <= gaps[-1] <= 31  # a step a second
    assert len(starts) == 9
    assert run.supervisor.stopped == "max_restarts"


def test_a_lease_that_is_lost_stops_every_start(steps, ultramon_backend, ultramon_clock):
    """Suspended for half a minute: another orchestrator continues, and this one stands by."""
    first = steps(["a", "b"], workers=1)
    first()
    (child,) = first.running
    ultramon_clock.advance(31)
    second = Steps(ultramon_backend, ultramon_clock, [], workers=1)
    second(2)
    child.complete("a")
    child.end()
    first(3)
    assert list(first.children) == ["job.1"]
    result = second.to_the_end()
    assert [context.agent_id for context in result.contexts] == ["job.1", "job.2"]
    first()
    assert first.supervisor.is_over
    assert first.supervisor.result() == result


def test_of_two_that_assign_one_context_the_journal_takes_the_first(
    ultramon_backend, ultramon_clock
):
    """Both think that they hold the run; one starts it, the other continues from there."""
    both = [Steps(ultramon_backend, ultramon_clock, ["a", "b"], workers=2) for _ in range(2)]
    both[0]()
    fleet = both[1].fleet
    fleet._deliveries.holds_lease = lambda: True
    both[1]()
    started = [list(one.children) for one in both]
    assert sorted(started[0] + started[1]) == ["job.1", "job.2"]


def test_a_process_that_does_not_exit_after_its_agent_is_ended(steps):
    """It has ended by its own word; it holds a place only for the grace period."""
    run = steps(["a"], grace_seconds=5)
    run()
    (child,) = run.running
    child.complete()
    child.monitor.stop()
    run(4)
    assert (child.returncode, run.supervisor.is_over) == (None, False)
    run(5)
    assert (child.returncode, run.supervisor.is_over) == (-15, True)
    assert run.supervisor.result().contexts[0].reason == "completed"


def test_without_enforce_an_agent_may_take_its_time(steps):
    """It should return and works on; what it does then counts."""
    run = steps(["a"], grace_seconds=1)
    run()
    fill(run.children["job.1"].monitor, 0.9)
    run(10)
    assert run.to_the_end().ok
    assert len(run.children) == 1


def test_a_stop_asks_all_and_ends_those_that_do_not_listen(steps):
    """After the grace period, and the records are rebuilt."""
    run = steps(["a", "b"], workers=2, grace_seconds=10)
    run()
    deaf, obedient = run.running
    run.fleet.stop()
    run(2)
    assert obedient.monitor.get_threshold_action().should_return
    obedient.monitor.hand_off()
    obedient.end()
    run(15)
    assert (deaf.returncode, run.supervisor.is_over) == (-15, True)
    result = run.supervisor.result()
    assert (result.stopped, sorted(result.left)) == ("stopped", ["a", "b"])
    assert sorted(context.reason for context in result.contexts) == ["lost (SIGTERM)", "returned"]


def test_no_more_contexts_are_started_than_allowed(steps):
    """Also where more of them could run at the same time."""
    run = steps(["a", "b", "c", "d"], workers=4, max_contexts=2)
    run()
    assert list(run.children) == ["job.1", "job.2"]
    result = run.to_the_end()
    assert (result.stopped, len(result.contexts), result.counts.left) == ("max_contexts", 2, 2)


def test_what_was_assigned_and_not_started_at_a_stop_is_left(steps):
    """Nobody waits for a process that there will never be."""
    run = steps(["a", "b"], workers=2, on_event=lambda event: None)
    start = run.start

    def stop_after(job):
        run.supervisor.stop("deadline")
        return start(job)

    run.supervisor._spawn = stop_after
    run()
    (child,) = run.running
    child.monitor.hand_off()
    child.end()
    run(3)
    assert run.supervisor.is_over
    result = run.supervisor.result()
    assert (list(result.left), result.lost) == (["a", "b"], ())
    assert result.contexts[1].reason == "lost (not started: deadline)"


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    require_root_mount(path, "size=8m")
    yield path
    unmount(path)


def test_a_full_disk_is_waited_for(disk, ultramon_clock, caplog):
    """Nothing is started that is not recorded, and nothing done is lost."""
    backend = LocalBackend(str(disk / "state"))
    run = Steps(backend, ultramon_clock, ["a", "b", "c"], workers=2)
    run()
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    first, _ = run.running
    first.complete()
    first.end()
    run(3)
    assert len(run.children) == 2
    assert "run job is not watched for now" in caplog.text
    ballast.unlink()
    result = run.to_the_end()
    assert (result.ok, result.counts.claimed) == (True, 3)
    assert result.repeated == ()
    backend.close()
