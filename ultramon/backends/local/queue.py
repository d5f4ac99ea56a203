"""The verbs of the message queue: at least once, each a transaction of the journal."""

from __future__ import annotations

from functools import cached_property

from ultramon.backends.local.inbox_flags import raise_beside
from ultramon.backends.local.message_rows import (
    CANCELLED,
    COLUMNS,
    claim_ready,
    delete_messages_from,
    end_claimed,
    insert_message,
    is_superseded,
    mark_dead,
)
from ultramon.backends.local.schema import QUEUE_VERSION
from ultramon.backends.local.shared import JournalPart
from ultramon.backends.queue import Cancelled, Depth, Message
from ultramon.notices.message_rules import (
    DELIVERIES,
    EXPIRY_SECONDS,
    LEASE_SECONDS,
    MAX_ATTEMPTS,
    backoff_seconds,
    check_message,
)
from ultramon.system import compact_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ultramon.backends.local.journal import Journal
    from ultramon.backends.local.transaction import Transaction

_TIMEOUT_SECONDS = 5.0


class MessageQueue:
    """The verbs of the queue, each a transaction of its own. Not thread-safe.

    Args:
        journal: Where the messages are.
    """

    __slots__ = ("_journal",)

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def _write(self) -> Transaction:
        return self._journal.transaction(_TIMEOUT_SECONDS)

    def _select(self, query: str, arguments: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Read without bringing an older journal up to date: it holds no messages."""
        journal = self._journal
        if not journal.exists():
            return []
        with journal.transaction(_TIMEOUT_SECONDS, "DEFERRED") as connection:
            if journal.version(connection) < QUEUE_VERSION:
                return []
            return connection.execute(query, arguments).fetchall()

    def queue_message(
        self,
        recipient: str,
        text: str,
        now: float,
        *,
        sender_epoch: tuple[int, int] | None = None,
        said_at: float | None = None,
        **message: Any,
    ) -> int | None:
        """Add a message durably; None where the sender has moved on. See `insert_message`."""
        sender = message.get("sender")
        check_message(
            recipient,
            text,
            sender=sender,
            category=message.get("category"),
            delivery=message.get("delivery", "sequential"),
            expires_seconds=message.get("expires_seconds", EXPIRY_SECONDS),
        )
        with self._write() as connection:
            if is_superseded(connection, sender, sender_epoch, said_at):
                return None
            return insert_message(connection, recipient, text, now, **message)

    def claim(
        self,
        recipient: str,
        now: float,
        limit: int,
        deliveries: Sequence[str],
        lease_seconds: float,
    ) -> list[tuple[Any, ...]]:
        """Take messages for a time, urgent ones first; return their `COLUMNS`.

        What failed before comes alone: whatever it does to its claimer, it takes none along.
        """
        # A poll that finds nothing must not make the writers wait.
        if not self._select(
            "SELECT 1 FROM messages WHERE recipient = ? AND state = 0 AND available_at <= ?"
            " UNION ALL SELECT 1 FROM messages WHERE state IN (1, 3) AND claimed_until <= ?"
            " LIMIT 1",
            (recipient, now, now),
        ):
            return []
        with self._write() as connection:
            return claim_ready(
                connection,
                recipient,
                now,
                limit=limit,
                deliveries=deliveries,
                lease_seconds=lease_seconds,
            )

    def acknowledge(self, message_id: int, claim_token: str) -> bool:
        """End a message as delivered; False when somebody else holds it meanwhile."""
        if not self._journal.exists():
            return False
        with self._write() as connection:
            return end_claimed(connection, message_id, claim_token)

    def extend(self, message_id: int, claim_token: str, claimed_until: float) -> bool:
        """Keep a message for longer; False when it was cancelled, or somebody else holds it."""
        if not self._journal.exists():
            return False
        with self._write() as connection:
            done = connection.execute(
                "UPDATE messages SET claimed_until = ?"
                " WHERE id = ? AND claim_token = ? AND state = 1",
                (claimed_until, message_id, claim_token),
            )
            return done.rowcount == 1

    def reject(self, message_id: int, claim_token: str, error: str, now: float) -> bool:
        """Give a message back; it comes again later, or is dead. False as for `acknowledge`."""
        if not self._journal.exists():
            return False
        with self._write() as connection:
            row = connection.execute(
                "SELECT recipient, attempts, state FROM messages"
                " WHERE id = ? AND claim_token = ? AND state IN (1, 3)",
                (message_id, claim_token),
            ).fetchone()
            if row is None:
                return False
            recipient, attempts, state = row
            if state == CANCELLED:
                connection.execute("DELETE FROM messages WHERE id = ?", (message_id,))
                return True
            connection.execute(
                "UPDATE messages SET state = 0, claim_token = NULL, last_error = ?,"
                " available_at = ? WHERE id = ?",
                (error[:500], now + backoff_seconds(attempts), message_id),
            )
            if attempts >= MAX_ATTEMPTS:
                mark_dead(connection, message_id, recipient, now)
            return True

    def cancel_messages_from(self, sender: str, category: str) -> tuple[int, int]:
        """Cancel what a sender has said in a category and nobody has received yet."""
        if not self._journal.exists():
            return 0, 0
        with self._write() as connection:
            return delete_messages_from(connection, sender, category)

    def peek(self, recipient: str, now: float, after: int, limit: int) -> list[tuple[Any, ...]]:
        """Return what waits for a recipient behind an id, by id; nothing changes."""
        return self._select(
            f"SELECT {COLUMNS} FROM messages WHERE recipient = ? AND state IN (0, 1) AND id > ?"
            " AND expires_at > ? ORDER BY id LIMIT ?",
            (recipient, after, now, limit),
        )

    def dead(self, recipient: str | None) -> list[tuple[Any, ...]]:
        """Return the dead messages of one recipient or of all, by id."""
        return self._select(
            f"SELECT {COLUMNS} FROM messages WHERE state = 2 AND (? IS NULL OR recipient = ?)"
            " ORDER BY id",
            (recipient, recipient),
        )

    def retry(self, message_id: int, now: float) -> bool:
        """Make a dead message ready again, with all attempts and a day before it.

        Returns:
            False when it is not dead, or another one with its dedupe key was queued meanwhile.
        """
        if not self._journal.exists():
            return False
        with self._write() as connection:
            done = connection.execute(
                "UPDATE OR IGNORE messages SET state = 0, attempts = 0, available_at = ?,"
                " expires_at = ? WHERE id = ? AND state = 2",
                (now, now + EXPIRY_SECONDS, message_id),
            )
            for (recipient,) in connection.execute(
                "SELECT recipient FROM messages WHERE id = ? AND state = 0", (message_id,)
            ).fetchall():
                raise_beside(connection, recipient)
            return done.rowcount == 1

    def drop(self, message_id: int) -> bool:
        """Delete a dead message; False when it is not dead."""
        if not self._journal.exists():
            return False
        with self._write() as connection:
            done = connection.execute(
                "DELETE FROM messages WHERE id = ? AND state = 2", (message_id,)
            )
            return done.rowcount == 1

    def depth(self, now: float) -> list[tuple[Any, ...]]:
        """Return, by recipient: ready, waiting, claimed, dead, dropped, expired, oldest time."""
        return self._select(
            "SELECT recipient, sum(ready), sum(waiting), sum(claimed), sum(dead), sum(dropped),"
            " sum(expired), min(oldest) FROM ("
            " SELECT recipient, state = 0 AND available_at <= ? AS ready,"
            "  state = 0 AND available_at > ? AS waiting, state IN (1, 3) AS claimed,"
            "  state = 2 AS dead, 0 AS dropped, 0 AS expired,"
            "  CASE WHEN state IN (0, 1) THEN queued_at END AS oldest"
            " FROM messages WHERE state < 4 AND NOT (state = 0 AND expires_at <= ?)"
            " UNION ALL SELECT recipient, 0, 0, 0, 0, iif(reason = 'dropped', count, 0),"
            "  iif(reason = 'expired', count, 0), NULL FROM message_losses"
            ") GROUP BY recipient ORDER BY recipient",
            (now, now, now),
        )


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
