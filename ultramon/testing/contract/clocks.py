"""Conformance of stores while the wall clock of a machine is set: nothing stored moves with it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ultramon.testing.clock import FakeClock
from ultramon.testing.contract.messages import DAY, LEASE_SECONDS, claim, one, put, texts

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.backends.queue import Queue

HOUR = 3_600.0


class WallClock(FakeClock):
    """The clock of a caller on a machine whose wall clock is set: by `jump`, this process's too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._ahead = 0.0
        right_time = time.time
        # A store may ask the clock of its process instead of its caller's.
        monkeypatch.setattr(time, "time", lambda: right_time() + self._ahead)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forwards or back."""
        super().jump(seconds)
        self._ahead += seconds


class WallClockContract:
    """Base of the suites that need a wall clock which is set.

    Two clocks are read one after the other: what happens at one moment is a second apart here.
    """

    @pytest.fixture
    def wall(self, monkeypatch: pytest.MonkeyPatch) -> WallClock:
        """Give a wall clock that a test sets; it is right at first."""
        return WallClock(monkeypatch)


class QueueClockContract(WallClockContract):
    """What becomes of messages while the wall clock is wrong for a moment.

    The store goes by a clock that is never set, as far from that of the test as the wall clock is;
    see `ultramon.backends.queue.Queue`.
    """

    @pytest.fixture(params=[12 * HOUR, -12 * HOUR], ids=["ahead", "behind"])
    def wrong(self, request: pytest.FixtureRequest) -> float:
        """Give by how much the clock is wrong."""
        return float(request.param)

    def test_a_claim_under_a_wrong_clock_ends_with_its_lease(
        self, queue: Queue, wall: WallClock, wrong: float
    ) -> None:
        """Its claimer dies, the clock is set right: the message comes again, and not before."""
        put(queue, now=wall.now())
        wall.advance(1)
        wall.jump(wrong)
        one(queue, wall.now())
        wall.jump(-wrong)
        wall.advance(LEASE_SECONDS - 2)
        assert claim(queue, wall.now()) == []
        wall.advance(4)
        assert one(queue, wall.now()).attempts == 2

    def test_an_extension_under_a_wrong_clock_lasts_as_long_as_it_says(
        self, queue: Queue, wall: WallClock, wrong: float
    ) -> None:
        """The lease then runs from the time of the extension."""
        put(queue, now=wall.now())
        message = one(queue, wall.now())
        wall.jump(wrong)
        assert queue.extend(message.id, message.claim_token, now=wall.now(), lease_seconds=60.0)
        wall.jump(-wrong)
        wall.advance(50)
        assert claim(queue, wall.now()) == []
        wall.advance(12)
        assert one(queue, wall.now()).id == message.id

    def test_a_message_rejected_under_a_wrong_clock_comes_again_in_time(
        self, queue: Queue, wall: WallClock, wrong: float
    ) -> None:
        """After the pause of its attempt by the right clock."""
        put(queue, now=wall.now())
        for attempt in (1, 2, 3):
            message = one(queue, wall.now())
            wall.jump(wrong)
            queue.reject(message.id, message.claim_token, "no", now=wall.now())
            wall.jump(-wrong)
            assert claim(queue, wall.now()) == []
            wall.advance(2.0**attempt + 2)
        assert one(queue, wall.now()).attempts == 4

    def test_a_message_sent_under_a_wrong_clock_arrives_at_once(
        self, queue: Queue, wall: WallClock, wrong: float
    ) -> None:
        """It expires a day after it was sent, and says when that was by the right clock."""
        sent_at = wall.now()
        wall.jump(wrong)
        put(queue, "to fetch", now=wall.now())
        put(queue, "to leave", "other", now=wall.now())
        wall.jump(-wrong)
        wall.advance(1)
        message = one(queue, wall.now())
        assert message.text == "to fetch"
        assert abs(message.queued_at - sent_at) < 2
        assert abs(message.expires_at - sent_at - DAY) < 2
        wall.advance(DAY - 2)
        assert texts(queue.peek("other", now=wall.now())) == ["to leave"]
        wall.advance(4)
        assert claim(queue, wall.now(), recipient="other") == []

    def test_a_look_under_a_wrong_clock_takes_nothing_away(
        self, queue: Queue, wall: WallClock, wrong: float
    ) -> None:
        """No message expires, no lease ends and no retry is due."""
        for text in ("held", "rejected", "waits"):
            put(queue, text, now=wall.now())
        held, rejected = claim(queue, wall.now(), limit=2)
        queue.reject(rejected.id, rejected.claim_token, "no", now=wall.now())
        wall.advance(1)
        wall.jump(4 * wrong)
        assert claim(queue, wall.now(), recipient="other") == []
        # Two days, which is past the expiry of every message here.
        assert len(queue.peek("boss", now=wall.now())) == 3
        (depth,) = queue.depth(now=wall.now())
        assert (depth.ready, depth.waiting, depth.claimed, depth.expired) == (1, 1, 1, 0)
        assert texts(claim(queue, wall.now())) == ["waits"]
        wall.jump(-4 * wrong)
        assert queue.acknowledge(held.id, held.claim_token)
        assert queue.depth(now=wall.now())[0].expired == 0


class LeaseClockContract(WallClockContract):
    """What becomes of the lease of a consumer while the wall clock is wrong for a moment."""

    def test_a_lease_under_a_wrong_clock_ends_in_time(
        self, backend: Backend, wall: WallClock
    ) -> None:
        """Another holder gets the name when the lease is over by the right clock."""
        lease = {"lease_seconds": LEASE_SECONDS}
        for name, wrong in (("ahead", 12 * HOUR), ("behind", -12 * HOUR)):
            wall.jump(wrong)
            assert backend.subscribe(name, "fleet-1", now=wall.now(), **lease) is not None
            wall.jump(-wrong)
            wall.advance(LEASE_SECONDS - 2)
            assert backend.subscribe(name, "fleet-2", now=wall.now(), **lease) is None
            wall.advance(4)
            assert backend.subscribe(name, "fleet-2", now=wall.now(), **lease) is not None

    def test_a_wrong_clock_ends_no_lease(self, backend: Backend, wall: WallClock) -> None:
        """A holder keeps its name while others look under a clock that is ahead."""
        lease = {"lease_seconds": LEASE_SECONDS}
        assert backend.subscribe("main", "fleet-1", now=wall.now(), **lease) is not None
        wall.jump(12 * HOUR)
        assert backend.subscribe("main", "fleet-2", now=wall.now(), **lease) is None

    def test_a_claim_of_a_handoff_is_as_old_as_it_is(
        self, backend: Backend, wall: WallClock
    ) -> None:
        """Its age, by which it is released, is that of the right clock."""
        wall.jump(12 * HOUR)
        backend.claim_handoff("handoff-1", "scout-1", "scout-2", now=wall.now())
        for wrong in (0.0, -12 * HOUR, -24 * HOUR):
            wall.jump(wrong)
            (claimed,) = backend.pending_claims()
            assert abs(wall.now() - claimed.claimed_at) < 2
