"""The queue as a whole: what waits for whom, and what could not be delivered."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, HTTPException, Query

from ultramon.backends.queue import queue_of
from ultramon.notices.models import Notice
from ultramon.server.http.authorization import AdminCaller, Served
from ultramon.server.http.responses import ID_PATTERN, problems
from ultramon.server.routes.messages import MessageNumber, Stored, notice_fields
from ultramon.state.models import Model, utc

if TYPE_CHECKING:
    from ultramon.server.services import Services

router = APIRouter(tags=["queue"])


class RecipientDepth(Model):
    """What waits for one recipient, in messages."""

    recipient: str
    ready: int
    waiting: int
    """Rejected, and not due again yet."""
    claimed: int
    dead: int
    dropped: int
    """Lost so far because too many of one category waited."""
    expired: int
    """Lost so far because nobody fetched them in time."""
    oldest_at: datetime | None
    """When the oldest one was queued that may still arrive."""


class DeadNotice(Notice):
    """A message that was claimed five times and never acknowledged."""

    last_error: str | None


class QueueDepth(Model):
    """What waits, by recipient."""

    recipients: list[RecipientDepth]


class DeadNotices(Model):
    """Dead messages, by number."""

    dead: list[DeadNotice]


class Handled(Stored):
    """What became of a dead message."""

    status: Literal["ready", "dropped"]


@router.get("/queue", responses=problems())
def show_queue(services: Served, caller: AdminCaller) -> QueueDepth:
    """Return what waits, by recipient; who never had a message is not listed."""
    depths = queue_of(services.backend).depth(now=services.clock.now())
    return QueueDepth(
        recipients=[
            RecipientDepth.model_validate(
                {
                    **depth._asdict(),
                    "oldest_at": None if depth.oldest_at is None else utc(depth.oldest_at),
                }
            )
            for depth in depths
        ]
    )


@router.get("/queue/dead", responses=problems(422))
def list_dead(
    services: Served,
    caller: AdminCaller,
    recipient: Annotated[str | None, Query(pattern=ID_PATTERN)] = None,
) -> DeadNotices:
    """Return the dead messages of one recipient or of all."""
    return DeadNotices(
        dead=[
            DeadNotice.model_validate({**notice_fields(one), "last_error": one.last_error})
            for one in queue_of(services.backend).dead(recipient)
        ]
    )


@router.post("/queue/dead/{message_id}/retry", responses=problems(404, 409, body=True))
def retry_dead(message_id: MessageNumber, services: Served, caller: AdminCaller) -> Handled:
    """Give a dead message five new attempts and a day; 409 when another took its dedupe key."""
    if not queue_of(services.backend).retry(message_id, now=services.clock.now()):
        if _is_dead(services, message_id):
            raise HTTPException(409, f"message {message_id} was queued again under its dedupe key")
        raise _not_dead(message_id)
    return Handled(message_id=message_id, status="ready")


@router.delete("/queue/dead/{message_id}", responses=problems(404, 422))
def drop_dead(message_id: MessageNumber, services: Served, caller: AdminCaller) -> Handled:
    """Delete a dead message."""
    if not queue_of(services.backend).drop(message_id):
        raise _not_dead(message_id)
    return Handled(message_id=message_id, status="dropped")


def _is_dead(services: Services, message_id: int) -> bool:
    return any(one.id == message_id for one in queue_of(services.backend).dead())


def _not_dead(message_id: int) -> HTTPException:
    return HTTPException(404, f"no dead message {message_id}: GET /queue/dead lists them")
