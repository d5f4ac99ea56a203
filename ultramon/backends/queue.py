"""The port of the message queue: durable messages between agents, delivered at least once.

`ultramon.testing.QueueContract` checks each sentence here against an implementation.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ultramon.backends.base import require_part
from ultramon.errors import ConfigurationError
from ultramon.notices.message_rules import (
    DELIVERIES,
    LEASE_SECONDS,
    MAX_WAITING,
    check_message,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from ultramon.notices.message import Cancelled, Draft, Message


class Depth(NamedTuple):
    """How many messages wait for one recipient."""

    recipient: str
    ready: int
    waiting: int
    """Rejected, and not due again yet."""
    claimed: int
    dead: int
    dropped: int
    """Lost so far because too many of one category waited."""
    expired: int
    """Lost so far because they were not fetched in time."""
    oldest_at: float | None
    """When the oldest one was queued that may still arrive, epoch seconds."""


class Queue(Protocol):
    """Messages from agents to agents, at least once. A backend that has one shows it as ``queue``.

    A message is delivered when its claimer acknowledges it; until then it comes again. Safe to use
    from several threads and processes. Any number of processes may claim for one recipient. Times
    are epoch seconds by the caller's clock, whose time is passed as ``now``. What is due, over or
    expired is decided by a clock that is never set, as far from the caller's as the machine's wall
    clock is: a wall clock that was wrong for a moment holds nothing and ends nothing.
    """

    def queue_message(self, draft: Draft, *, now: float) -> int | None:
        """Store a message durably.

        Of one category at most 1,000 wait for one recipient: the oldest is dropped and counted.

        Args:
            draft: The message.
            now: Epoch seconds.

        Returns:
            Its id, or that of the message that has the dedupe key; None when it was refused. A
            store on another machine that does not answer gives 0: the message waits here, durably,
            until it does.

        Raises:
            InvalidAgentIdError: Recipient or sender is no agent id.
            ConfigurationError: A field is out of its range.
            QueueFullError: 1,000 messages without a category wait for the recipient.
            StateWriteError: The store refused; nothing was stored.
        """

    def claim(
        self,
        recipient: str,
        *,
        now: float,
        limit: int = 10,
        deliveries: Sequence[str] = DELIVERIES,
        lease_seconds: float = LEASE_SECONDS,
    ) -> list[Message]:
        """Take messages for a time: urgent before important before sequential, then the oldest.

        A message that was claimed before and not acknowledged comes alone, whatever the limit: one
        that kills its claimer takes no other along. After five claims it is dead, and an event
        ``dead_letter`` is stored.

        Args:
            recipient: Whose messages.
            now: Epoch seconds.
            limit: At most so many, 50 at the most.
            deliveries: Only these modes.
            lease_seconds: Unless acknowledged, extended or rejected they come again after so long.
        """

    def acknowledge(self, message_id: int, claim_token: str) -> bool:
        """End a message as delivered.

        Returns:
            False when another claimer has it meanwhile, or it has ended: it may have been
            handled twice.
        """

    def extend(
        self, message_id: int, claim_token: str, *, now: float, lease_seconds: float = LEASE_SECONDS
    ) -> bool:
        """Keep a claimed message for so long from now.

        Returns:
            False when it was cancelled, claimed by another, or has ended: stop handling it.
        """

    def reject(self, message_id: int, claim_token: str, error: str, *, now: float) -> bool:
        """Give a claimed message back: it comes again after 2, 4, 8, 16 s; the fifth time it dies.

        Args:
            message_id: The message.
            claim_token: As claimed.
            error: Why, for people; the first 500 characters are kept.
            now: Epoch seconds.

        Returns:
            False as for `acknowledge`.
        """

    def cancel_messages_from(self, sender: str, category: str) -> Cancelled:
        """Cancel the messages of a sender in one category that are not acknowledged yet.

        Messages of other senders, of other categories and of none stay.

        Returns:
            What was found in the store. A store on another machine that does not answer gives
            zeros: the cancel waits here, in line with its messages. What machines kept before
            a cancel is dropped when it arrives, and not counted.

        Raises:
            StateWriteError: The store refused; nothing was cancelled.
        """

    def peek(
        self, recipient: str, *, now: float, after: int = 0, limit: int = 100
    ) -> list[Message]:
        """Return what waits for a recipient, claimed or not, by id. Nothing changes.

        Args:
            recipient: Whose messages.
            now: Epoch seconds; expired ones are left out.
            after: Only those with a higher id.
            limit: At most so many.
        """

    def dead(self, recipient: str | None = None) -> list[Message]:
        """Return the dead messages of one recipient or of all, by id. Nothing changes."""

    def retry(self, message_id: int, *, now: float) -> bool:
        """Make a dead message ready again, with five attempts and a day before it.

        Returns:
            False when it is not dead, or one with its dedupe key was queued meanwhile.
        """

    def drop(self, message_id: int) -> bool:
        """Delete a dead message; False when it is not dead."""

    def depth(self, *, now: float) -> list[Depth]:
        """Return the counts by recipient, without recipients that never had a message."""


def queue_of(backend: object) -> Queue:
    """Return the queue of a backend.

    Raises:
        ConfigurationError: It has none.
    """
    queue: Queue = require_part(backend, "queue", "a queue")
    return queue


def queue_messages(queue: Queue, drafts: Sequence[Draft], *, now: float) -> list[int | None]:
    """Store several messages durably, in their order; see `Queue.queue_message`.

    An optional part of a queue, a method of this name, for stores in which one step for all is
    cheaper: there all are stored, or none. In others each is stored by itself, and an error leaves
    those before it.

    Args:
        queue: Where to.
        drafts: At most 1,000.
        now: Epoch seconds.

    Returns:
        For each what `Queue.queue_message` would return.

    Raises:
        ConfigurationError: They are too many, or one is not allowed; nothing was stored.
        InvalidAgentIdError: As for `Queue.queue_message`; nothing was stored.
        QueueFullError: As for `Queue.queue_message`.
        StateWriteError: The store refused.
    """
    if len(drafts) > MAX_WAITING:
        raise ConfigurationError("drafts", len(drafts), f"at most {MAX_WAITING:,} messages")
    for draft in drafts:
        check_message(draft)
    together: Callable[..., list[int | None]] | None = getattr(queue, "queue_messages", None)
    if together is not None:
        return together(drafts, now=now)
    return [queue.queue_message(draft, now=now) for draft in drafts]


def can_listen(queue: Queue) -> bool:
    """Return whether a queue notices messages that other processes store: see `listening`."""
    return hasattr(queue, "listening")


def listening(
    queue: Queue, recipient: str, heard: Callable[[], None]
) -> AbstractContextManager[None]:
    """Within the ``with`` block, call a function when a message may have been stored.

    An optional part of a queue, a method of this name, for stores that cannot be asked often. It
    is a hint and may be missed, so poll each second all the same.

    Args:
        queue: One that cannot listen never calls.
        recipient: Whose message.
        heard: Called in another thread; returns at once.
    """
    listen: Callable[[str, Callable[[], None]], AbstractContextManager[None]] | None
    listen = getattr(queue, "listening", None)
    return nullcontext() if listen is None else listen(recipient, heard)
