"""Recipients of notices from the start of an agent to its end, whichever process detects it."""

from __future__ import annotations

import os
from contextlib import closing

import pytest
from helpers.fleet_worker import reap, start_worker, tell
from helpers.routing_agents import AGENT, backend, clock, make, put  # noqa: F401

from ultramon import ConfigurationError, Fleet, Ladder
from ultramon.backends.local.backend import LocalBackend
from ultramon.notices.registration import StoredRegistration
from ultramon.routing import Inbox, register, registrations
from ultramon.testing import fill


@pytest.mark.parametrize(
    ("notify", "result"), [("self", (AGENT, "explicit")), ("parent", ("boss", "parent"))]
)
def test_an_agent_can_be_registered_as_it_starts(backend, clock, notify, result):
    """A restart re-arms nothing, and an end makes room for the next."""
    with make(backend, clock, parent_id="boss", notify=notify) as monitor:
        (made,) = registrations(backend=backend)
        assert (made.notify_id, made.source, made.registered_by) == (*result, result[0])
        fill(monitor, 0.75)
        assert len(Inbox(result[0], backend=backend, clock=clock).poll()) == 1
    again = make(backend, clock, parent_id="boss", notify=notify).start()
    assert registrations(backend=backend) == [made]
    again.stop()


def test_a_spawned_agent_is_registered_by_its_environment(backend, clock, monkeypatch):
    """What a fleet gives a child names its parent; the child's own children are not included."""
    fleet = Fleet(backend=backend, clock=clock)
    monkeypatch.delenv("ULTRAMON_AGENT_ID", raising=False)
    assert fleet.env("child", notify_parent=True)["ULTRAMON_NOTIFY"] == ""
    monkeypatch.setenv("ULTRAMON_AGENT_ID", "boss")
    for name, value in fleet.env("child", notify_parent=True).items():
        monkeypatch.setenv(name, value)
    assert fleet.env("grandchild")["ULTRAMON_NOTIFY"] == ""
    assert fleet.env("grandchild")["ULTRAMON_NOTIFY_THRESHOLDS"] == ""
    monitor = make(backend, clock, agent_id=None).start()
    (made,) = registrations(backend=backend)
    assert (made.agent_id, made.notify_id, made.source) == ("child", "boss", "parent")
    assert made.ladder_status == "default"
    monitor.stop()


def test_a_spawned_agent_gets_its_thresholds_too(backend, clock, monkeypatch):
    """From the fleet or the caller; others make another registration, the same ones none."""
    monkeypatch.setenv("ULTRAMON_AGENT_ID", "boss")
    fleet = Fleet(backend=backend, clock=clock)
    for name, value in fleet.env("child", notify_parent=True, thresholds=[0.4, 0.625]).items():
        monkeypatch.setenv(name, value)
    with make(backend, clock, agent_id=None) as monitor:
        (made,) = registrations(backend=backend)
        assert [rung["ratio"] for rung in made.ladder["rungs"]] == [0.4, 0.625]
        fill(monitor, 0.5)
        monitor.update_heartbeat()
        (notice,) = Inbox("boss", backend=backend, clock=clock).poll()
        assert (notice.facts["level"], notice.delivery) == ("at-40", "sequential")
    clock.advance(1)
    make(backend, clock, agent_id=None).start().stop()
    assert registrations(backend=backend) == [made]
    own = Ladder.default(0.3, 0.6)
    make(backend, clock, agent_id=None, notify_thresholds=own).start().stop()
    (changed,) = registrations(backend=backend)
    assert (changed.ladder, changed.notify_id) == (own.to_json(), "boss")


@pytest.mark.parametrize("text", ["40", "0.4;0.6", "0.6,0.4", ",", "nan"])
def test_thresholds_of_the_environment_are_checked(backend, clock, monkeypatch, text):
    """The error names the variable; without somebody to notify nobody looks at it."""
    monkeypatch.setenv("ULTRAMON_NOTIFY_THRESHOLDS", text)
    make(backend, clock)
    with pytest.raises(ConfigurationError, match="ULTRAMON_NOTIFY_THRESHOLDS"):
        make(backend, clock, notify="self")
    with pytest.raises(ConfigurationError):
        Fleet(backend=backend, clock=clock).env("child", thresholds=[0.6, 0.4])


def lose(backend, **fields):
    """Store an agent with a plan that is silent for longer than it may be."""
    tasks = [
        {"name": name, "status": status}
        for name, status in (("a", "done"), ("b", "in_progress"), ("c", "pending"))
    ]
    return put(
        backend,
        pid=None,
        lost_after_seconds=20.0,
        tasks=tasks,
        tasks_completed=1,
        tasks_total=3,
        **fields,
    )


