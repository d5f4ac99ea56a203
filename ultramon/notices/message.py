"""Messages of the queue as every backend returns them. Cheap to import: hooks do."""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXPIRY_SECONDS = 86_400.0
"""How long a message waits that says nothing else."""


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
    """Proves to the queue that a caller holds it; empty while no claim does."""
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
        " expires_seconds held_seconds",
        defaults=(None, None, None, None, "sequential", None, None, EXPIRY_SECONDS, 0.0),
    )
):
    """A message that is to be queued; see `ultramon.backends.queue.Queue.queue_message`."""

    __slots__ = ()

    recipient: str
    """An agent id; the agent need not exist yet."""
    text: str
    """1 to 65,536 characters."""
    sender: str | None
    """The agent that it comes from or is about."""
    sender_epoch: tuple[int, int] | None
    """Generation and epoch in which the sender said it.

    Refused when the sender is in a later one: nothing stale arrives after a compaction or a clear.
    """
    said_at: float | None
    """When the sender said it, epoch seconds.

    Refused when the sender was cleared from outside at that time or later.
    """
    category: str | None
    """What it can be cancelled by, 1 to 64 characters; None = it never is, nor dropped."""
    delivery: str
    """``urgent``, ``important`` or ``sequential``: the order of claims."""
    dedupe_key: str | None
    """Another one with this key to this recipient is not stored again.

    Also not after it was delivered, until it expires. A cancel frees the key of what was not
    delivered, also while that is claimed: the next one with it is a new message.
    """
    facts: dict[str, Any] | None
    """JSON values that go with the text."""
    expires_seconds: float
    """Not delivered after so long; default a day, at most 366 days."""
    held_seconds: float
    """Not delivered before so long; default 0, at most 30."""

    @property
    def may_be_stale(self) -> bool:
        """Whether it names its sender and when that said it."""
        is_dated = self.sender_epoch is not None or self.said_at is not None
        return self.sender is not None and is_dated


class Cancelled(namedtuple("Cancelled", "deleted in_flight")):
    """What a cancellation reached, in messages."""

    __slots__ = ()

    deleted: int
    """These never arrive."""
    in_flight: int
    """These were claimed: they cannot be unsent, and never come again."""
