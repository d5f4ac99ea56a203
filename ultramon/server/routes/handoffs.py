"""Routes of handoffs: the records that agents left, and their successors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from pydantic import ValidationError

from ultramon.errors import HandoffTakenError, StateCorruptError
from ultramon.handoff import DEFAULT_PROMPT_TOKENS, HandoffRecord
from ultramon.server.http.authorization import AnyCaller, PermittedAgent, Served, may_see
from ultramon.server.http.responses import ID_PATTERN, AgentIdText, Sent, problems
from ultramon.state.models import Model
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from ultramon.backends.base import StoredAgent
    from ultramon.server.services import Services

router = APIRouter(tags=["handoffs"])


class ShownHandoff(Model):
    """A handoff with the first prompt for its successor."""

    handoff: HandoffRecord
    prompt: str
    """Markdown. Its free text comes from the agent that left it: data, never an instruction."""


class HandoffList(Model):
    """The last handoff of each agent that left one, by agent id."""

    handoffs: list[HandoffRecord]


class Successor(Sent):
    """The agent that continues."""

    successor_id: AgentIdText


class ClaimedHandoff(Model):
    """A handoff claimed by its successor."""

    handoff_id: str
    agent_id: str
    successor_id: str


@router.get("/handoffs", responses=problems(422))
def list_handoffs(
    services: Served,
    caller: AnyCaller,
    run: Annotated[str | None, Query(pattern=ID_PATTERN)] = None,
) -> HandoffList:
    """Return the handoffs of one run or of all; to an agent only its own and its children's."""
    found = []
    for stored in services.backend.list_agents(run):
        if stored.record is not None and may_see(caller, stored):
            found.append(_handoff(services, stored))
    return HandoffList(handoffs=[handoff for handoff in found if handoff is not None])


@router.get("/agents/{agent_id}/handoff", responses=problems(404, 422))
def show_handoff(
    agent: PermittedAgent,
    services: Served,
    max_tokens: Annotated[int, Query(alias="maxTokens", ge=1, le=100_000)] = DEFAULT_PROMPT_TOKENS,
) -> ShownHandoff:
    """Return the handoff of an agent as a record, and as a prompt of at most `maxTokens`."""
    handoff = _handoff_of(services, agent)
    return ShownHandoff(handoff=handoff, prompt=handoff.to_prompt(max_tokens))


@router.post("/agents/{agent_id}/handoff/claim", responses=problems(404, 409, body=True))
def claim_handoff(agent: PermittedAgent, body: Successor, services: Served) -> ClaimedHandoff:
    """Claim a handoff for one successor: the first wins, and repeating its claim succeeds again.

    The answer 409 names the successor that holds the claim. A successor that does not start within
    ten minutes loses it, and the handoff is offered again.
    """
    handoff = _handoff_of(services, agent)
    holder = services.backend.claim_handoff(
        handoff.handoff_id, agent.agent_id, body.successor_id, now=services.now()
    )
    if holder != body.successor_id:
        raise HandoffTakenError(agent.agent_id, holder)
    return ClaimedHandoff(
        handoff_id=handoff.handoff_id, agent_id=agent.agent_id, successor_id=holder
    )


def _handoff_of(services: Services, stored: StoredAgent) -> HandoffRecord:
    handoff = _handoff(services, stored)
    if handoff is None:
        raise HTTPException(404, f"agent {stored.agent_id} has left no handoff")
    return handoff


def _handoff(services: Services, stored: StoredAgent) -> HandoffRecord | None:
    """Return the last handoff of an agent, its own or the one rebuilt after it vanished."""
    left = None if stored.record is None else stored.record.handoff
    rebuilt = services.rebuilt.of(stored.agent_id)
    # The newer one counts: an agent that was lost may have come back and left its own.
    if left is None or (rebuilt is not None and _made_at(rebuilt) > _made_at(left)):
        left = rebuilt
    if left is None:
        return None
    try:
        return HandoffRecord.model_validate(left)
    except ValidationError as error:
        reason = f"its handoff is not one that ultramon wrote: {error.error_count()} wrong fields"
        raise StateCorruptError(stored.agent_id, reason) from error


def _made_at(handoff: dict[str, Any]) -> float:
    return parse_time(handoff.get("createdAt")) or 0.0
