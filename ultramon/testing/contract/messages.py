"""Conformance of queues, first part: cancelling, keys, bounds, expiry, looking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ultramon.backends.queue import Depth, queue_messages
from ultramon.errors import ConfigurationError, InvalidAgentIdError, QueueFullError
from ultramon.notices.message import Cancelled, Draft
from ultramon.testing.clock import START

if TYPE_CHECKING:
    from ultramon.backends.queue import Queue
    from ultramon.notices.message import Message

LEASE_SECONDS = 30.0
MOST_WAITING = 1_000
DAY = 86_400.0


def put(queue: Queue, text: str = "hello", recipient: str = "boss", **message: Any) -> int:
    """Queue a message, now if no time is given, and return its id."""
    now = message.pop("now", START)
    message_id = queue.queue_message(Draft(recipient, text, **message), now=now)
    assert message_id is not None
    return message_id


def claim(queue: Queue, at: float = START, recipient: str = "boss", **how: Any) -> list[Message]:
    """Claim with the defaults of the port."""
    return queue.claim(recipient, now=at, **how)


def one(queue: Queue, at: float = START, **how: Any) -> Message:
    """Claim, and insist that it is one message."""
    (message,) = claim(queue, at, **how)
    return message


def texts(messages: list[Message]) -> list[str]:
    """Return what messages say."""
    return [message.text for message in messages]


def kill(queue: Queue, at: float = START) -> float:
    """Reject the only message of the recipient until it is dead; return when that was."""
    for attempt in range(1, 6):
        message = one(queue, at)
        assert message.attempts == attempt
        assert queue.reject(message.id, message.claim_token, "no", now=at)
        at += 2.0**attempt  # the pause before the next attempt
    return at


class MessageContract:
    """What becomes of messages that are not claimed yet, or that died."""

    def test_cancelling_deletes_what_that_sender_said_in_that_category(self, queue: Queue) -> None:
        """One tagged message: counted, and gone."""
        put(queue, sender="scout", category="context_monitor")
        assert queue.cancel_messages_from("scout", "context_monitor") == Cancelled(1, 0)
        assert claim(queue) == []
        assert queue.cancel_messages_from("scout", "context_monitor") == Cancelled(0, 0)

    @pytest.mark.parametrize(
        "other",
        [
            {"sender": "scout"},
            {"sender": "scout", "category": "handoff"},
            {"sender": "other", "category": "context_monitor"},
            {"category": "context_monitor"},
            {"sender": "scout.1", "category": "context_monitor"},
        ],
        ids=str,
    )
    def test_cancelling_leaves_everything_else(self, queue: Queue, other: dict[str, Any]) -> None:
        """No category, another one, another sender or none: such messages stay."""
        put(queue, "stays", **other)
        assert queue.cancel_messages_from("scout", "context_monitor") == Cancelled(0, 0)
        assert texts(claim(queue)) == ["stays"]

    def test_cancelling_counts(self, queue: Queue) -> None:
        """Three tagged, for several recipients, and two untagged: 3, and the two stay."""
        for recipient in ("boss", "boss", "other"):
            put(queue, "stale", recipient, sender="scout", category="context_monitor")
        for _ in range(2):
            put(queue, "said", sender="scout")
        assert queue.cancel_messages_from("scout", "context_monitor") == Cancelled(3, 0)
        assert texts(claim(queue)) == ["said", "said"]
        assert claim(queue, recipient="other") == []

    def test_what_was_delivered_cannot_be_cancelled(self, queue: Queue) -> None:
        """It is not counted."""
        put(queue, sender="scout", category="context_monitor", dedupe_key="once")
        message = one(queue)
        queue.acknowledge(message.id, message.claim_token)
        assert queue.cancel_messages_from("scout", "context_monitor") == Cancelled(0, 0)

    def test_what_is_said_after_a_cancellation_arrives(self, queue: Queue) -> None:
        """A cancellation reaches back, not forward."""
        put(queue, "stale", sender="scout", category="context_monitor")
        queue.cancel_messages_from("scout", "context_monitor")
        put(queue, "new", sender="scout", category="context_monitor")
        assert texts(claim(queue)) == ["new"]

    def test_what_is_in_flight_is_never_delivered_again(self, queue: Queue) -> None:
        """A claimed message is counted apart; whatever its claimer does, it ends."""
        for _ in range(4):
            put(queue, sender="scout", category="context_monitor")
        done, slow, failed, lost = claim(queue)
        assert queue.cancel_messages_from("scout", "context_monitor") == Cancelled(0, 4)
        assert not queue.extend(slow.id, slow.claim_token, now=START)
        assert queue.acknowledge(done.id, done.claim_token)
        assert queue.reject(failed.id, failed.claim_token, "no", now=START)
        assert claim(queue, START + 20 * LEASE_SECONDS) == []
        assert not queue.acknowledge(lost.id, lost.claim_token)
        assert not queue.dead()
        assert not queue.depth(now=START)

    def test_the_dead_are_not_cancelled(self, queue: Queue) -> None:
        """They are evidence."""
        put(queue, sender="scout", category="context_monitor")
        kill(queue)
        assert queue.cancel_messages_from("scout", "context_monitor") == Cancelled(0, 0)
        assert len(queue.dead()) == 1

    def test_a_key_makes_a_message_unique(self, queue: Queue) -> None:
        """Sent again, ready or claimed, it is the first one; other keys and recipients differ."""
        first = put(queue, "first", dedupe_key="k")
        assert put(queue, "again", dedupe_key="k") == first
        assert put(queue, "other key", dedupe_key="l") != first
        assert put(queue, "other recipient", "other", dedupe_key="k") != first
        assert texts(claim(queue)) == ["first", "other key"]
        assert put(queue, "again", dedupe_key="k") == first
        assert claim(queue) == []

    def test_a_key_outlives_the_delivery(self, queue: Queue) -> None:
        """A sender that lost its connection may say everything again until the key expires."""
        first = put(queue, dedupe_key="k")
        message = one(queue)
        queue.acknowledge(message.id, message.claim_token)
        assert put(queue, dedupe_key="k") == first
        assert claim(queue) == queue.peek("boss", now=START) == []
        put(queue, "makes a claimer look", now=START + DAY)
        claim(queue, START + DAY)
        assert put(queue, dedupe_key="k", now=START + DAY) != first

    def test_a_cancelled_key_may_be_used_again(self, queue: Queue) -> None:
        """What was cancelled was never said."""
        tagged = {"sender": "scout", "category": "context_monitor", "dedupe_key": "k"}
        put(queue, "stale", **tagged)
        queue.cancel_messages_from("scout", "context_monitor")
        put(queue, "new", **tagged)
        assert texts(claim(queue)) == ["new"]

    def test_a_key_that_was_cancelled_in_flight_is_free(self, queue: Queue) -> None:
        """The new message arrives, and the claimer of the cancelled one cannot touch it."""
        tagged = {"sender": "scout", "category": "context_monitor", "dedupe_key": "k"}
        put(queue, "stale", **tagged)
        stale = one(queue)
        assert queue.cancel_messages_from("scout", "context_monitor") == Cancelled(0, 1)
        first = put(queue, "new", **tagged)
        assert first != stale.id
        assert put(queue, "again", **tagged) == first
        assert queue.reject(stale.id, stale.claim_token, "no", now=START)
        assert texts(claim(queue)) == ["new"]
        assert not queue.dead()

    def test_a_cancel_frees_no_key_of_what_was_delivered(self, queue: Queue) -> None:
        """It was said: the same message again is not delivered a second time."""
        tagged = {"sender": "scout", "category": "context_monitor", "dedupe_key": "k"}
        first = put(queue, **tagged)
        message = one(queue)
        queue.acknowledge(message.id, message.claim_token)
        assert queue.cancel_messages_from("scout", "context_monitor") == Cancelled(0, 0)
        assert put(queue, **tagged) == first
        assert claim(queue) == []

    def test_of_the_dead_and_the_new_with_one_key_one_is_ready(self, queue: Queue) -> None:
        """The key of a dead message is free; while it is used, the dead one stays dead."""
        first = put(queue, dedupe_key="k")
        at = kill(queue)
        assert put(queue, dedupe_key="k", now=at) != first
        assert not queue.retry(first, now=at)
        assert len(claim(queue, at)) == len(queue.dead()) == 1

    def test_a_category_is_bounded_for_each_recipient(self, queue: Queue) -> None:
        """Of more than 1,000 the oldest is dropped and counted, of others nothing."""
        put(queue, "no category")
        put(queue, "other category", category="handoff")
        put(queue, "other recipient", "other", category="context_monitor")
        for number in range(MOST_WAITING + 3):
            put(queue, str(number), category="context_monitor")
        waiting = texts(queue.peek("boss", now=START, limit=2 * MOST_WAITING))
        assert waiting[:3] == ["no category", "other category", "3"]
        assert len(waiting) == MOST_WAITING + 2
        depth = {one.recipient: one for one in queue.depth(now=START)}
        assert (depth["boss"].ready, depth["boss"].dropped) == (MOST_WAITING + 2, 3)
        assert (depth["other"].ready, depth["other"].dropped) == (1, 0)

    def test_what_has_no_category_is_refused_rather_than_dropped(self, queue: Queue) -> None:
        """Its sender learns that the recipient does not fetch it; fetching makes room."""
        for number in range(MOST_WAITING):
            put(queue, str(number))
        with pytest.raises(QueueFullError, match="boss: 1,000 messages wait"):
            put(queue, "one more")
        assert len(queue.peek("boss", now=START, limit=2 * MOST_WAITING)) == MOST_WAITING
        claim(queue, limit=1)
        put(queue, "one more")

    def test_several_messages_are_stored_as_one_by_one(self, queue: Queue) -> None:
        """In their order, each with what makes it differ; a key that is known gives its id."""
        first = put(queue, "known", dedupe_key="k")
        drafts = [
            Draft("boss", "one", "scout", category="c", delivery="important", facts={"n": 1}),
            Draft("boss", "again", dedupe_key="k"),
            Draft("other", "two", expires_seconds=60.0),
            Draft("boss", "three", dedupe_key="l"),
            Draft("boss", "again", dedupe_key="l"),
        ]
        ids = queue_messages(queue, drafts, now=START)
        assert len(set(ids)) == 4
        assert ids[1] == first
        assert ids[3] == ids[4]
        (important,) = claim(queue, deliveries=("important",))
        assert (important.id, important.sender, important.facts) == (ids[0], "scout", {"n": 1})
        assert texts(claim(queue)) == ["known", "three"]
        assert claim(queue, START + 60, recipient="other") == []
        assert queue_messages(queue, [], now=START) == []

    def test_several_messages_keep_to_the_bound(self, queue: Queue) -> None:
        """A category of which too many come at once loses its oldest ones, and they are counted."""
        for number in range(5):
            put(queue, f"old {number}", category="c")
        drafts = [Draft("boss", str(number), category="c") for number in range(MOST_WAITING - 2)]
        queue_messages(queue, drafts, now=START)
        waiting = texts(queue.peek("boss", now=START, limit=2 * MOST_WAITING))
        assert waiting[:3] == ["old 3", "old 4", "0"]
        assert len(waiting) == MOST_WAITING
        assert [one.dropped for one in queue.depth(now=START)] == [3]

    def test_one_wrong_message_stops_the_others(self, queue: Queue) -> None:
        """Each is checked before any is stored, and so is their number."""
        with pytest.raises(ConfigurationError, match="text"):
            queue_messages(queue, [Draft("boss", "fine"), Draft("boss", "")], now=START)
        with pytest.raises(ConfigurationError, match="at most 1,000 messages"):
            queue_messages(queue, [Draft("boss", "x")] * (MOST_WAITING + 1), now=START)
        assert queue.depth(now=START) == []

    def test_what_is_not_fetched_expires(self, queue: Queue) -> None:
        """After a day, or the time given, it is not delivered, and counted."""
        put(queue, "a day")
        put(queue, "a minute", expires_seconds=60.0)
        assert texts(queue.peek("boss", now=START + 60)) == ["a day"]
        assert texts(claim(queue, START + 60)) == ["a day"]
        put(queue, "later", now=START + 2 * DAY)
        assert texts(claim(queue, START + 2 * DAY)) == ["later"]
        assert [one.expired for one in queue.depth(now=START + 2 * DAY)] == [2]

    def test_a_message_may_be_held(self, queue: Queue) -> None:
        """It is there and not yet delivered; what others said meanwhile does not wait for it."""
        put(queue, "held", held_seconds=30.0)
        put(queue, "at once")
        assert texts(queue.peek("boss", now=START)) == ["held", "at once"]
        message = one(queue, START + 1)
        assert message.text == "at once"
        assert queue.acknowledge(message.id, message.claim_token)
        assert [claim(queue, START + at) for at in (1, 15, 29)] == [[], [], []]
        assert texts(claim(queue, START + 30)) == ["held"]

    def test_a_claimed_message_does_not_expire(self, queue: Queue) -> None:
        """Its claimer may end it in time; given back too late, it does not come again."""
        for _ in range(2):
            put(queue, expires_seconds=10.0)
        done, failed = claim(queue, START + 9)
        assert queue.reject(failed.id, failed.claim_token, "no", now=START + 9)
        assert claim(queue, START + 20) == []
        assert queue.acknowledge(done.id, done.claim_token)

    def test_depth_counts_each_state(self, queue: Queue) -> None:
        """Ready, waiting for its next attempt, claimed, dead, and since when."""
        put(queue)
        at = kill(queue)
        for number in range(4):
            put(queue, now=at + number)
        failed, _ = claim(queue, at + 3, limit=2)
        queue.reject(failed.id, failed.claim_token, "no", now=at + 3)
        assert queue.depth(now=at + 4) == [Depth("boss", 2, 1, 1, 1, 0, 0, at)]

    def test_looking_changes_nothing(self, queue: Queue) -> None:
        """A look shows what is ready or claimed, by id, in pages, and claims nothing."""
        ids = [put(queue, str(number)) for number in range(5)]
        claim(queue, limit=2)
        for _ in range(2):
            assert [m.id for m in queue.peek("boss", now=START)] == ids
        page = queue.peek("boss", now=START, limit=2)
        assert texts(page) == ["0", "1"]
        assert page[0].attempts == 1
        assert texts(queue.peek("boss", now=START, after=page[-1].id)) == ["2", "3", "4"]
        assert len(claim(queue)) == 3

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            ({"recipient": "../boss"}, InvalidAgentIdError),
            ({"sender": ""}, InvalidAgentIdError),
            ({"text": ""}, ConfigurationError),
            ({"text": "x" * 65_537}, ConfigurationError),
            ({"category": ""}, ConfigurationError),
            ({"category": "x" * 65}, ConfigurationError),
            ({"delivery": "later"}, ConfigurationError),
            ({"expires_seconds": 0.0}, ConfigurationError),
            ({"expires_seconds": float("nan")}, ConfigurationError),
            ({"expires_seconds": 1e9}, ConfigurationError),
            ({"held_seconds": -1.0}, ConfigurationError),
            ({"held_seconds": float("nan")}, ConfigurationError),
            ({"held_seconds": 31.0}, ConfigurationError),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_what_cannot_be_queued_is_refused(
        self, queue: Queue, wrong: dict[str, Any], error: type[Exception]
    ) -> None:
        """Wrong arguments are typed errors, and nothing is stored."""
        message = {"recipient": "boss", "text": "hello", **wrong}
        with pytest.raises(error):
            put(queue, **message)
        assert queue.depth(now=START) == []
