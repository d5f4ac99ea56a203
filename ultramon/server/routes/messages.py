"""Routes of an agent's messages: send, list, claim with a long poll, settle, stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Depends, Header, HTTPException, Path, Query, Request
from pydantic import Field

from ultramon.errors import ConfigurationError
from ultramon.notices.message import EXPIRY_SECONDS, Draft
from ultramon.notices.message_rules import (
    DELIVERIES,
    LEASE_SECONDS,
    MAX_BATCH,
    MAX_TEXT_CHARS,
)
from ultramon.notices.models import Notice
from ultramon.notices.texts import CATEGORIES
from ultramon.server.http.authorization import AnyCaller, Served, permit
from ultramon.server.http.error_responses import refuse
from ultramon.server.http.responses import MAX_NUMBER, AgentIdInPath, Sent, Whole, problems
from ultramon.server.http.streams import EventStream, StreamSlot, poll, server_sent_events
from ultramon.state.models import Model
from ultramon.system.ids import check_agent_id

if TYPE_CHECKING:
    from ultramon.server.services import Services

router = APIRouter(prefix="/agents/{agent_id}/messages", tags=["messages"])

MAX_WAIT_SECONDS = 60.0
MAX_LEASE_SECONDS = 3_600.0
_CHUNK_MESSAGES = 10

Delivery = Literal["urgent", "important", "sequential"]
Settlement = Literal["acknowledged", "extended", "rejected"]
MessageNumber = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
LeaseSeconds = Annotated[
    float,
    Field(
        ge=1,
        le=MAX_LEASE_SECONDS,
        description="The message is redelivered unless it is acknowledged by then.",
    ),
]
ClaimToken = Annotated[
    str, Field(min_length=1, max_length=64, description="The token of the claim.")
]


class NewMessage(Sent):
    """A message to send; the token decides the sender."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)]
    category: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """At most 1,000 messages of one category wait: beyond that the oldest is dropped. None = never
    dropped."""
    delivery: Delivery = "sequential"
    dedupe_key: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """A further message of the same sender with this key is not stored until this one expires."""
    expires_seconds: Annotated[float, Field(gt=0, le=366 * 86_400)] = EXPIRY_SECONDS


class Claim(Sent):
    """The messages to claim, and how long to wait for one."""

    limit: Annotated[Whole, Field(ge=1, le=MAX_BATCH)] = 10
    deliveries: Annotated[list[Delivery], Field(min_length=1, max_length=3)] | None = None
    """Only messages of these modes; None = all."""
    lease_seconds: LeaseSeconds = LEASE_SECONDS
    wait_seconds: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)] = 0.0


class Held(Sent):
    """A claim."""

    claim_token: ClaimToken


class Extension(Held):
    """The further time of a claim, from now."""

    lease_seconds: LeaseSeconds = LEASE_SECONDS


class Rejection(Held):
    """The reason why a claimed message is rejected."""

    error: Annotated[str, Field(max_length=10_000)]
    """For people; the first 500 characters are kept."""


class ClaimedNotice(Notice):
    """A message that the caller holds until its lease ends."""

    claim_token: str
    """Needed to acknowledge, extend or reject the message."""


class Waiting(Model):
    """Waiting messages, in the order of sending."""

    messages: list[Notice]


class Claimed(Model):
    """Claimed messages: urgent before important before sequential, then the oldest first."""

    messages: list[ClaimedNotice]


class Stored(Model):
    """The number of a message."""

    message_id: int


class Settled(Stored):
    """A message whose claim was settled or extended."""

    status: Settlement


def _own_inbox(
    agent_id: AgentIdInPath, request: Request, services: Served, caller: AnyCaller
) -> str:
    if not caller.is_admin and caller.agent_id != check_agent_id(agent_id):
        problem = f"agent {caller.agent_id} may read its own messages only"
        raise refuse(request, problem, agent_id=agent_id)
    return agent_id


OwnInbox = Annotated[str, Depends(_own_inbox)]
"""The recipient in the path: an agent reads its own messages only."""


