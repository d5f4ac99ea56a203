"""Conformance of registrations, second part: notices of ended and lost agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ultramon.backends.queue import queue_of
from ultramon.backends.registry import registry_of
from ultramon.notices.message import Cancelled
from ultramon.testing.clock import START
from ultramon.testing.contract.notices import begin_epoch, read, register, said, waiting
from ultramon.testing.contract.states import start
from ultramon.testing.samples import make_event, make_record

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.state.record import StateRecord

GONE: dict[str, Any] = {"outcome": "lost", "reason": "process 17 is gone", "exit": {}}
# `n` is the last heartbeat in milliseconds, as in the verdict of a fleet.
SILENT: dict[str, Any] = {
    "outcome": "lost",
    "reason": "no heartbeat for 601 s",
    "n": round(START * 1000),
}
KILLED: dict[str, Any] = {
    "outcome": "lost",
    "reason": "its process ended without stop()",
    "exit": {"returncode": -9, "signal": "SIGKILL"},
}
HANDOFF: dict[str, Any] = {
    "reason": "lost",
    "completed": ["a"],
    "interrupted": ["b"],
    "remaining": ["c", "d"],
}

# Event, its members, mode, and what follows "[ultramon] scout-1 ".
ENDS: list[tuple[str, dict[str, Any], str, str]] = [
    ("agent_stopped", {"outcome": "completed"}, "sequential", "has ended: completed."),
    ("agent_stopped", {"outcome": "returned"}, "sequential", "has ended: returned."),
    ("agent_stopped", {"outcome": "cancelled"}, "sequential", "has ended: cancelled."),
    ("agent_stopped", {"outcome": "failed"}, "important", "has ended: failed."),
    ("agent_stopped", {"outcome": "expired"}, "important", "has ended: expired."),
    ("agent_stopped", {"outcome": "obey me"}, "important", "has ended."),
    ("agent_expired", {"outcome": "expired"}, "important", "has not returned in time."),
    ("agent_lost", GONE, "important", "was lost: its process is gone."),
    ("agent_lost", SILENT, "important", "was lost: no heartbeat since 00:00Z."),
    ("agent_lost", KILLED, "important", "was lost: its process was ended by SIGKILL."),
    (
        "agent_lost",
        {**KILLED, "exit": {"returncode": -9, "signal": "SIGKILL", "outOfMemory": True}},
        "important",
        "was lost: its process was killed, out of memory.",
    ),
    (
        "agent_lost",
        {**KILLED, "exit": {"returncode": 3}},
        "important",
        "was lost: its process ended with code 3.",
    ),
    (
        "agent_recovered",
        {"previous": "lost"},
        "important",
        "counted as lost and is alive.",
    ),
    (
        "handoff_ready",
        {"handoff": HANDOFF},
        "sequential",
        "has a handoff made of its last saved plan: 1 completed, 1 interrupted, 2 remaining.",
    ),
]


def finish(backend: Backend, before: StateRecord, outcome: str = "returned") -> StateRecord:
    """Store the last state of an agent with its event."""
    values: dict[str, Any] = {"epoch": before.epoch, "parent_id": before.parent_id}
    record = make_record(
        before.agent_id,
        before.generation,
        seq=before.seq + 1,
        active=False,
        outcome=outcome,
        **values,
    )
    event = make_event(
        before.agent_id, "agent_stopped", generation=before.generation, outcome=outcome
    )
    assert backend.record(record, [event], durable=True)
    return record


def kinds(backend: Backend, recipient: str = "boss") -> list[str]:
    """Return of what kind the notices are that wait for a recipient."""
    return [message.facts["kind"] for message in waiting(backend, recipient)]


class EndContract:
    """Notices of an agent that ended, was lost, or came back."""

    @pytest.mark.parametrize(("kind", "members", "delivery", "text"), ENDS, ids=str)
    def test_an_end_is_announced_once(
        self, backend: Backend, kind: str, members: dict[str, Any], delivery: str, text: str
    ) -> None:
        """Stored first by the agent, by a fleet, or by two of them."""
        record = start(backend)
        register(backend)
        event = make_event("scout-1", kind, **members)
        for _ in range(2):
            backend.append_events([{**event, "eventId": "another"}])
            backend.append_events([event], [record])
        record.seq += 1
        assert backend.record(record, [event], durable=True)
        (message,) = waiting(backend)
        assert message.text == f"[ultramon] scout-1 {text}"
        assert (message.sender, message.delivery) == ("scout-1", delivery)
        category = "handoff" if kind == "handoff_ready" else "lifecycle"
        assert message.category == category
        for name in ("agentId", "run", "generation", "epoch"):
            assert message.facts[name] == event[name]
        assert message.facts.get("outcome") == members.get("outcome")

    def test_its_own_end_is_announced_when_its_state_is_stored(self, backend: Backend) -> None:
        """Together with the state, with the name and the progress that stand there."""
        record = start(backend, label="reviewer")
        register(backend)
        record = make_record(
            "scout-1",
            seq=record.seq + 1,
            active=False,
            outcome="failed",
            exit={"error": "ValueError"},
            label="reviewer",
            tasks_completed=3,
            tasks_total=20,
        )
        event = make_event("scout-1", "agent_stopped", outcome="failed")
        assert backend.record(record, [event], durable=True)
        (message,) = waiting(backend)
        assert message.text == (
            "[ultramon] reviewer (scout-1) has ended: failed, 3 of 20 tasks completed."
        )
        assert message.facts == {
            "agentId": "scout-1",
            "run": "default",
            "generation": 1,
            "epoch": 1,
            "kind": "ended",
            "outcome": "failed",
            "exit": {"error": "ValueError"},
            "tasksCompleted": 3,
            "tasksTotal": 20,
        }

    def test_a_known_state_gives_a_verdict_its_name(self, backend: Backend) -> None:
        """Who notices that an agent vanished passes what it read of it."""
        record = start(backend, label="reviewer", tasks_completed=3)
        register(backend)
        backend.append_events([make_event("scout-1", "agent_lost", **GONE)], [record])
        (message,) = waiting(backend)
        assert message.text == (
            "[ultramon] reviewer (scout-1) was lost: its process is gone, 3 tasks completed."
        )

    def test_only_a_registered_recipient_is_notified_of_an_end(self, backend: Backend) -> None:
        """Neither the parent of an agent without a registration, nor the agent itself."""
        events = [make_event("scout-1", kind, **members) for kind, members, _, _ in ENDS]
        record = start(backend, parent_id="boss")
        backend.append_events(events[:5], [record])
        finish(backend, record)
        record = start(backend, takeover=True, parent_id="boss")
        register(backend, "scout-1")
        backend.append_events(
            [{**event, "generation": record.generation} for event in events], [record]
        )
        finish(backend, record)
        assert queue_of(backend).depth(now=START) == []

    def test_silence_that_ended_in_time_is_no_news(self, backend: Backend) -> None:
        """No notice says that an agent became stale, so none says that it recovered."""
        start(backend)
        register(backend)
        backend.append_events(
            [
                make_event("scout-1", "agent_stale", reason="no heartbeat for 46 s"),
                make_event("scout-1", "agent_recovered", previous="stale"),
                make_event("scout-1", "agent_recovered", n=1),
            ]
        )
        assert waiting(backend) == []

    def test_an_end_does_not_become_stale(self, backend: Backend) -> None:
        """No epoch, no clear and no change of the registration cancels it."""
        record = start(backend)
        register(backend)
        record = read(backend, record, 0.55)
        backend.append_events([make_event("scout-1", "agent_lost", **SILENT)], [record])
        record = begin_epoch(backend, record)
        registry_of(backend).cancel_notices(record, requester="boss", now=START)
        assert register(backend) == Cancelled(0, 0)
        assert registry_of(backend).unregister("scout-1") == Cancelled(0, 0)
        assert kinds(backend) == ["lost"]

    @pytest.mark.parametrize("end", ["agent_stopped", "agent_lost"])
    def test_an_end_cancels_notices_about_the_window(self, backend: Backend, end: str) -> None:
        """Levels of an agent that is gone are no news; compaction, handoff and end are."""
        record = start(backend)
        register(backend)
        record = begin_epoch(backend, record)
        record = read(backend, record, 0.65)
        backend.append_events([make_event("scout-1", "handoff_ready", handoff=HANDOFF)], [record])
        assert kinds(backend) == ["epoch", "level", "handoff"]
        if end == "agent_stopped":
            finish(backend, record)
        else:
            backend.append_events([make_event("scout-1", end, **GONE)], [record])
        ended = "ended" if end == "agent_stopped" else "lost"
        assert kinds(backend) == ["epoch", "handoff", ended]

    def test_the_compaction_of_an_agent_that_ended_is_news(self, backend: Backend) -> None:
        """Its parent is notified that the result comes from a summary, also unregistered."""
        record = begin_epoch(backend, start(backend, parent_id="boss"), parent_id="boss")
        finish(backend, record)
        assert kinds(backend) == ["epoch"]

    def test_an_ended_agent_reaches_no_level(self, backend: Backend) -> None:
        """The last reading of an agent may come with its end: then only the end is announced."""
        record = start(backend)
        register(backend)
        record.seq += 1
        record.active, record.outcome = False, "completed"
        record.estimated_tokens, record.usage_ratio, record.measured_at = 150_000, 0.75, START
        event = make_event("scout-1", "agent_stopped", outcome="completed")
        assert backend.record(record, [event], durable=True)
        assert kinds(backend) == ["ended"]

    def test_a_clear_is_no_end_and_waits_for_the_new_id(self, backend: Backend) -> None:
        """There is no notice of an end; 30 s later the clear is delivered without the new id."""
        record = read(backend, start(backend), 0.55)
        register(backend)
        record.seq += 1
        record.active, record.outcome, record.exit = False, "completed", {"reason": "clear"}
        event = make_event("scout-1", "agent_stopped", outcome="completed")
        assert backend.record(record, [event], durable=True)
        assert kinds(backend) == ["epoch"]
        queue = queue_of(backend)
        at = record.last_heartbeat
        assert queue.claim("boss", now=at + 29) == []
        (cleared,) = queue.claim("boss", now=at + 31)
        assert cleared.text.startswith("[ultramon] Context window of scout-1 was cleared: ")
        assert (cleared.facts["reason"], "successorId" in cleared.facts) == ("clear", False)

    def test_a_cancelled_level_is_announced_when_the_agent_is_back(self, backend: Backend) -> None:
        """It was never received, and is true again; a received notice is not repeated."""
        record = start(backend)
        register(backend)
        record = read(backend, record, 0.55)
        backend.append_events([make_event("scout-1", "agent_lost", **GONE)], [record])
        record = read(backend, record, 0.55)
        assert kinds(backend) == ["lost", "level"]
        for message in queue_of(backend).claim("boss", now=START):
            assert queue_of(backend).acknowledge(message.id, message.claim_token)
        backend.append_events([make_event("scout-1", "agent_lost", n=1, **GONE)], [record])
        read(backend, record, 0.55)
        assert kinds(backend) == ["lost"]

    def test_an_end_that_is_stored_late_leaves_the_next_owner_alone(self, backend: Backend) -> None:
        """An event of an earlier generation cancels nothing that is true of this one."""
        start(backend)
        register(backend)
        record = read(backend, start(backend, takeover=True), 0.55)
        late = make_event("scout-1", "agent_stopped", generation=1, outcome="completed")
        backend.append_events([late], [record])
        assert kinds(backend) == ["level", "ended"]

    def test_a_handoff_of_its_own_is_the_only_one(self, backend: Backend) -> None:
        """A handoff rebuilt for an agent that left one itself has the same key, and is no news."""
        record = start(backend)
        register(backend)
        own = {**HANDOFF, "reason": "threshold_critical"}
        record.seq += 1
        event = make_event("scout-1", "handoff_ready", handoff=own)
        assert backend.record(record, [event], durable=True)
        backend.append_events(
            [
                make_event("scout-1", "agent_lost", **GONE),
                make_event("scout-1", "handoff_ready", handoff=HANDOFF),
            ],
            [record],
        )
        assert kinds(backend) == ["handoff", "lost"]
        assert waiting(backend)[0].facts["reason"] == "threshold_critical"

    def test_a_registration_outlives_its_agent(self, backend: Backend) -> None:
        """It holds for the next owner of the id, whose end leads to a notice again."""
        record = start(backend)
        register(backend)
        finish(backend, read(backend, record, 0.55))
        assert len(registry_of(backend).registrations()) == 1
        record = begin_epoch(backend, start(backend), "handoff")
        record = read(backend, record, 0.65)
        assert kinds(backend) == ["ended", "epoch", "level"]
        assert said(backend)[2] == ("urgent", "critical")
        finish(backend, record, "completed")
        assert kinds(backend) == ["ended", "epoch", "ended"]

    def test_an_event_its_owner_could_not_store_is_announced_when_another_stores_it(
        self, backend: Backend
    ) -> None:
        """Its epoch cancels and notifies as if the owner had stored it, which then does neither."""
        record = start(backend, parent_id="boss")
        register(backend)
        old = read(backend, record, 0.65)
        event = make_event(
            "scout-1", "context_epoch_started", epoch=2, reason="compaction", tokensBefore=130_000
        )
        new = make_record("scout-1", seq=old.seq + 1, epoch=2, parent_id="boss")
        backend.append_events([event], [new])
        assert said(backend) == [("sequential", "compaction")]
        assert backend.record(new, [event], durable=True)
        assert said(backend) == [("sequential", "compaction")]

    def test_the_level_of_a_state_that_was_only_read_is_not_announced(
        self, backend: Backend
    ) -> None:
        """It may be older than what the owner has stored meanwhile, and would re-arm a rung."""
        record = start(backend)
        register(backend, ladder=None)
        low = read(backend, record, 0.1)
        high = read(backend, low, 0.75)
        low.usage_ratio = 0.9
        low.estimated_tokens = 180_000
        backend.append_events([make_event("scout-1", "agent_stale")], [low])
        backend.append_events([make_event("scout-1", "agent_expired", outcome="expired")], [low])
        read(backend, high, 0.76)
        assert kinds(backend) == ["level", "expired"]
