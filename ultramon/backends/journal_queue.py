"""The queue of every backend that keeps a `Journal`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from ultramon.backends.journal_part import JournalPart
from ultramon.backends.queue import Cancelled, Depth, Message
from ultramon.core.queue import MessageQueue
from ultramon.notices.message_rules import DELIVERIES, EXPIRY_SECONDS, LEASE_SECONDS
from ultramon.system import compact_json

if TYPE_CHECKING:
    from collections.abc import Sequence


class JournalQueue(JournalPart):
    """See `ultramon.backends.queue.Queue`."""

    @cached_property
    def _messages(self) -> MessageQueue:
        return MessageQueue(self._journal)

    def queue_message(
        self,
        recipient: str,
        text: str,
        *,
        now: float,
        sender: str | None = None,
        sender_epoch: tuple[int, int] | None = None,
        said_at: float | None = None,
        category: str | None = None,
        delivery: str = "sequential",
        dedupe_key: str | None = None,
        facts: dict[str, Any] | None = None,
        expires_seconds: float = EXPIRY_SECONDS,
    ) -> int | None:
        """See `Queue.queue_message`."""
        if not self._journal.exists():
            self._prepare()
        with self._guard():
            return self._messages.queue_message(
                recipient,
                text,
                now,
                sender=sender,
                sender_epoch=sender_epoch,
                said_at=said_at,
                category=category,
                delivery=delivery,
                dedupe_key=dedupe_key,
                facts=facts,
                expires_seconds=expires_seconds,
            )

    def claim(
        self,
        recipient: str,
        *,
        now: float,
        limit: int = 10,
        deliveries: Sequence[str] = DELIVERIES,
        lease_seconds: float = LEASE_SECONDS,
    ) -> list[Message]:
        """See `Queue.claim`."""
        with self._guard():
            rows = self._messages.claim(recipient, now, limit, deliveries, lease_seconds)
        return [_message(row) for row in rows]

    def acknowledge(self, message_id: int, claim_token: str) -> bool:
        """See `Queue.acknowledge`."""
        with self._guard():
            return self._messages.acknowledge(message_id, claim_token)

    def extend(
        self,
        message_id: int,
        claim_token: str,
        *,
        now: float,
        lease_seconds: float = LEASE_SECONDS,
    ) -> bool:
        """See `Queue.extend`."""
        with self._guard():
            return self._messages.extend(message_id, claim_token, now + lease_seconds)

    def reject(self, message_id: int, claim_token: str, error: str, *, now: float) -> bool:
        """See `Queue.reject`."""
        with self._guard():
            return self._messages.reject(message_id, claim_token, error, now)

    def cancel_messages_from(self, sender: str, category: str) -> Cancelled:
        """See `Queue.cancel_messages_from`."""
        with self._guard():
            return Cancelled(*self._messages.cancel_messages_from(sender, category))

    def peek(
        self, recipient: str, *, now: float, after: int = 0, limit: int = 100
    ) -> list[Message]:
        """See `Queue.peek`."""
        with self._guard():
            return [_message(row) for row in self._messages.peek(recipient, now, after, limit)]

    def dead(self, recipient: str | None = None) -> list[Message]:
        """See `Queue.dead`."""
        with self._guard():
            return [_message(row) for row in self._messages.dead(recipient)]

    def retry(self, message_id: int, *, now: float) -> bool:
        """See `Queue.retry`."""
        with self._guard():
            return self._messages.retry(message_id, now)

    def drop(self, message_id: int) -> bool:
        """See `Queue.drop`."""
        with self._guard():
            return self._messages.drop(message_id)

    def depth(self, *, now: float) -> list[Depth]:
        """See `Queue.depth`."""
        with self._guard():
            return [Depth(*row) for row in self._messages.depth(now)]


def _message(row: tuple[Any, ...]) -> Message:
    values = list(row)
    values[4] = DELIVERIES[row[4]]
    values[6] = compact_json.loads(row[6])
    values[8] = row[8] or ""
    return Message(*values)
