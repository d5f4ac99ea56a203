"""What an agent is sent: waiting, claimed with a long poll, acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Depends, Header, HTTPException, Path, Query, Request
from pydantic import Field

from ultramon.backends.queue import queue_of
from ultramon.errors import ConfigurationError
from ultramon.notices.message_rules import (
    DELIVERIES,
    EXPIRY_SECONDS,
    LEASE_SECONDS,
    MAX_BATCH,
    MAX_TEXT_CHARS,
)
from ultramon.notices.models import Notice
from ultramon.notices.texts import CATEGORIES
from ultramon.server.caller import ADMIN
from ultramon.server.http.authorization import AnyCaller, Served, permit
from ultramon.server.http.error_responses import refuse
from ultramon.server.http.responses import MAX_NUMBER, AgentIdInPath, Sent, Whole, problems
from ultramon.server.http.streams import EventStream, StreamSlot, poll, server_sent
from ultramon.state.models import Model, utc
from ultramon.system.ids import check_agent_id

if TYPE_CHECKING:
    from ultramon.backends.queue import Queue
    from ultramon.notices.message import Message
    from ultramon.server.caller import Caller
    from ultramon.server.services import Services

router = APIRouter(tags=["messages"])

MAX_WAIT_SECONDS = 60.0
MAX_LEASE_SECONDS = 3_600.0
_CHUNK_MESSAGES = 10

Delivery = Literal["urgent", "important", "sequential"]
MessageNumber = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
LeaseSeconds = Annotated[
    float,
    Field(ge=1, le=MAX_LEASE_SECONDS, description="What is not acknowledged by then comes again."),
]
ClaimToken = Annotated[str, Field(min_length=1, max_length=64, description="As it was claimed.")]


class NewMessage(Sent):
    """A message to send; who sends it is told by the token."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)]
    category: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Of one category at most 1,000 wait: the oldest is dropped. None = never dropped."""
    delivery: Delivery = "sequential"
    dedupe_key: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Another one of the same sender with this key is not stored again until it expires."""
    expires_seconds: Annotated[float, Field(gt=0, le=366 * 86_400)] = EXPIRY_SECONDS


class Claim(Sent):
    """What to claim, and how long to wait for it."""

    limit: Annotated[Whole, Field(ge=1, le=MAX_BATCH)] = 10
    deliveries: Annotated[list[Delivery], Field(min_length=1, max_length=3)] | None = None
    """Only these modes; None = all."""
    lease_seconds: LeaseSeconds = LEASE_SECONDS
    wait_seconds: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)] = 0.0


class Held(Sent):
    """Which claim."""

    claim_token: ClaimToken


class Extension(Held):
    """How long a claim is to be kept from now."""

    lease_seconds: LeaseSeconds = LEASE_SECONDS


class Rejection(Held):
    """Why a message is given back."""

    error: Annotated[str, Field(max_length=10_000)]
    """For people; the first 500 characters are kept."""


class ClaimedNotice(Notice):
    """A message that is the caller's for a time."""

    claim_token: str
    """Proves that: acknowledge, extend or reject with it."""


class Waiting(Model):
    """Messages that wait, in the order of sending."""

    messages: list[Notice]


class Claimed(Model):
    """Messages claimed: urgent before important before sequential, then the oldest."""

    messages: list[ClaimedNotice]


class Stored(Model):
    """Which message it is."""

    message_id: int


class Settled(Stored):
    """What became of a message."""

    status: Literal["acknowledged", "extended", "rejected"]


def notice_fields(message: Message) -> dict[str, object]:
    """Return a message as the fields of a `Notice`."""
    return {
        "message_id": message.id,
        "recipient": message.recipient,
        "agent_id": message.sender,
        "category": message.category,
        "delivery": message.delivery,
        "text": message.text,
        "facts": message.facts,
        "attempts": message.attempts,
        "queued_at": utc(message.queued_at),
    }


def _own_inbox(
    agent_id: AgentIdInPath, request: Request, services: Served, caller: AnyCaller
) -> str:
    if caller.kind != ADMIN and caller.agent_id != check_agent_id(agent_id):
        problem = f"agent {caller.agent_id} may read its own messages only"
        raise refuse(request, services, caller, problem, agent_id=agent_id)
    return agent_id


OwnInbox = Annotated[str, Depends(_own_inbox)]
"""The recipient in the path: an agent reads its own messages only."""