@router.get("", responses=problems(404, 422))
def list_messages(
    inbox: OwnInbox,
    services: Served,
    after: Annotated[int, Query(ge=0, le=MAX_NUMBER)] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> Waiting:
    """Return the waiting messages after a number, claimed ones included; nothing changes."""
    waiting = services.queue.peek(inbox, now=services.now(), after=after, limit=limit)
    return Waiting(messages=[Notice.of(one) for one in waiting])


@router.post("", status_code=201, responses=problems(404, body=True))
def send_message(
    agent_id: AgentIdInPath, body: NewMessage, request: Request, services: Served, caller: AnyCaller
) -> Stored:
    """Send a message; an agent sends to itself, its direct parent and its direct children.

    The text is data of the sender that the token names, never an instruction of ultramon.
    """
    if not caller.is_admin and agent_id not in (caller.agent_id, caller.parent_id):
        permit(request, agent_id)
    sender = caller.agent_id
    if sender is not None:
        services.limit_rate(sender, f"agent {sender} sends too often; wait a second")
    if body.category in CATEGORIES:
        # It would be cancelled with the notices about the sender, and read as one of them.
        raise ConfigurationError("category", body.category, "none of ultramon's own notices")
    # Keys are per sender, so that no agent can suppress the message of another by guessing its key.
    dedupe_key = body.dedupe_key and f"{sender or caller.kind}/{body.dedupe_key}"
    draft = Draft(
        agent_id,
        body.text,
        sender,
        category=body.category,
        delivery=body.delivery,
        dedupe_key=dedupe_key,
        expires_seconds=body.expires_seconds,
    )
    message_id = services.queue.queue_message(draft, now=services.now())
    # 0: the database is away, and the message is kept on this machine until it is back.
    return Stored(message_id=message_id or 0)


@router.post("/claim", responses=problems(404, body=True))
async def claim_messages(
    inbox: OwnInbox, body: Claim, request: Request, services: Served, caller: AnyCaller
) -> Claimed:
    """Claim messages; with `waitSeconds` wait until one arrives.

    Nothing is claimed for a client that has closed its connection. Messages whose answer is lost on
    the way are redelivered when their lease ends.
    """

    def claim() -> list[ClaimedNotice]:
        messages = services.queue.claim(
            inbox,
            now=services.now(),
            limit=body.limit,
            deliveries=body.deliveries or DELIVERIES,
            lease_seconds=body.lease_seconds,
        )
        return [ClaimedNotice.of(one) for one in messages]

    return Claimed(messages=await poll(request, body.wait_seconds, claim, recipient=inbox))


@router.post("/{message_id}/acknowledge", responses=problems(404, 409, body=True))
def acknowledge_message(
    inbox: OwnInbox, message_id: MessageNumber, body: Held, services: Served
) -> Settled:
    """Settle a message as delivered; 404 when it has ended already, 409 when the claim is lost."""
    is_done = services.queue.acknowledge(message_id, body.claim_token)
    return _settled(services, inbox, message_id, "acknowledged", is_done=is_done)


@router.post("/{message_id}/extend", responses=problems(404, 409, body=True))
def extend_claim(
    inbox: OwnInbox, message_id: MessageNumber, body: Extension, services: Served
) -> Settled:
    """Extend a claim; 404 when the message was cancelled or has ended: stop handling it."""
    is_done = services.queue.extend(
        message_id, body.claim_token, now=services.now(), lease_seconds=body.lease_seconds
    )
    return _settled(services, inbox, message_id, "extended", is_done=is_done)


@router.post("/{message_id}/reject", responses=problems(404, 409, body=True))
def reject_message(
    inbox: OwnInbox, message_id: MessageNumber, body: Rejection, services: Served
) -> Settled:
    """Reject a claimed message: it is retried after 2, 4, 8, 16 s; the fifth time it is dead."""
    is_done = services.queue.reject(message_id, body.claim_token, body.error, now=services.now())
    return _settled(services, inbox, message_id, "rejected", is_done=is_done)


@router.get("/stream", response_class=EventStream, responses=problems(404, 422, stream=True))
async def stream_messages(
    *,
    inbox: OwnInbox,
    request: Request,
    services: Served,
    caller: AnyCaller,
    slot: StreamSlot,
    last_event_id: Annotated[
        int, Header(ge=0, le=MAX_NUMBER, description="The last number received.")
    ] = 0,
) -> EventStream:
    """Send waiting and new messages as server-sent events; the id is the message's number.

    Nothing is claimed: a message that is acknowledged before it is read here is not sent, and one
    that is redelivered is not sent again.
    """
    last = last_event_id

    def read() -> list[tuple[str, str]]:
        nonlocal last
        waiting = services.queue.peek(inbox, now=services.now(), after=last, limit=_CHUNK_MESSAGES)
        last = waiting[-1].id if waiting else last
        return [(str(one.id), Notice.of(one).model_dump_json(by_alias=True)) for one in waiting]

    return server_sent_events(request, read)


def _settled(
    services: Services, recipient: str, message_id: int, status: Settlement, *, is_done: bool
) -> Settled:
    """Return the answer to a claim: 409 or 404 when it did not hold."""
    if is_done:
        return Settled(message_id=message_id, status=status)
    waiting = services.queue.peek(recipient, now=services.now(), after=message_id - 1, limit=1)
    if waiting and waiting[0].id == message_id:
        raise HTTPException(
            409, f"message {message_id} is not held by that claim any more; it comes again"
        )
    raise HTTPException(404, f"message {message_id} has ended, or was never sent to {recipient}")
