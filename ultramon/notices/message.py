"""Messages of the queue as every backend returns them. Cheap to import: hooks do."""

from __future__ import annotations

from collections import namedtuple

from ultramon.notices.message_rules import EXPIRY_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# Not `typing.NamedTuple`: a hook with a notice to deliver would pay for that import alone.
class Message(
    namedtuple(
        "Message",
        "id recipient sender category delivery text facts attempts claim_token queued_at"
        " expires_at last_error",
    )
):
    """One message as the queue holds it."""

    __slots__ = ()

    id: int
    """The same at every delivery: a handler that has seen it may skip it."""
    recipient: str
    sender: str | None
    category: str | None
    delivery: str
    """``urgent``, ``important`` or ``sequential``."""
    text: str
    facts: dict[str, Any]
    """What the text says, as typed values under camelCase names; empty for free text."""
    attempts: int
    """How often it was claimed, this time included."""
    claim_token: str
    """Proves to the queue who holds it; empty while nobody does."""
    queued_at: float
    """Epoch seconds."""
    expires_at: float
    """Epoch seconds."""
    last_error: str | None
    """Why it was rejected last."""


class Draft(
    namedtuple(
        "Draft",
        "recipient text sender sender_epoch said_at category delivery dedupe_key facts"
        " expires_seconds",
        defaults=(None, None, None, None, "sequential", None, None, EXPIRY_SECONDS),
    )
):
    """A message that is to be queued; see `ultramon.backends.queue.Queue.queue_message`."""

    __slots__ = ()

    recipient: str
    text: str
    sender: str | None
    sender_epoch: tuple[int, int] | None
    said_at: float | None
    category: str | None
    delivery: str
    dedupe_key: str | None
    facts: dict[str, Any] | None
    expires_seconds: float


class Cancelled(namedtuple("Cancelled", "deleted in_flight")):
    """What a cancellation reached, in messages."""

    __slots__ = ()

    deleted: int
    """These never arrive."""
    in_flight: int
    """These were claimed: they cannot be unsent, and never come again."""
