"""The conformance suite of queues: every sentence of `ultramon.backends.queue`, as tests.

    class TestMyQueue(QueueContract):
        @pytest.fixture
        def backend(self, tmp_path):
            return MyBackend(tmp_path / "store")

`docs/backends.md` says more.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from ultramon.backends.queue import queue_of
from ultramon.notices.message import Cancelled
from ultramon.testing.clock import START
from ultramon.testing.contract.clocks import QueueClockContract
from ultramon.testing.contract.events import THREADS, insist
from ultramon.testing.contract.messages import (
    DAY,
    LEASE_SECONDS,
    MessageContract,
    claim,
    kill,
    one,
    put,
    texts,
)
from ultramon.testing.contract.states import prune, start, write
from ultramon.testing.contract.store import StoreContract

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.backends.queue import Queue
    from ultramon.notices.message import Message
    from ultramon.testing.contract.store import Reopen


class QueueContract(MessageContract, QueueClockContract, StoreContract):
    """Inherit in a test class and give the fixture `backend`, and `reopen` for a durable store."""

    @pytest.fixture
    def queue(self, backend: Backend) -> Queue:
        """Give the queue of the backend."""
        return queue_of(backend)

    def test_nothing_waits_at_first(self, queue: Queue) -> None:
        """Looking, claiming, cancelling and ending find nothing and raise nothing."""
        assert claim(queue) == queue.peek("boss", now=START) == queue.dead() == []
        assert queue.depth(now=START) == []
        assert queue.cancel_messages_from("scout", "context_monitor") == Cancelled(0, 0)
        assert not queue.acknowledge(1, "token")
        assert not queue.extend(1, "token", now=START)
        assert not queue.reject(1, "token", "why", now=START)
        assert not queue.retry(1, now=START)
        assert not queue.drop(1)

    def test_a_message_comes_as_it_was_sent(self, queue: Queue) -> None:
        """Text in any script, facts of any JSON kind, sender, category and times are kept."""
        facts = {"level": "warning", "percent": 70.5, "tokens": 141_000, "at": None, "ids": ["ä"]}
        message_id = put(
            queue,
            "naïve 探 \u2028 'quoted'",
            sender="scout",
            category="context_monitor",
            delivery="important",
            facts=facts,
            expires_seconds=60.0,
        )
        message = one(queue, START + 1)
        assert message._replace(claim_token="") == (
            message_id,
            "boss",
            "scout",
            "context_monitor",
            "important",
            "naïve 探 \u2028 'quoted'",
            facts,
            1,
            "",
            START,
            START + 60.0,
            None,
        )
        assert message.claim_token

    def test_a_message_reaches_its_recipient_only(self, queue: Queue) -> None:
        """Others claim and see nothing of it."""
        put(queue)
        assert claim(queue, recipient="other") == []
        assert queue.peek("other", now=START) == []
        assert texts(claim(queue)) == ["hello"]

    def test_an_acknowledged_message_is_delivered(self, queue: Queue) -> None:
        """It never comes again, and a second acknowledgement says that there is nothing to end."""
        put(queue)
        message = one(queue)
        assert queue.acknowledge(message.id, message.claim_token)
        assert not queue.acknowledge(message.id, message.claim_token)
        assert claim(queue, START + 10 * LEASE_SECONDS) == []
        assert queue.depth(now=START) == []

    def test_a_claimed_message_is_left_alone_for_its_lease(self, queue: Queue) -> None:
        """No other claimer gets it for 30 s; then it comes again, as the same message."""
        put(queue)
        first = one(queue)
        assert claim(queue, START + LEASE_SECONDS - 0.001) == []
        second = one(queue, START + LEASE_SECONDS)
        assert (second.id, second.attempts) == (first.id, 2)
        assert second.claim_token != first.claim_token

    def test_who_lost_a_claim_ends_nothing(self, queue: Queue) -> None:
        """A late acknowledgement, extension or rejection of the first claimer is refused."""
        put(queue)
        first = one(queue)
        second = one(queue, START + LEASE_SECONDS)
        later = START + LEASE_SECONDS
        assert not queue.acknowledge(first.id, first.claim_token)
        assert not queue.extend(first.id, first.claim_token, now=later)
        assert not queue.reject(first.id, first.claim_token, "late", now=later)
        assert queue.acknowledge(second.id, second.claim_token)

    def test_a_late_claimer_that_was_not_replaced_may_acknowledge(self, queue: Queue) -> None:
        """It was slow and did its work: the message would only be delivered twice."""
        put(queue)
        message = one(queue)
        assert queue.extend(message.id, message.claim_token, now=START + 2 * LEASE_SECONDS)
        assert queue.acknowledge(message.id, message.claim_token)

    def test_a_claim_can_be_extended(self, queue: Queue) -> None:
        """The lease then runs from the time of the extension."""
        put(queue)
        message = one(queue)
        assert queue.extend(message.id, message.claim_token, now=START + 20)
        assert claim(queue, START + 20 + LEASE_SECONDS - 0.001) == []
        assert one(queue, START + 20 + LEASE_SECONDS).id == message.id

    def test_the_lease_can_be_chosen(self, queue: Queue) -> None:
        """A claimer that knows how long it takes says so."""
        put(queue)
        first = one(queue, lease_seconds=2.0)
        assert claim(queue, START + 1.9) == []
        second = one(queue, START + 2.0, lease_seconds=2.0)
        assert second.id == first.id
        assert queue.extend(second.id, second.claim_token, now=START + 3, lease_seconds=100.0)
        assert claim(queue, START + 102) == []

    def test_urgent_comes_first_and_then_the_oldest(self, queue: Queue) -> None:
        """Urgent before important before sequential, each in the order of sending."""
        for number, delivery in enumerate(
            ("sequential", "urgent", "important", "sequential", "urgent", "important")
        ):
            put(queue, f"{number} {delivery}", delivery=delivery)
        assert [text[0] for text in texts(claim(queue))] == list("142503")

    def test_a_claimer_may_want_some_modes_only(self, queue: Queue) -> None:
        """The others stay for the next claimer."""
        for delivery in ("sequential", "urgent", "important"):
            put(queue, delivery, delivery=delivery)
        assert texts(claim(queue, deliveries=("urgent",))) == ["urgent"]
        assert claim(queue, deliveries=("urgent",)) == []
        wanted = ("sequential", "important")
        assert texts(claim(queue, deliveries=wanted)) == ["important", "sequential"]

    def test_a_batch_has_a_limit(self, queue: Queue) -> None:
        """Ten by default, what is asked for otherwise, and never more than fifty."""
        for number in range(70):
            put(queue, str(number))
        assert texts(claim(queue)) == [str(number) for number in range(10)]
        assert texts(claim(queue, limit=3)) == ["10", "11", "12"]
        assert len(claim(queue, limit=1_000)) == 50

    def test_a_rejected_message_waits_longer_each_time(self, queue: Queue) -> None:
        """It comes again after 2, 4, 8 and 16 seconds, with the reason given."""
        put(queue)
        at = START
        for attempt in range(1, 5):
            message = one(queue, at)
            assert message.attempts == attempt
            assert message.last_error == (None if attempt == 1 else f"reason {attempt - 1}")
            error = f"reason {attempt}"
            assert queue.reject(message.id, message.claim_token, error, now=at)
            assert not queue.reject(message.id, message.claim_token, error, now=at)
            pause = 2.0**attempt
            assert claim(queue, at + pause - 0.001) == []
            at += pause
        assert one(queue, at).attempts == 5

    def test_a_message_dies_at_the_fifth_attempt(self, queue: Queue) -> None:
        """Not at the fourth, and after the fifth it is kept with the last reason, not delivered."""
        message_id = put(queue)
        at = kill(queue)
        assert claim(queue, at + DAY / 2) == []
        assert queue.peek("boss", now=at) == []
        (dead,) = queue.dead()
        assert (dead.id, dead.attempts, dead.last_error) == (message_id, 5, "no")
        assert queue.dead("boss") == [dead]
        assert queue.dead("other") == []

    def test_a_message_whose_claimers_vanish_dies_too(self, queue: Queue) -> None:
        """Five leases that ran out are five attempts."""
        put(queue)
        at = START
        for attempt in range(1, 6):
            assert one(queue, at).attempts == attempt
            assert queue.dead() == []
            at += LEASE_SECONDS
        assert claim(queue, at) == []
        (dead,) = queue.dead()
        assert dead.attempts == 5
        assert dead.last_error

    def test_a_death_is_an_event(self, backend: Backend, queue: Queue) -> None:
        """One `dead_letter` about the recipient, each time that a message dies."""
        start(backend, "boss", run="audit")
        backend.append_events([])
        message_id = put(queue)
        at = kill(queue)
        queue.retry(message_id, now=at)
        kill(queue, at)
        events = [e for e in backend.events().events if e["type"] == "dead_letter"]
        assert [(e["agentId"], e["n"]) for e in events] == [("boss", message_id)] * 2

    def test_a_poison_message_takes_no_neighbour_along(self, queue: Queue) -> None:
        """What was claimed with it comes again, alone and with attempts left, and arrives."""
        for text in ("before", "poison", "after"):
            put(queue, text)
        at, delivered = START, []
        assert texts(claim(queue, at)) == ["before", "poison", "after"]
        while at < START + 20 * LEASE_SECONDS:
            at += 1
            for message in claim(queue, at):
                if message.text != "poison":
                    delivered.append(message.text)
                    assert message.attempts == 2
                    assert queue.acknowledge(message.id, message.claim_token)
        assert delivered == ["before", "after"]
        assert texts(queue.dead()) == ["poison"]

    def test_what_failed_is_claimed_alone(self, queue: Queue) -> None:
        """Neither do new messages come with it, nor it with new ones."""
        put(queue, "failed")
        message = one(queue)
        queue.reject(message.id, message.claim_token, "no", now=START)
        put(queue, "new 1")
        put(queue, "new 2")
        assert texts(claim(queue, START + 2)) == ["failed"]
        assert texts(claim(queue, START + 2)) == ["new 1", "new 2"]

    def test_the_dead_can_be_tried_again(self, queue: Queue) -> None:
        """With five new attempts and a day before it; only once, and only the dead."""
        message_id = put(queue)
        assert not queue.retry(message_id, now=START)
        at = kill(queue) + 3 * DAY
        assert queue.retry(message_id, now=at)
        assert not queue.retry(message_id, now=at)
        message = one(queue, at + DAY - 1)
        assert (message.id, message.attempts) == (message_id, 1)
        assert queue.dead() == []

    def test_the_dead_can_be_dropped(self, queue: Queue) -> None:
        """Then they are gone; a living message cannot be dropped."""
        message_id = put(queue)
        assert not queue.drop(message_id)
        kill(queue)
        assert queue.drop(message_id)
        assert not queue.drop(message_id)
        assert not queue.dead()
        assert not queue.depth(now=START)

    def test_messages_survive_reopening(self, backend: Backend, reopen: Reopen) -> None:
        """Another process finds what is ready, respects what is claimed, and ends it."""
        if reopen is None:
            pytest.skip("not durable")
        queue = queue_of(backend)
        put(queue, "claimed")
        put(queue, "ready")
        claimed = one(queue, limit=1)
        backend.close()
        other = reopen(backend)
        again = queue_of(other)
        assert texts(claim(again)) == ["ready"]
        assert again.acknowledge(claimed.id, claimed.claim_token)
        assert texts(claim(again, START + LEASE_SECONDS)) == ["ready"]
        other.close()

    def test_a_pruned_agent_leaves_no_messages(self, backend: Backend, queue: Queue) -> None:
        """The next agent of its name does not get what the one before did not fetch."""
        record = start(backend, "boss")
        put(queue)
        put(queue, recipient="other", sender="boss")
        write(backend, record, active=False, last_activity=START - 1)
        prune(backend, START)
        assert claim(queue) == []
        assert len(claim(queue, recipient="other")) == 1

    def test_the_long_dead_are_pruned_with_the_events(self, backend: Backend, queue: Queue) -> None:
        """Dead messages are kept as long as events, ready ones until they expire."""
        put(queue)
        kill(queue)
        put(queue, "ready")
        prune(backend, events_before=START)
        assert len(queue.dead()) == 1
        prune(backend, events_before=START + 1)
        assert queue.dead() == []
        assert texts(claim(queue)) == ["ready"]

    def test_every_message_goes_to_one_of_many_claimers(self, queue: Queue) -> None:
        """However many claim at once, each message is claimed once."""
        ids = [put(queue, str(number)) for number in range(3 * THREADS)]

        def take(_: int) -> list[int]:
            taken: list[Message] = insist(lambda: claim(queue, limit=2))
            return [message.id for message in taken]

        with ThreadPoolExecutor(THREADS) as threads:
            taken = [i for batch in threads.map(take, range(2 * THREADS)) for i in batch]
        assert sorted(taken) == ids
