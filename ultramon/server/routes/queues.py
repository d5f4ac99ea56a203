"""Routes of the whole queue: its depth per recipient, and dead messages."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query

from ultramon.notices.models import Notice
from ultramon.server.http.authorization import AdminCaller, Served
from ultramon.server.http.responses import ID_PATTERN, problems
from ultramon.server.routes.messages import MessageNumber, Stored
from ultramon.state.models import Model

router = APIRouter(tags=["queue"])


class RecipientDepth(Model):
    """The messages of one recipient, counted."""

    recipient: str
    ready: int
    waiting: int
    """Rejected and not due again yet."""
    claimed: int
    dead: int
    dropped: int
    """Lost so far to the limit per category."""
    expired: int
    """Lost so far because they were not fetched in time."""
    oldest_at: datetime | None
    """When the oldest message that may still be delivered was queued."""


class DeadNotice(Notice):
    """A message that failed five attempts."""

    last_error: str | None


class QueueDepth(Model):
    """The depth of the queue, by recipient."""

    recipients: list[RecipientDepth]


class DeadNotices(Model):
    """Dead messages, by number."""

    dead: list[DeadNotice]


class Handled(Stored):
    """A dead message that was retried or dropped."""

    status: Literal["ready", "dropped"]


@router.get("/queue", responses=problems())
def show_queue(services: Served, caller: AdminCaller) -> QueueDepth:
    """Return the depth of the queue by recipient; recipients without messages are not listed."""
    depths = services.queue.depth(now=services.now())
    return QueueDepth(
        recipients=[RecipientDepth.model_validate(one, from_attributes=True) for one in depths]
    )


@router.get("/queue/dead", responses=problems(422))
def list_dead(
    services: Served,
    caller: AdminCaller,
    recipient: Annotated[str | None, Query(pattern=ID_PATTERN)] = None,
) -> DeadNotices:
    """Return the dead messages of one recipient or of all."""
    dead = services.queue.dead(recipient)
    return DeadNotices(dead=[DeadNotice.of(one) for one in dead])


@router.post("/queue/dead/{message_id}/retry", responses=problems(404, 409, body=True))
def retry_dead(message_id: MessageNumber, services: Served, caller: AdminCaller) -> Handled:
    """Give a dead message five new attempts within a day; 409 when its dedupe key is taken."""
    if not services.queue.retry(message_id, now=services.now()):
        # Still dead: a newer message has its key.
        if any(one.id == message_id for one in services.queue.dead()):
            raise HTTPException(409, f"message {message_id} was queued again under its dedupe key")
        raise _not_dead(message_id)
    return Handled(message_id=message_id, status="ready")


@router.delete("/queue/dead/{message_id}", responses=problems(404, 422))
def drop_dead(message_id: MessageNumber, services: Served, caller: AdminCaller) -> Handled:
    """Delete a dead message."""
    if not services.queue.drop(message_id):
        raise _not_dead(message_id)
    return Handled(message_id=message_id, status="dropped")


def _not_dead(message_id: int) -> HTTPException:
    return HTTPException(404, f"no dead message {message_id}: GET /queue/dead lists them")