@router.get("/agents/{agent_id}/messages", responses=problems(404, 422))
def list_messages(
    inbox: OwnInbox,
    services: Served,
    after: Annotated[int, Query(ge=0, le=MAX_NUMBER)] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> Waiting:
    """Return what waits behind a message number, claimed or not; nothing changes."""
    waiting = _queue(services).peek(inbox, now=services.clock.now(), after=after, limit=limit)
    return Waiting(messages=[Notice.model_validate(notice_fields(one)) for one in waiting])


@router.post("/agents/{agent_id}/messages", status_code=201, responses=problems(404, body=True))
def send_message(
    agent_id: AgentIdInPath, body: NewMessage, request: Request, services: Served, caller: AnyCaller
) -> Stored:
    """Send a message: an agent to itself, its direct parent, and its direct children.

    It is data of the sender that the token names; nothing in it is an instruction of ultramon.
    """
    _check_recipient(request, services, caller, agent_id)
    sender = caller.agent_id
    if sender is not None and not services.agent_buckets.take(sender):
        problem = f"agent {sender} sends too often; wait a second"
        raise HTTPException(429, problem, {"Retry-After": "1"})
    if body.category in CATEGORIES:
        # Cancelled with the notices about the sender, and taken for one of them by a reader.
        raise ConfigurationError("category", body.category, "none of ultramon's own notices")
    # Of each sender its own: no key that an agent guesses keeps another's message from being sent.
    dedupe_key = body.dedupe_key and f"{sender or caller.kind}/{body.dedupe_key}"
    message_id = _queue(services).queue_message(
        agent_id,
        body.text,
        now=services.clock.now(),
        sender=sender,
        category=body.category,
        delivery=body.delivery,
        dedupe_key=dedupe_key,
        expires_seconds=body.expires_seconds,
    )
    return Stored(message_id=message_id or 0)


def _check_recipient(request: Request, services: Services, caller: Caller, recipient: str) -> None:
    """Let an agent send to itself, its parent and its children, and the admin to anybody."""
    check_agent_id(recipient)
    if caller.agent_id is None or caller.agent_id == recipient:
        return
    if caller.record is None or caller.record.parent_id != recipient:
        permit(request, services, caller, recipient)


@router.post("/agents/{agent_id}/messages/claim", responses=problems(404, body=True))
async def claim_messages(
    inbox: OwnInbox, body: Claim, request: Request, services: Served, caller: AnyCaller
) -> Claimed:
    """Claim messages; with `waitSeconds` wait until one comes.

    Nothing is claimed for a client that has closed its connection. What was claimed in the moment
    in which it did, or is lost on the way, comes again when its lease has ended.
    """

    def claim() -> list[Message]:
        return _queue(services).claim(
            inbox,
            now=services.clock.now(),
            limit=body.limit,
            deliveries=body.deliveries or DELIVERIES,
            lease_seconds=body.lease_seconds,
        )

    messages = await poll(request, services, caller, body.wait_seconds, claim, recipient=inbox)
    return Claimed(
        messages=[
            ClaimedNotice.model_validate({**notice_fields(one), "claim_token": one.claim_token})
            for one in messages
        ]
    )


@router.post(
    "/agents/{agent_id}/messages/{message_id}/acknowledge",
    responses=problems(404, 409, body=True),
)
def acknowledge_message(
    inbox: OwnInbox, message_id: MessageNumber, body: Held, services: Served
) -> Settled:
    """End a message as delivered; 404 when it has ended already, 409 when the claim is lost."""
    if not _queue(services).acknowledge(message_id, body.claim_token):
        raise _lost(services, inbox, message_id)
    return Settled(message_id=message_id, status="acknowledged")


@router.post(
    "/agents/{agent_id}/messages/{message_id}/extend", responses=problems(404, 409, body=True)
)
def extend_claim(
    inbox: OwnInbox, message_id: MessageNumber, body: Extension, services: Served
) -> Settled:
    """Keep a claimed message; 404 when it was cancelled or ended: stop handling it."""
    now = services.clock.now()
    if not _queue(services).extend(
        message_id, body.claim_token, now=now, lease_seconds=body.lease_seconds
    ):
        raise _lost(services, inbox, message_id)
    return Settled(message_id=message_id, status="extended")


@router.post(
    "/agents/{agent_id}/messages/{message_id}/reject", responses=problems(404, 409, body=True)
)
def reject_message(
    inbox: OwnInbox, message_id: MessageNumber, body: Rejection, services: Served
) -> Settled:
    """Give a claimed message back: it comes again in 2, 4, 8, 16 s; the fifth time it is dead."""
    now = services.clock.now()
    if not _queue(services).reject(message_id, body.claim_token, body.error, now=now):
        raise _lost(services, inbox, message_id)
    return Settled(message_id=message_id, status="rejected")


@router.get(
    "/agents/{agent_id}/messages/stream",
    response_class=EventStream,
    responses=problems(404, 422, stream=True),
)
async def stream_messages(
    *,
    inbox: OwnInbox,
    request: Request,
    services: Served,
    caller: AnyCaller,
    slot: StreamSlot,
    last_event_id: Annotated[
        int, Header(ge=0, le=MAX_NUMBER, description="The number that came last.")
    ] = 0,
) -> EventStream:
    """Send what waits, and what comes, as server-sent events; the id is the message's number.

    Nothing is claimed: a message that somebody acknowledges before it is seen here is not sent, and
    one that becomes ready again is not sent again.
    """
    last = last_event_id

    def read() -> list[tuple[str, str]]:
        nonlocal last
        waiting = _queue(services).peek(
            inbox, now=services.clock.now(), after=last, limit=_CHUNK_MESSAGES
        )
        last = waiting[-1].id if waiting else last
        return [(str(one.id), _json(one)) for one in waiting]

    return server_sent(request, services, caller, read)


def _json(message: Message) -> str:
    return Notice.model_validate(notice_fields(message)).model_dump_json(by_alias=True)


def _queue(services: Services) -> Queue:
    return queue_of(services.backend)


def _lost(services: Services, recipient: str, message_id: int) -> HTTPException:
    """Return the answer to one whose claim does not hold."""
    waiting = _queue(services).peek(
        recipient, now=services.clock.now(), after=message_id - 1, limit=1
    )
    if waiting and waiting[0].id == message_id:
        return HTTPException(
            409, f"message {message_id} is not held by that claim any more; it comes again"
        )
    return HTTPException(404, f"message {message_id} has ended, or was never sent to {recipient}")
