"""Messages as rows of PostgreSQL: the statements of every transaction that touches them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ultramon.backends.postgres.schema.text_columns import from_column, to_column
from ultramon.backends.sql_rows import DELIVERED, count_loss
from ultramon.errors import QueueFullError
from ultramon.notices.message import Cancelled
from ultramon.notices.message_rules import (
    DELIVERIES,
    MAX_ATTEMPTS,
    MAX_WAITING,
    dead_letter,
)
from ultramon.system import compact_json

if TYPE_CHECKING:
    from ultramon.backends.postgres.connection.database import Connection, Database
    from ultramon.backends.postgres.store.event_log import EventLog
    from ultramon.notices.message import Draft

ENDED = "state IN (1, 3) AND claimed_until <= %s"
EXPIRED = "state IN (0, 4) AND expires_at <= %s"
_ONCE = "ON CONFLICT (recipient, dedupe_key) WHERE dedupe_key IS NOT NULL AND state IN (0, 1, 4)"
_CANCELLED = "ultramon cancelled "
"""Begins the dedupe key of the row with the last cancel of a sender's category."""
_CANCELLED_SECONDS = 366 * 86_400.0
"""How long that row stays: as long as a message may wait on a machine that is cut off."""


@dataclass(frozen=True, slots=True)
class MessageRows:
    """The rows of messages; every method belongs into a transaction.

    Attributes:
        database: Where they are.
        log: Where dead letters are stored.
    """

    database: Database
    log: EventLog

    def insert(self, connection: Connection, draft: Draft, now: float) -> int:
        """Add a message; return its id, or that of the one with its dedupe key.

        Raises:
            QueueFullError: The messages without a category are too many; none is ever dropped.
        """
        now = self.database.to_server(now)
        kind = to_column(draft.category)
        # An update that changes nothing, as DO NOTHING returns no row; `xmax` is 0 for a new one.
        [(message_id, is_new)] = connection.execute(
            "INSERT INTO ultramon.messages (recipient, sender, category, priority, text, facts,"
            " dedupe_key, state, attempts, available_at, queued_at, expires_at)"
            f" VALUES (%s, %s, %s, %s, %s, %s, %s, 0, 0, %s, %s, %s) {_ONCE}"
            " DO UPDATE SET dedupe_key = excluded.dedupe_key RETURNING id, xmax = 0",
            (
                draft.recipient,
                draft.sender,
                kind,
                DELIVERIES.index(draft.delivery),
                to_column(draft.text),
                compact_json.dumps(draft.facts or {}),
                to_column(draft.dedupe_key),
                now + draft.held_seconds,
                now,
                now + draft.expires_seconds,
            ),
        )
        if is_new:
            self._make_room(connection, draft.recipient, kind)
        return int(message_id)

    def _make_room(self, connection: Connection, recipient: str, kind: str | None) -> None:
        """Notify listeners of a message, and drop one that is too many."""
        # A hint only: listeners poll anyway. Channels belong to the database, not to a schema.
        [(_, over)] = connection.execute(
            "SELECT pg_notify(%s, %s), (SELECT id FROM ultramon.messages"
            " WHERE recipient = %s AND category IS NOT DISTINCT FROM %s AND state = 0"
            " ORDER BY id DESC LIMIT 1 OFFSET %s)",
            (connection.address.schema, recipient, recipient, kind, MAX_WAITING),
        )
        if over is None:
            return
        if kind is None:
            raise QueueFullError(recipient, MAX_WAITING)
        self.drop(connection, recipient, [over])

    def drop(self, connection: Connection, recipient: str, message_ids: list[int]) -> None:
        """Delete messages that are too many, and count them, unless they were claimed by now."""
        done = connection.execute(
            "DELETE FROM ultramon.messages WHERE id = ANY(%s) AND state = 0", (message_ids,)
        )
        count_loss(connection, recipient, "dropped", done.rowcount)

    def cancel(
        self, connection: Connection, sender: str, category: str, at: float, *, is_kept: bool
    ) -> Cancelled:
        """Cancel messages, here and on machines whose messages have not arrived yet.

        Args:
            connection: Within a transaction.
            sender: Whose messages.
            category: Which of them.
            at: When it was asked for, epoch seconds. What a machine kept before is dropped when it
                arrives: see `is_cancelled`.
            is_kept: True = this was kept on a machine itself; what was queued after `at` stays.
        """
        at, kind = self.database.to_server(at), to_column(category)
        self._lock_category(connection, "pg_advisory_xact_lock", sender, kind)
        which = "WHERE sender = %s AND category = %s AND queued_at <= %s AND state"
        said = (sender, kind, at if is_kept else float("inf"))
        deleted = connection.execute(f"DELETE FROM ultramon.messages {which} = 0", said)
        claimed = connection.execute(f"UPDATE ultramon.messages SET state = 3 {which} = 1", said)
        connection.execute(
            "INSERT INTO ultramon.messages AS m (recipient, priority, text, facts, dedupe_key,"
            " state, attempts, available_at, queued_at, expires_at)"
            f" VALUES (%s, 0, '', '{{}}', %s, %s, 0, %s, %s, %s) {_ONCE}"
            " DO UPDATE SET queued_at = greatest(m.queued_at, excluded.queued_at),"
            " expires_at = greatest(m.expires_at, excluded.expires_at)",
            (sender, f"{_CANCELLED}{kind}", DELIVERED, at, at, at + _CANCELLED_SECONDS),
        )
        return Cancelled(deleted.rowcount, claimed.rowcount)

    def is_cancelled(self, connection: Connection, draft: Draft, sent_at: float | None) -> bool:
        """Return whether a message was cancelled on its way; from now on a cancel waits for it.

        Args:
            connection: Within the transaction that stores the message.
            draft: The message.
            sent_at: When it was sent, epoch seconds of this machine's clock; None = now, so that no
                clock decides: a cancel that was stored is older.
        """
        if draft.sender is None or draft.category is None:
            return False
        kind = to_column(draft.category)
        self._lock_category(connection, "pg_advisory_xact_lock_shared", draft.sender, kind)
        if sent_at is None:
            return False
        found = connection.execute(
            "SELECT 1 FROM ultramon.messages WHERE recipient = %s AND dedupe_key = %s"
            " AND state = 4 AND queued_at >= %s",
            (draft.sender, f"{_CANCELLED}{kind}", self.database.to_server(sent_at)),
        )
        return found.fetchone() is not None

    def _lock_category(self, connection: Connection, lock: str, sender: str, kind: str) -> None:
        """Make a cancel either find a message that is being stored, or be seen by it."""
        connection.execute(
            f"SELECT {lock}(hashtextextended(%s || ' ' || %s, 0))", (f"{_CANCELLED}{sender}", kind)
        )

    def mark_dead(
        self, connection: Connection, message_id: int, recipient: str, error: str, now: float
    ) -> None:
        """Mark a message dead, and store that as an event of its recipient."""
        connection.execute(
            "UPDATE ultramon.messages SET state = 2, claim_token = NULL, last_error = %s"
            " WHERE id = %s",
            (to_column(error), message_id),
        )
        [(run,)] = connection.execute(
            "SELECT coalesce((SELECT run FROM ultramon.agents WHERE agent_id = %s), 'default')",
            (recipient,),
        )
        event, key = dead_letter(recipient, message_id, from_column(run), now)
        self.log.insert(connection, [event], lambda _: key)

    def sweep(self, connection: Connection, now: float) -> None:
        """End expired leases, and delete expired messages."""
        at = self.database.to_server(now)
        # Locked rows are those that another process is ending.
        rows = connection.execute(
            "SELECT id, recipient, state, attempts, expires_at <= %s FROM ultramon.messages"
            f" WHERE {ENDED} OR {EXPIRED} FOR UPDATE SKIP LOCKED",
            (at, at, at),
        ).fetchall()
        gone = []
        for message_id, recipient, state, attempts, is_expired in rows:
            is_dead = state == 1 and attempts >= MAX_ATTEMPTS
            if is_expired and state < 2 and not is_dead:
                count_loss(connection, recipient, "expired", 1)
            if state != 1 or (is_expired and not is_dead):
                gone.append(message_id)
            elif is_dead:
                error = "its claimer went silent"
                self.mark_dead(connection, message_id, recipient, error, now)
        connection.execute("DELETE FROM ultramon.messages WHERE id = ANY(%s)", (gone,))
        connection.execute(
            "UPDATE ultramon.messages SET state = 0, claim_token = NULL,"
            " available_at = claimed_until WHERE id = ANY(%s) AND state = 1",
            ([row[0] for row in rows],),
        )

    def prune(self, connection: Connection, before: float) -> None:
        """Delete dead messages that were queued before a time."""
        connection.execute(
            "DELETE FROM ultramon.messages WHERE state = 2 AND queued_at < %s",
            (self.database.to_server(before),),
        )
