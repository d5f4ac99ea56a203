"""The message queue in PostgreSQL: claimers skip rows that others are claiming, none waits."""

from __future__ import annotations

from time import time as wall_clock
from typing import TYPE_CHECKING

from ultramon.backends.postgres.connection.database import CONNECT_SECONDS
from ultramon.backends.postgres.connection.listener import Listener
from ultramon.backends.postgres.outbox.outbox import CANCEL, MESSAGE, Entry
from ultramon.backends.postgres.outbox.sender import SEND_WAIT_SECONDS, Sender
from ultramon.backends.postgres.schema.text_columns import from_column, to_column
from ultramon.backends.postgres.store.message_rows import ENDED, EXPIRED
from ultramon.backends.postgres.store.registry import PostgresRows
from ultramon.backends.sql_parts import SqlQueue
from ultramon.backends.sql_rows import COLUMNS, IS_NOTICE, read_legible
from ultramon.notices.message import EXPIRY_SECONDS, Cancelled, Draft, Message
from ultramon.notices.message_rules import (
    DELIVERIES,
    LEASE_SECONDS,
    MAX_BATCH,
    check_message,
    harmless,
)
from ultramon.notices.router import is_superseded
from ultramon.system.ids import random_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from ultramon.backends.postgres.connection.database import Connection, Database
    from ultramon.backends.postgres.outbox.outbox import Outbox
    from ultramon.backends.postgres.outbox.sender import Deliver
    from ultramon.backends.postgres.store.message_rows import MessageRows

    Found = TypeVar("Found")

ONCE = "ultramon once "
"""Begins the dedupe keys of messages without one."""
ONCE_SECONDS = 3_600.0
"""How long such a key is remembered: a copy may wait on a machine whose network is cut."""
_ACKNOWLEDGE = """
    WITH held AS (
        SELECT id, state = 1 AND dedupe_key IS NOT NULL AS is_remembered FROM ultramon.messages
        WHERE id = %s AND claim_token = %s AND state IN (1, 3) FOR UPDATE
    ), gone AS (
        DELETE FROM ultramon.messages m USING held
        WHERE m.id = held.id AND NOT is_remembered RETURNING 1
    ), kept AS (
        UPDATE ultramon.messages m SET state = 4, text = '', facts = '{}', claim_token = NULL,
            expires_at = CASE WHEN starts_with(dedupe_key, %s)
                THEN least(expires_at, queued_at + %s) ELSE expires_at END
        FROM held WHERE m.id = held.id AND is_remembered RETURNING 1
    ) SELECT ((SELECT count(*) FROM gone) + (SELECT count(*) FROM kept))::int
"""
_READY = f"""
    SELECT id, attempts, {IS_NOTICE} FROM ultramon.messages AS m
    WHERE recipient = %(recipient)s AND state = 0 AND available_at <= %(at)s
        AND expires_at > %(at)s AND priority = ANY(%(priorities)s)
        AND NOT ({IS_NOTICE} AND EXISTS (
            SELECT 1 FROM ultramon.messages
            WHERE sender = m.sender AND {IS_NOTICE} AND state IN (0, 1) AND recipient = m.recipient
                AND id < m.id AND expires_at > %(at)s
                AND NOT (state = 0 AND available_at <= %(at)s AND priority = ANY(%(priorities)s))))
    ORDER BY priority, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""
# A statement of its own: what another claimer had locked looked claimable to the one above.
_OVERTAKING = f"""
    SELECT id FROM ultramon.messages AS m
    WHERE id = ANY(%(ids)s) AND {IS_NOTICE} AND EXISTS (
        SELECT 1 FROM ultramon.messages
        WHERE sender = m.sender AND {IS_NOTICE} AND state IN (0, 1) AND recipient = m.recipient
            AND id < m.id AND expires_at > %(at)s AND id <> ALL(%(ids)s))