def test_a_vanished_agent_is_told_once_with_what_is_left(backend, clock):
    """Whichever fleet notices it first; the news go to who asked, in their order."""
    record = lose(backend, parent_id="boss", label="reviewer")
    register(AGENT, "boss", backend=backend, clock=clock)
    clock.advance(30)
    fleets = [Fleet(consumer=name, backend=backend, clock=clock) for name in ("first", "second")]
    for fleet in fleets:
        fleet.poll()
    inbox = Inbox("boss", backend=backend, clock=clock)
    assert [(notice.delivery, notice.category, notice.text) for notice in inbox.poll()] == [
        (
            "important",  # as its end, which would else overtake it
            "handoff",
            f"[ultramon] reviewer ({AGENT}) has a handoff made of its last saved plan:"
            " 1 completed, 1 interrupted, 1 remaining.",
        ),
        (
            "important",
            "lifecycle",
            f"[ultramon] reviewer ({AGENT}) was lost: no heartbeat since 00:00Z,"
            " 1 of 3 tasks completed.",
        ),
    ]
    clock.advance(1)
    backend.heartbeat([(AGENT, record.generation)], clock.now())
    for fleet in fleets:
        fleet.poll()
    (back,) = inbox.poll()
    assert back.facts["kind"] == "recovered"
    assert back.text == f"[ultramon] reviewer ({AGENT}) counted as lost and is alive."


def test_nobody_is_told_of_a_vanished_agent_without_asking(backend, clock):
    """Its parent learns it from a fleet, or by registering."""
    lose(backend, parent_id="boss")
    clock.advance(30)
    fleet = Fleet(backend=backend, clock=clock)
    assert "lost" in [event.name for event in fleet.poll()]
    assert backend.queue.depth(now=clock.now()) == []


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda monitor: monitor.stop(), [("sequential", "completed")]),
        (lambda monitor: monitor.stop("failed"), [("important", "failed")]),
        (lambda monitor: monitor.hand_off(), [("sequential", None), ("sequential", "returned")]),
    ],
    ids=["completed", "failed", "handed off"],
)
def test_an_end_is_told_to_who_asked(backend, clock, end, told):
    """As it is stored, and not again by a fleet that looks later."""
    with make(backend, clock, parent_id="boss", notify="parent") as monitor:
        end(monitor)
    fleet = Fleet(backend=backend, clock=clock)
    assert "ended" in [event.name for event in fleet.poll()]
    notices = Inbox("boss", backend=backend, clock=clock).poll()
    assert [(notice.delivery, notice.facts.get("outcome")) for notice in notices] == told


def test_a_fleet_tells_what_a_busy_journal_refused(tmp_path, clock):
    """An end that waits in the state file of a dead agent is announced when another stores it."""
    with closing(LocalBackend(str(tmp_path / "state"))) as backend:
        record = put(backend, parent_id="boss", label="reviewer")
        register(AGENT, "boss", backend=backend, clock=clock)
        record.seq += 1
        record.active, record.outcome = False, "returned"
        record.pending = [
            record.event(
                "agent_stopped",
                source=f"agent:{AGENT}",
                at=clock.now(),
                n=0,
                outcome="returned",
            )
        ]
        backend.directory.replace(record, durable=False)
        Fleet(backend=backend, clock=clock).poll()
        (notice,) = Inbox("boss", backend=backend, clock=clock).poll()
        assert notice.text == f"[ultramon] reviewer ({AGENT}) has ended: returned."


def test_a_killed_process_is_told_with_its_signal(tmp_path):
    """A real one; its state says no more than where it was."""
    with closing(LocalBackend(str(tmp_path / "state"))) as backend:
        fleet = Fleet("audit", backend=backend)
        process = start_worker(fleet, AGENT, "obey")
        try:
            fleet.attach(AGENT, process)
            tell(process, "start")
            backend.registry.register(
                StoredRegistration(AGENT, "boss", "explicit", None, "boss", 0.0)
            )
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            fleet.poll()
        finally:
            reap(process)
        first, second = Inbox("boss", backend=backend).peek()
        assert second.text == f"[ultramon] {AGENT} was lost: its process was ended by SIGKILL."
        assert (first.facts["kind"], second.facts["kind"]) == ("handoff", "lost")
        fleet.close()


@pytest.mark.parametrize(
    "wrong", [{"notify": "boss"}, {"notify": "parent"}, {"notify": "self", "backend": object()}]
)
def test_a_start_that_could_tell_nobody_is_refused(backend, clock, wrong):
    """Before anything is stored."""
    with pytest.raises(ConfigurationError):
        make(**{"backend": backend, "clock": clock, **wrong})
    assert backend.list_agents() == []
