"""Releases claims whose successors never began, so that their handoffs are offered again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ultramon.backends.lease_holder import is_gone
from ultramon.errors import AgentNotFoundError, StateError
from ultramon.state.liveness import LOST_AFTER_SECONDS
from ultramon.system.ids import random_hex
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Collection

    from ultramon.backends.base import Backend, Claim
    from ultramon.state.record import StateRecord

_log = logging.getLogger("ultramon.fleet")


def release_abandoned(
    backend: Backend,
    *,
    source: str,
    now: float,
    run: str | None = None,
    ended: Collection[str] = (),
) -> None:
    """Release the pending claims of successors that will not begin any more.

    These are the claims of ended processes of this machine, of agents whose processes ended, and
    those pending for ten minutes. ``handoff_ready`` is stored again for each, with the same
    handoff, and once however many callers release.

    Args:
        backend: Where the claims are.
        source: The caller, for the events.
        now: Epoch seconds.
        run: Only handoffs of this run; None = of all runs.
        ended: Agents whose processes have ended.

    Raises:
        StateError: The store cannot be read.
    """
    for claim in backend.pending_claims():
        offer = claim.handoff_ready
        if offer is None or run not in (None, offer["run"]):
            continue
        if not (
            claim.successor_id in ended
            or now - claim.claimed_at > LOST_AFTER_SECONDS
            or (claim.claimant is not None and is_gone(claim.claimant))
        ):
            continue
        try:
            if has_taken_over(_find(backend, claim.successor_id), claim):
                backend.settle_claim(claim, None)
            else:
                _offer_again(backend, claim, offer, source, now)
        except StateError as error:
            # E.g. while the claimant is suspended in the middle of its start.
            _log.info("the claim of %s is not released yet: %s", claim.handoff_id, error)


def give_back(
    backend: Backend, handoff_id: str, successor_id: str, *, source: str, now: float
) -> None:
    """Release the pending claim of a successor that cannot begin.

    Raises:
        StateError: The store refused.
    """
    for claim in backend.pending_claims():
        offer = claim.handoff_ready
        if (claim.handoff_id, claim.successor_id) == (handoff_id, successor_id) and offer:
            _offer_again(backend, claim, offer, source, now)


def _offer_again(
    backend: Backend, claim: Claim, offer: dict[str, Any], source: str, now: float
) -> None:
    again = {
        **offer,
        "eventId": random_hex(16),
        "source": source,
        "occurredAt": format_time(now),
        # Distinct from the agent's own, which count from 0.
        "n": round(claim.claimed_at * 1000) + claim.number,
        "releasedFrom": claim.successor_id,
    }
    if backend.settle_claim(claim, again):
        _log.warning(
            "agent %s claimed the handoff of %s and never began; it is offered again",
            claim.successor_id,
            claim.agent_id,
        )


def has_taken_over(record: StateRecord | None, claim: Claim) -> bool:
    """Return whether the stored state of a successor shows that it continues a handoff.

    A state names the handoff. That of an agent that claimed while it ran cannot: then it was active
    after the claim and planned what is left. An agent without a process has no plan.
    """
    if record is None:
        return False
    if record.continues_handoff_id == claim.handoff_id:
        return True
    handoff = {} if claim.handoff_ready is None else claim.handoff_ready["handoff"]
    left = {*handoff.get("interrupted", ()), *handoff.get("remaining", ())}
    planned = left if record.pid is None else {task["name"] for task in record.tasks or ()}
    return record.last_activity >= claim.claimed_at and left <= planned


def _find(backend: Backend, agent_id: str) -> StateRecord | None:
    try:
        return backend.load(agent_id).record
    except (AgentNotFoundError, StateError):
        return None
