"""Conformance of backends: claims of handoffs, pending until the successor's first state."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ultramon.errors import HandoffTakenError
from ultramon.testing.clock import START
from ultramon.testing.contract.events import THREADS, insist
from ultramon.testing.contract.states import held, start
from ultramon.testing.samples import make_event

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend, Claim
    from ultramon.state.record import StateRecord

HANDOFF = "handoff-1"
# One race hardly ever shows that both sides can win.
RACES = 10


def claim(
    backend: Backend, successor_id: str, handoff_id: str = HANDOFF, *, now: float = START
) -> str:
    """Claim a handoff of scout-1; return who holds it."""
    return backend.claim_handoff(handoff_id, "scout-1", successor_id, now=now)


def offer(n: int = 0, handoff_id: str = HANDOFF) -> dict[str, Any]:
    """Return an event that offers a handoff."""
    handoff = {"handoffId": handoff_id, "remaining": ["a"]}
    return make_event("scout-1", "handoff_ready", n=n, handoff=handoff)


def succeed(
    backend: Backend, successor_id: str, handoff_id: str = HANDOFF, **fields: Any
) -> StateRecord:
    """Start an agent that continues a handoff of scout-1."""
    fields |= {"predecessor_id": "scout-1", "continues_handoff_id": handoff_id}
    return start(backend, successor_id, **fields)


def pending(backend: Backend) -> Claim:
    """Return the one claim that is pending."""
    (claimed,) = backend.pending_claims()
    return claimed


class ClaimContract:
    """Who continues a handoff: one successor, until it is known that it never began."""

    def test_the_first_claim_wins(self, backend: Backend) -> None:
        """A claim gives the holder; for the holder itself it may be repeated."""
        assert claim(backend, "scout-2") == "scout-2"
        assert claim(backend, "scout-3") == "scout-2"
        assert claim(backend, "scout-2") == "scout-2"
        assert claim(backend, "scout-3", "handoff-2") == "scout-3"

    def test_claims_survive_reopening(
        self, backend: Backend, reopen: Callable[[Backend], Backend] | None
    ) -> None:
        """A claim holds against successors in later processes, pending or confirmed."""
        if reopen is None:
            pytest.skip("not durable")
        claim(backend, "scout-2")
        backend.close()
        again = reopen(backend)
        assert claim(again, "scout-3") == pending(again).successor_id == "scout-2"
        succeed(again, "scout-2")
        again.close()
        last = reopen(backend)
        assert (claim(last, "scout-3"), last.pending_claims()) == ("scout-2", [])

    def test_one_of_many_claims_wins(self, backend: Backend) -> None:
        """Of successors that claim at the same time, one wins, and all learn which one."""

        def take(number: int) -> str:
            return str(insist(lambda: claim(backend, f"scout-{number}")))

        with ThreadPoolExecutor(THREADS) as threads:
            holders = set(threads.map(take, range(2, 2 + 3 * THREADS)))
        assert holders == {pending(backend).successor_id}

    def test_a_claim_is_pending_until_its_successor_is_stored(self, backend: Backend) -> None:
        """It shows who claimed what, when and where, and the last event that offered the handoff.

        The first state of the successor that names the handoff confirms it; no other state does.
        """
        assert backend.pending_claims() == []
        offers = [offer(), offer(n=7), offer(8, "handoff-2")]
        backend.append_events(offers)
        backend.claim_handoff(HANDOFF, "scout-1", "scout-2", now=START + 0.25, claimant="a process")
        claimed = pending(backend)
        assert claimed[:3] == (HANDOFF, "scout-1", "scout-2")
        assert claimed.claimed_at == pytest.approx(START + 0.25, abs=0.002)
        assert (claimed.claimant, claimed.number, claimed.handoff_ready) == (
            "a process",
            1,
            offers[1],
        )
        start(backend, "scout-2")
        succeed(backend, "scout-9", "handoff-9")
        assert pending(backend) == claimed
        succeed(backend, "scout-2", takeover=True)
        assert backend.pending_claims() == []
        assert claim(backend, "scout-3") == "scout-2"

    def test_the_last_claim_of_a_holder_counts(self, backend: Backend) -> None:
        """Repeated while it is pending, it has the new time and process; confirmed, it stays."""
        claim(backend, "scout-2")
        backend.claim_handoff(HANDOFF, "scout-1", "scout-2", now=START + 5, claimant="another")
        claimed = pending(backend)
        assert (claimed.claimant, claimed.number, claimed.handoff_ready) == ("another", 2, None)
        assert claimed.claimed_at == pytest.approx(START + 5, abs=0.002)
        succeed(backend, "scout-2")
        assert claim(backend, "scout-2") == "scout-2"
        assert backend.pending_claims() == []

    def test_a_released_handoff_is_offered_again(self, backend: Backend) -> None:
        """The event is stored with the release, and any agent can claim the handoff."""
        claim(backend, "scout-2")
        again = offer(n=1)
        assert backend.settle_claim(pending(backend), again)
        assert backend.pending_claims() == []
        assert backend.events().events == [again]
        assert claim(backend, "scout-3") == "scout-3"
        assert pending(backend).number == 2

    def test_a_claim_is_settled_once(self, backend: Backend) -> None:
        """What is released, claimed anew or confirmed meanwhile stays so, without an event."""
        claim(backend, "scout-2")
        first = pending(backend)
        assert backend.settle_claim(first, offer(n=1))
        assert not backend.settle_claim(first, offer(n=2))
        claim(backend, "scout-2")
        assert not backend.settle_claim(first, offer(n=2))
        second = pending(backend)
        assert backend.settle_claim(second, None)
        assert backend.pending_claims() == []
        assert not backend.settle_claim(second, offer(n=2))
        assert claim(backend, "scout-3") == "scout-2"
        assert [event["n"] for event in backend.events().events] == [1]

    def test_a_successor_that_began_keeps_its_handoff(self, backend: Backend) -> None:
        """A release that comes after its first state changes nothing."""
        claim(backend, "scout-2")
        claimed = pending(backend)
        succeed(backend, "scout-2")
        assert not backend.settle_claim(claimed, offer(n=1))
        assert backend.events().events == []
        assert claim(backend, "scout-3") == "scout-2"

    def test_a_successor_whose_claim_was_released_is_refused(self, backend: Backend) -> None:
        """Its first state and events are not stored; the error names who has the handoff now."""
        claim(backend, "scout-2")
        backend.settle_claim(pending(backend), offer(n=1))
        with pytest.raises(HandoffTakenError, match="scout-1 is offered again") as refused:
            succeed(backend, "scout-2", events=[make_event("scout-2", "agent_started")])
        assert (refused.value.agent_id, refused.value.successor_id) == ("scout-1", None)
        claim(backend, "scout-3")
        with pytest.raises(HandoffTakenError, match="already claimed by scout-3"):
            succeed(backend, "scout-2")
        assert backend.list_agents() == []
        assert [event["type"] for event in backend.events().events] == ["handoff_ready"]
        succeed(backend, "scout-3")

    def test_a_refused_start_leaves_the_agent_before_it(self, backend: Backend) -> None:
        """Where the id belongs to an agent that ended, its state stays as it was."""
        before = start(backend, "scout-2", active=False, outcome="completed")
        claim(backend, "scout-3")
        with pytest.raises(HandoffTakenError):
            succeed(backend, "scout-2")
        assert held(backend, "scout-2").to_json() == before.to_json()

    def test_a_successor_may_start_again(self, backend: Backend) -> None:
        """Its next owner continues the same handoff under the same claim."""
        claim(backend, "scout-2")
        succeed(backend, "scout-2")
        assert succeed(backend, "scout-2", takeover=True).generation == 2

    def test_a_start_claims_what_is_not_claimed(self, backend: Backend) -> None:
        """A claim that the store lost is made anew by the state that names the handoff."""
        succeed(backend, "scout-2")
        assert (claim(backend, "scout-3"), backend.pending_claims()) == ("scout-2", [])

    def test_a_start_and_a_release_do_not_both_win(self, backend: Backend) -> None:
        """Either the successor is stored, or the handoff is offered again: never both or none."""

        def begin(number: int) -> bool:
            try:
                insist(lambda: succeed(backend, f"next-{number}", f"handoff-{number}"))
            except HandoffTakenError:
                return False
            return True

        for number in range(RACES):
            claim(backend, f"next-{number}", f"handoff-{number}")
            claimed = pending(backend)
            with ThreadPoolExecutor(2) as threads:
                begun = threads.submit(begin, number)
                again = offer(number, f"handoff-{number}")
                released = insist(partial(backend.settle_claim, claimed, again))
            assert begun.result() is not released
        stored = {agent.agent_id for agent in backend.list_agents()}
        offered = {f"next-{event['n']}" for event in backend.events().events}
        assert stored.isdisjoint(offered)
        assert len(stored | offered) == RACES