"""


class PostgresQueue(SqlQueue):
    """The message queue in the database, as `ultramon.backends.queue.Queue` states.

    Args:
        database: Where the messages are.
        rows: The messages there.
        outbox: Where messages wait during an outage.
        deliver: Stores what is kept there. See `Sender`.

    Attributes:
        patience_seconds: How long `queue_message` waits for the database before it keeps the
            message on this machine; default 0.04. A server may wait longer than an agent.
    """

    def __init__(
        self, database: Database, rows: MessageRows, outbox: Outbox, deliver: Deliver
    ) -> None:
        self.patience_seconds = SEND_WAIT_SECONDS
        self._database = database
        self._rows = rows
        self.sender = Sender(outbox, self._carry_out, deliver)
        self._listener = Listener(database.address)
        self.listening = self._listener.listening

    def _look(self, look: Callable[[Connection, float], list[Found]]) -> list[Found]:
        with self._database.connection() as connection:
            return look(connection, self._database.skew_seconds)

    def _change(self, change: Callable[[Connection, float], bool]) -> bool:
        with self._database.transaction() as connection:
            return change(connection, self._database.skew_seconds)

    def _mark_dead(
        self, connection: Connection, message_id: int, recipient: str, error: str, now: float
    ) -> None:
        self._rows.mark_dead(connection, message_id, recipient, error, now)

    def _encode(self, text: str) -> str:
        return to_column(text)

    def _decode(self, message: Message) -> Message:
        return message._replace(
            category=from_column(message.category),
            text=from_column(message.text),
            last_error=from_column(message.last_error),
        )

    def queue_message(self, draft: Draft, *, now: float) -> int | None:
        check_message(draft)
        said = draft._asdict()
        if not draft.held_seconds:
            del said["held_seconds"]  # kept on this machine, an earlier version may send it
        message = {
            **said,
            "now": now,
            # Whether it was stored may remain unknown: then it is sent again under the same key.
            "dedupe_key": draft.dedupe_key or f"{ONCE}{random_hex(16)}",
            # By the clock of cancels, whatever `now` is.
            "sent_at": wall_clock(),
        }
        stored: int | None = self.sender.send(
            MESSAGE, draft.recipient, message, self.patience_seconds
        )
        return stored

    def _carry_out(self, order: Entry) -> int | Cancelled | None:
        with self._database.transaction(timeout_seconds=CONNECT_SECONDS) as connection:
            return self.store(connection, order, is_kept=False)

    def store(
        self, connection: Connection, entry: Entry, *, is_kept: bool
    ) -> int | Cancelled | None:
        """Carry out a cancel, or store a message that was checked, within a transaction.

        Args:
            connection: Within a transaction.
            entry: Its body is that of a cancel, or a `Draft` with ``now`` and ``sent_at``.
            is_kept: Whether it was kept on a machine until now.

        Returns:
            What was cancelled, or the id of the message; None when it is refused as stale.
        """
        if entry.kind == CANCEL:
            return self._rows.cancel(connection, **entry.body, is_kept=is_kept)
        message = dict(entry.body)
        sent_at = message.pop("sent_at", None)  # an older version kept messages without
        if not is_kept and wall_clock() < sent_at + self.patience_seconds:
            # Later its sender takes it for kept, and others may have cancelled it since.
            sent_at = None
        now, draft = message.pop("now"), Draft(**message)
        if is_kept:  # perhaps by a clock that was ahead
            now = min(now, wall_clock())
        rows = PostgresRows(connection, self._database, self._rows)
        if draft.may_be_stale:
            # The row is locked: an epoch that ends either finds the message to cancel, or is seen
            # here.
            locked = "SELECT 1 FROM ultramon.agents WHERE agent_id = %s FOR SHARE"
            connection.execute(locked, (draft.sender,))
        if is_superseded(rows, draft) or self._rows.is_cancelled(connection, draft, sent_at):
            return None
        return self._rows.insert(connection, draft, now)

    def claim(
        self,
        recipient: str,
        *,
        now: float,
        limit: int = 10,
        deliveries: Sequence[str] = DELIVERIES,
        lease_seconds: float = LEASE_SECONDS,
    ) -> list[Message]:
        at = self._database.to_server(now)
        [(waits, ended, expired)] = self._database.select(
            "SELECT EXISTS (SELECT 1 FROM ultramon.messages WHERE recipient = %s"
            "  AND state = 0 AND available_at <= %s),"
            f" EXISTS (SELECT 1 FROM ultramon.messages WHERE {ENDED}),"
            f" EXISTS (SELECT 1 FROM ultramon.messages WHERE {EXPIRED})",
            recipient,
            at,
            at,
            at,
        )
        if not waits and not ended:
            return []
        wanted = {
            "recipient": recipient,
            "at": at,
            "priorities": [DELIVERIES.index(delivery) for delivery in deliveries],
            "limit": min(limit, MAX_BATCH),
        }
        with self._database.transaction() as connection:
            if ended or expired:
                self._rows.sweep(connection, now)
            ready = connection.execute(_READY, wanted).fetchall()
            ids = harmless([(message_id, attempts) for message_id, attempts, _ in ready])
            if any(is_notice for _, _, is_notice in ready):
                overtaking = connection.execute(_OVERTAKING, {"ids": ids, "at": at})
                early = {message_id for (message_id,) in overtaking}
                ids = [message_id for message_id in ids if message_id not in early]
            rows = connection.execute(
                "UPDATE ultramon.messages SET state = 1, attempts = attempts + 1,"
                f" claim_token = %s, claimed_until = %s WHERE id = ANY(%s) RETURNING {COLUMNS}",
                (random_hex(8), at + lease_seconds, ids),
            ).fetchall()
        skew_seconds = self._database.skew_seconds
        # An UPDATE returns its rows in no order.
        return [
            self._decode(read_legible(row, skew_seconds))
            for row in sorted(rows, key=lambda row: (row[4], row[0]))
        ]

    def acknowledge(self, message_id: int, claim_token: str) -> bool:
        arguments = (message_id, claim_token, ONCE, ONCE_SECONDS)
        return self._database.select(_ACKNOWLEDGE, *arguments) == [(1,)]

    def extend(
        self,
        message_id: int,
        claim_token: str,
        *,
        now: float,
        lease_seconds: float = LEASE_SECONDS,
    ) -> bool:
        until = self._database.to_server(now) + lease_seconds
        done = self._database.change(
            "UPDATE ultramon.messages SET claimed_until = %s"
            " WHERE id = %s AND claim_token = %s AND state = 1",
            until,
            message_id,
            claim_token,
        )
        return done == 1

    def cancel_messages_from(self, sender: str, category: str) -> Cancelled:
        """See `Queue.cancel_messages_from`; after the messages that this process sent before."""
        body = {"sender": sender, "category": category, "at": wall_clock()}
        wait_seconds = max(self.patience_seconds, CONNECT_SECONDS)
        done = self.sender.send(CANCEL, sender, body, wait_seconds)
        return done or Cancelled(0, 0)

    def retry(self, message_id: int, *, now: float) -> bool:
        at = self._database.to_server(now)
        done = self._database.change(
            "UPDATE ultramon.messages m SET state = 0, attempts = 0, available_at = %s,"
            " expires_at = %s WHERE id = %s AND state = 2 AND NOT EXISTS"
            " (SELECT 1 FROM ultramon.messages o WHERE o.recipient = m.recipient"
            "  AND o.dedupe_key = m.dedupe_key AND o.state IN (0, 1, 4))",
            at,
            at + EXPIRY_SECONDS,
            message_id,
        )
        return done == 1

    def close(self) -> None:
        """End its threads; the next call starts them again."""
        self._listener.close()
        self.sender.close()

    def after_fork(self) -> None:
        """Leave threads and locks to the parent in a forked copy."""
        self._listener.after_fork()
        self.sender.after_fork()
