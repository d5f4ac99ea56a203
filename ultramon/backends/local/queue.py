"""The message queue in the journal: at least once, each verb a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.backends.local.inbox_flags import raise_beside
from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS
from ultramon.backends.local.message_rows import (
    COLUMNS,
    claim_ready,
    delete_messages_from,
    end_claimed,
    give_back,
    insert_messages,
    is_superseded,
    read_message,
)
from ultramon.backends.local.schema import QUEUE_VERSION
from ultramon.backends.queue import Depth
from ultramon.notices.message import Cancelled, Draft
from ultramon.notices.message_rules import EXPIRY_SECONDS, LEASE_SECONDS, check_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.backends.local.connection import JournalConnection
    from ultramon.backends.local.journal import Journal
    from ultramon.notices.message import Message


class JournalQueue:
    """See `ultramon.backends.queue.Queue`.

    Args:
        journal: Where they are.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def queue_message(self, recipient: str, text: str, *, now: float, **options: Any) -> int | None:
        """See `Queue.queue_message`."""
        draft = Draft(recipient, text, **options)
        check_message(draft)
        return self.queue_messages((draft,), now=now)[0]

    def queue_messages(self, drafts: Sequence[Draft], *, now: float) -> list[int | None]:
        """Store messages that were checked. See `ultramon.backends.queue.queue_messages`."""
        if not self._journal.exists():
            self._journal.make_directory()
        with self._journal.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            return insert_messages(
                connection,
                [None if is_superseded(connection, draft) else draft for draft in drafts],
                now,
            )

    def claim(self, recipient: str, *, now: float, **options: Any) -> list[Message]:
        """See `Queue.claim`."""
        # A poll that finds nothing must not make the writers wait.
        if not self._journal.select(
            QUEUE_VERSION,
            "SELECT 1 FROM messages WHERE recipient = ? AND state = 0 AND available_at <= ?"
            " UNION ALL SELECT 1 FROM messages WHERE state IN (1, 3) AND claimed_until <= ?"
            " LIMIT 1",
            recipient,
            now,
            now,
        ):
            return []

        claimed = self._journal.change(lambda rows: claim_ready(rows, recipient, now, **options))
        return claimed or []

    def acknowledge(self, message_id: int, claim_token: str) -> bool:
        """See `Queue.acknowledge`."""
        return bool(self._journal.change(lambda rows: end_claimed(rows, message_id, claim_token)))

    def extend(
        self, message_id: int, claim_token: str, *, now: float, lease_seconds: float = LEASE_SECONDS
    ) -> bool:
        """See `Queue.extend`."""
        statement = (
            "UPDATE messages SET claimed_until = ? WHERE id = ? AND claim_token = ? AND state = 1"
        )
        return self._journal.execute(statement, now + lease_seconds, message_id, claim_token) == 1

    def reject(self, message_id: int, claim_token: str, error: str, *, now: float) -> bool:
        """See `Queue.reject`."""
        return bool(
            self._journal.change(lambda rows: give_back(rows, message_id, claim_token, error, now))
        )

    def cancel_messages_from(self, sender: str, category: str) -> Cancelled:
        """See `Queue.cancel_messages_from`."""
        cancelled = self._journal.change(lambda rows: delete_messages_from(rows, sender, category))
        return cancelled or Cancelled(0, 0)

    def peek(
        self, recipient: str, *, now: float, after: int = 0, limit: int = 100
    ) -> list[Message]:
        """See `Queue.peek`."""
        rows = self._journal.select(
            QUEUE_VERSION,
            f"SELECT {COLUMNS} FROM messages WHERE recipient = ? AND state IN (0, 1) AND id > ?"
            " AND expires_at > ? ORDER BY id LIMIT ?",
            recipient,
            after,
            now,
            limit,
        )
        return [read_message(row) for row in rows]

    def dead(self, recipient: str | None = None) -> list[Message]:
        """See `Queue.dead`."""
        rows = self._journal.select(
            QUEUE_VERSION,
            f"SELECT {COLUMNS} FROM messages WHERE state = 2 AND (? IS NULL OR recipient = ?)"
            " ORDER BY id",
            recipient,
            recipient,
        )
        return [read_message(row) for row in rows]

    def retry(self, message_id: int, *, now: float) -> bool:
        """See `Queue.retry`."""

        def retry(connection: JournalConnection) -> bool:
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

        return bool(self._journal.change(retry))

    def drop(self, message_id: int) -> bool:
        """See `Queue.drop`."""
        return (
            self._journal.execute("DELETE FROM messages WHERE id = ? AND state = 2", message_id)
            == 1
        )

    def depth(self, *, now: float) -> list[Depth]:
        """See `Queue.depth`."""
        rows = self._journal.select(
            QUEUE_VERSION,
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
            now,
            now,
            now,
        )
        return [Depth(*row) for row in rows]
