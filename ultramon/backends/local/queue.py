"""The message queue in the journal: at least once, each verb a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.backends.local.inbox_flags import raise_beside
from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS
from ultramon.backends.local.journal_clock import (
    CLAIMED_AHEAD,
    LONG_CLAIMED_AHEAD,
    WAITS_AHEAD,
    known_skew_in,
    skew_in,
)
from ultramon.backends.local.message_rows import (
    claim_ready,
    delete_messages_from,
    end_claimed,
    insert_messages,
    mark_dead,
)
from ultramon.backends.local.route_rows import JournalRows
from ultramon.backends.local.schema import CLOCK_VERSION, QUEUE_VERSION
from ultramon.backends.sql_parts import SqlQueue
from ultramon.notices.message import EXPIRY_SECONDS, Cancelled
from ultramon.notices.message_rules import LEASE_SECONDS, check_message
from ultramon.notices.router import is_superseded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from ultramon.backends.local.connection import JournalConnection
    from ultramon.backends.local.journal import Journal
    from ultramon.notices.message import Draft, Message

    Found = TypeVar("Found")


class JournalQueue(SqlQueue):
    """The message queue in the journal, as `ultramon.backends.queue.Queue` states.

    Args:
        journal: Where the messages are.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def _look(self, look: Callable[[JournalConnection, float], list[Found]]) -> list[Found]:
        found = self._journal.read(QUEUE_VERSION, lambda rows: look(rows, known_skew_in(rows)))
        return found or []

    def _change(self, change: Callable[[JournalConnection, float], bool]) -> bool:
        return bool(self._journal.change(lambda rows: change(rows, skew_in(rows))))

    def _mark_dead(
        self,
        connection: JournalConnection,
        message_id: int,
        recipient: str,
        error: str,
        now: float,
    ) -> None:
        mark_dead(connection, message_id, recipient, error, now)

    def queue_message(self, draft: Draft, *, now: float) -> int | None:
        check_message(draft)
        return self.queue_messages((draft,), now=now)[0]

    def queue_messages(self, drafts: Sequence[Draft], *, now: float) -> list[int | None]:
        """Store messages that were checked. See `ultramon.backends.queue.queue_messages`."""
        if not self._journal.exists():
            self._journal.make_directory()
        with self._journal.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            rows = JournalRows(connection)
            new = [None if is_superseded(rows, draft) else draft for draft in drafts]
            return insert_messages(connection, new, now)

    def claim(self, recipient: str, *, now: float, **options: Any) -> list[Message]:
        def may_find(connection: JournalConnection) -> bool:
            is_older = self._journal.version(connection) < CLOCK_VERSION
            ahead = LONG_CLAIMED_AHEAD if is_older else CLAIMED_AHEAD
            query = (
                "SELECT 1 FROM messages WHERE recipient = :recipient AND state = 0"
                " AND available_at <= :at"
                " UNION ALL SELECT 1 FROM messages WHERE state IN (1, 3) AND claimed_until <= :at"
                f" UNION ALL SELECT 1 FROM messages WHERE {ahead}"
                f" UNION ALL SELECT 1 FROM messages WHERE recipient = :recipient AND {WAITS_AHEAD}"
                " LIMIT 1"
            )
            at = now + known_skew_in(connection)
            found = connection.execute(query, {"recipient": recipient, "at": at})
            return found.fetchone() is not None

        # A poll that finds nothing must not make the writers wait.
        if not self._journal.read(QUEUE_VERSION, may_find):
            return []
        claimed = self._journal.change(lambda rows: claim_ready(rows, recipient, now, **options))
        return claimed or []

    def acknowledge(self, message_id: int, claim_token: str) -> bool:
        return bool(self._journal.change(lambda rows: end_claimed(rows, message_id, claim_token)))

    def extend(
        self, message_id: int, claim_token: str, *, now: float, lease_seconds: float = LEASE_SECONDS
    ) -> bool:
        def extend(connection: JournalConnection, skew_seconds: float) -> bool:
            until = now + skew_seconds + lease_seconds
            done = connection.execute(
                "UPDATE messages SET claimed_until = ?, lease_seconds = ?"
                " WHERE id = ? AND claim_token = ? AND state = 1",
                (until, lease_seconds, message_id, claim_token),
            )
            return done.rowcount == 1

        return self._change(extend)

    def cancel_messages_from(self, sender: str, category: str) -> Cancelled:
        cancelled = self._journal.change(lambda rows: delete_messages_from(rows, sender, category))
        return cancelled or Cancelled(0, 0)

    def retry(self, message_id: int, *, now: float) -> bool:
        def retry(connection: JournalConnection, skew_seconds: float) -> bool:
            at = now + skew_seconds
            done = connection.execute(
                "UPDATE OR IGNORE messages SET state = 0, attempts = 0, available_at = ?,"
                " expires_at = ? WHERE id = ? AND state = 2",
                (at, at + EXPIRY_SECONDS, message_id),
            )
            for (recipient,) in connection.execute(
                "SELECT recipient FROM messages WHERE id = ? AND state = 0", (message_id,)
            ).fetchall():
                raise_beside(connection, recipient)
            return done.rowcount == 1

        return self._change(retry)
