"""The conformance suite of registrations: `ultramon.backends.registry` and the rules, as tests.

    class TestMyRegistry(RegistryContract):
        @pytest.fixture
        def backend(self, tmp_path):
            return MyBackend(tmp_path / "store")

`docs/backends.md` says more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ultramon.backends.queue import queue_of
from ultramon.backends.registry import registry_of
from ultramon.notices.message import Cancelled, Draft
from ultramon.testing.clock import START
from ultramon.testing.contract.ends import EndContract
from ultramon.testing.contract.notices import (
    NoticeContract,
    begin_epoch,
    read,
    reading,
    register,
    said,
    waiting,
)
from ultramon.testing.contract.states import prune, start, write
from ultramon.testing.contract.store import StoreContract
from ultramon.testing.samples import make_event

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.testing.contract.store import Reopen


class RegistryContract(NoticeContract, EndContract, StoreContract):
    """Inherit in a test class and give the fixture `backend`, and `reopen` for a durable store."""

    def test_a_compaction_re_arms_and_is_announced(self, backend: Backend) -> None:
        """Notices about the old window are cancelled; its end comes, then new ones."""
        record = start(backend)
        register(backend)
        record = read(backend, record, 0.65)
        record = begin_epoch(backend, record)
        read(backend, record, 0.55)
        assert said(backend) == [("sequential", "compaction"), ("sequential", "warning")]
        text = waiting(backend)[0].text
        assert text == (
            "[ultramon] Context window of scout-1 was compacted: 130,000 tokens before."
            " The agent is still running."
        )

    def test_a_clear_is_announced_to_others_only(self, backend: Backend) -> None:
        """A fresh window does not begin with the news that it is fresh."""
        for recipient, expected in (("boss", [("sequential", "clear")]), ("scout-1", [])):
            record = start(backend, takeover=True)
            register(backend, recipient)
            record = read(backend, record, 0.65)
            begin_epoch(backend, record, "clear")
            assert said(backend, recipient) == expected

    def test_the_parent_is_notified_of_a_compaction_without_a_registration(
        self, backend: Backend
    ) -> None:
        """A clear is not, nor is the compaction of an agent without a parent."""
        record = begin_epoch(backend, start(backend, parent_id="boss"))
        begin_epoch(backend, record, "clear")
        begin_epoch(backend, start(backend, "scout-2"))
        assert said(backend) == []
        record = begin_epoch(backend, start(backend, "scout-3", parent_id="boss"))
        assert said(backend) == [("sequential", "compaction")]

    def test_the_registered_recipient_is_notified_and_not_the_parent(
        self, backend: Backend
    ) -> None:
        """Everything goes to who was named."""
        record = start(backend, parent_id="boss")
        register(backend, "other")
        for ratio in (0.55, 0.70):
            record = read(backend, record, ratio)
        assert said(backend, "other") == [("urgent", "warning"), ("urgent", "critical")]
        begin_epoch(backend, record)
        assert said(backend, "other") == [("sequential", "compaction")]
        assert said(backend) == []

    def test_a_recipient_derived_from_the_parent_follows(self, backend: Backend) -> None:
        """After re-parenting the new parent is notified, once; a named one stays."""
        for source, recipient in (("parent", "other"), ("explicit", "boss")):
            record = start(backend, parent_id="boss", takeover=True)
            register(backend, source=source)
            record = read(backend, record, 0.4, parent_id="other")
            for _ in range(2):
                record = read(backend, record, 0.55)
            assert registry_of(backend).registrations("scout-1")[0].notify_id == recipient
            assert said(backend, recipient) == [("sequential", "warning")]
            register(backend)

    def test_registering_again_re_arms_and_cancels(self, backend: Backend) -> None:
        """Unreceived notices are cancelled and counted; the next reading leads to new ones."""
        record = start(backend)
        assert register(backend) == Cancelled(0, 0)
        record = read(backend, record, 0.55)
        assert register(backend) == Cancelled(1, 0)
        assert waiting(backend) == []
        record = read(backend, record, 0.55)
        queue_of(backend).claim("boss", now=START)
        assert register(backend) == Cancelled(0, 1)
        read(backend, record, 0.55)
        assert said(backend) == [("sequential", "warning")]

    def test_ending_a_registration_cancels(self, backend: Backend) -> None:
        """Unreceived notices are cancelled, no more follow, and it can be made again."""
        record = start(backend)
        register(backend)
        record = read(backend, record, 0.55)
        assert registry_of(backend).unregister("scout-1") == Cancelled(1, 0)
        assert registry_of(backend).unregister("scout-1") is None
        record = read(backend, record, 0.70)
        assert waiting(backend) == []
        register(backend)
        read(backend, record, 0.70)
        assert said(backend) == [("urgent", "critical")]

    def test_the_notice_of_a_handoff_survives_the_next_epoch(self, backend: Backend) -> None:
        """The successor's window has nothing to do with what its predecessor left."""
        record = start(backend)
        register(backend)
        handoff = {"reason": "threshold_warning", "completed": ["a", "b"], "remaining": ["c"]}
        record.seq += 1
        event = make_event("scout-1", "handoff_ready", handoff=handoff)
        assert backend.record(record, [event], durable=True)
        begin_epoch(backend, record, "handoff")
        assert said(backend) == [("sequential", "threshold_warning"), ("sequential", "handoff")]
        text = waiting(backend)[0].text
        assert text == "[ultramon] scout-1 left a handoff: 2 completed, 1 remaining."

    def test_an_event_that_comes_again_is_announced_once(self, backend: Backend) -> None:
        """A crash between two writes makes the same event come again."""
        record = start(backend)
        register(backend)
        begin_epoch(backend, record)
        begin_epoch(backend, record)
        assert said(backend) == [("sequential", "compaction")]

    def test_what_an_old_epoch_says_late_is_stale(self, backend: Backend) -> None:
        """Its event is kept, its notice is not made, and it cancels nothing of the new epoch."""
        old = start(backend)
        register(backend)
        new = begin_epoch(backend, begin_epoch(backend, old))
        late = make_event(
            "scout-1", "context_epoch_started", epoch=2, n=1, reason="clear", tokensBefore=1
        )
        record = read(backend, new, 0.55)
        record.seq += 1
        assert backend.record(record, [late], durable=True)
        assert said(backend) == [("sequential", "compaction"), ("sequential", "warning")]
        queue = queue_of(backend)
        draft = Draft("boss", "late", "scout-1", sender_epoch=(1, 2), category="context_monitor")
        assert queue.queue_message(draft, now=START) is None
        assert queue.queue_message(draft._replace(sender_epoch=(1, 3)), now=START) is not None

    def test_what_was_said_before_a_clear_from_outside_is_stale(self, backend: Backend) -> None:
        """Its notices are cancelled and counted; only readings made later lead to new ones.

        The notice of the clear itself comes after the cancellation, and arrives.
        """
        queue, registry = queue_of(backend), registry_of(backend)
        record = start(backend)
        register(backend)
        record = read(backend, record, 0.65)
        at = START + 10
        assert registry.cancel_notices(record, requester=None, now=at) == Cancelled(1, 0)
        assert said(backend) == [("sequential", "clear")]
        record = read(backend, record, 0.70, measured_at=at)
        stale = Draft("boss", "stale", "scout-1", said_at=at, category="context_monitor")
        assert queue.queue_message(stale, now=at + 1) is None
        new = stale._replace(text="new", said_at=at + 1)
        assert queue.queue_message(new, now=at + 1) is not None
        assert len(waiting(backend)) == 2
        read(backend, record, 0.70, measured_at=at + 1)
        assert said(backend)[-1] == ("urgent", "critical")

    def test_who_clears_is_not_notified_of_it(self, backend: Backend) -> None:
        """It knows; and without a registration there is no recipient."""
        registry = registry_of(backend)
        record = start(backend, parent_id="boss")
        assert registry.cancel_notices(record, requester=None, now=START) == Cancelled(0, 0)
        register(backend)
        assert registry.cancel_notices(record, requester="boss", now=START) == Cancelled(0, 0)
        assert waiting(backend) == []

    def test_other_messages_of_the_agent_stay(self, backend: Backend) -> None:
        """An epoch, a clear and a change of the registration cancel context notices only."""
        record = start(backend)
        queue_of(backend).queue_message(Draft("boss", "found it", sender="scout-1"), now=START)
        register(backend)
        record = begin_epoch(backend, record)
        registry_of(backend).cancel_notices(record, requester="boss", now=START)
        registry_of(backend).unregister("scout-1")
        assert [message.text for message in waiting(backend)] == ["found it"]

    def test_a_restart_repeats_no_notice(self, backend: Backend) -> None:
        """The next owner continues in the same epoch, and no notice is repeated."""
        record = start(backend)
        register(backend)
        record = read(backend, record, 0.55)
        record = start(backend, takeover=True, **reading(0.55))
        record = read(backend, record, 0.56)
        assert said(backend) == [("sequential", "warning")]
        assert registry_of(backend).announcement("scout-1", "boss") == (1, "warning")

    def test_registrations_survive_reopening(self, backend: Backend, reopen: Reopen) -> None:
        """Another process queues what this one would have, and nothing twice."""
        if reopen is None:
            pytest.skip("not durable")
        record = start(backend)
        register(backend)
        record = read(backend, record, 0.55)
        backend.close()
        other = reopen(backend)
        record = read(other, record, 0.60)
        read(other, record, 0.65)
        assert said(other) == [("urgent", "warning"), ("urgent", "critical")]
        other.close()

    def test_a_pruned_agent_leaves_no_registration(self, backend: Backend) -> None:
        """The next agent of its name begins without one, and without a past."""
        record = begin_epoch(backend, start(backend))
        register(backend)
        write(backend, record, active=False, last_activity=START - 1)
        prune(backend, START)
        assert registry_of(backend).registrations() == []
        record = start(backend)
        register(backend)
        read(backend, record, 0.55)
        assert said(backend)[-1] == ("sequential", "warning")
