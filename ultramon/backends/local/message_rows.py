"""Messages as rows of the journal: the statements of every transaction that touches them."""

from __future__ import annotations

from ultramon.backends.local.event_rows import insert_event
from ultramon.backends.local.inbox_flags import lower_beside, raise_beside
from ultramon.backends.local.journal_clock import (
    CLAIMED_AHEAD,
    bound_claimed,
    bound_waiting,
    skew_in,
)
from ultramon.backends.sql_rows import (
    BELONGINGS,
    COLUMNS,
    IS_NOTICE,
    count_loss,
    priorities,
    read_message,
)
from ultramon.errors import QueueFullError
from ultramon.notices.message import Cancelled
from ultramon.notices.message_rules import (
    DELIVERIES,
    LEASE_SECONDS,
    MAX_ATTEMPTS,
    MAX_BATCH,
    MAX_WAITING,
    dead_letter,
    harmless,
)
from ultramon.system import compact_json
from ultramon.system.ids import random_hex

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from ultramon.backends.local.connection import JournalConnection
    from ultramon.notices.message import Draft, Message

UNREADABLE = "cannot be read: a value of it is damaged"


def insert_message(connection: JournalConnection, draft: Draft, now: float) -> int:
    """Add a message within a transaction; return its id, or that of the one with its dedupe key.

    Raises:
        QueueFullError: The messages without a category are too many; none is ever dropped.
        StateError: The recipient's flag could not be raised.
    """
    (message_id,) = insert_messages(connection, (draft,), now)
    return message_id or 0


def insert_messages(
    connection: JournalConnection, drafts: Sequence[Draft | None], now: float
) -> list[int | None]:
    """Add messages within a transaction; return their ids, None for None. See `insert_message`."""
    ids: list[int | None] = []
    newest: dict[tuple[str, str | None], int] = {}
    at = now + skew_in(connection)
    for draft in drafts:
        if draft is None:
            ids.append(None)
            continue
        message_id, is_new = _insert(connection, draft, at)
        ids.append(message_id)
        if is_new:
            newest[draft.recipient, draft.category] = message_id
    # Once for all messages of a batch: a flag and a bound say the same after each of them.
    for recipient in {recipient for recipient, _ in newest}:
        raise_beside(connection, recipient)
    for (recipient, category), message_id in newest.items():
        _enforce_bound(connection, recipient, category, message_id)
    return ids


def _insert(connection: sqlite3.Connection, draft: Draft, at: float) -> tuple[int, bool]:
    """Return the id of a message, and whether it is new."""
    facts, dedupe_key = draft.facts, draft.dedupe_key
    done = connection.execute(
        "INSERT OR IGNORE INTO messages (recipient, sender, category, priority, text, facts,"
        " dedupe_key, state, attempts, available_at, queued_at, expires_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?)",
        (
            draft.recipient,
            draft.sender,
            draft.category,
            DELIVERIES.index(draft.delivery),
            draft.text,
            compact_json.dumps(facts) if facts else "{}",
            dedupe_key,
            at + draft.held_seconds,
            at,
            at + draft.expires_seconds,
        ),
    )
    if done.rowcount:
        return int(done.lastrowid or 0), True
    row = connection.execute(
        "SELECT id FROM messages WHERE recipient = ? AND dedupe_key = ?"
        " AND dedupe_key IS NOT NULL AND state IN (0, 1, 4)",
        (draft.recipient, dedupe_key),
    ).fetchone()
    return int(row[0]), False


def _enforce_bound(
    connection: sqlite3.Connection, recipient: str, category: str | None, newest_id: int
) -> None:
    """Drop the oldest of too many messages of a category, or refuse new ones."""
    waiting = "WHERE recipient = ? AND category IS ? AND state = 0 ORDER BY id"
    found = (recipient, category)
    (oldest_id,) = connection.execute(
        f"SELECT id FROM messages {waiting} LIMIT 1", found
    ).fetchone()
    # No id is used twice, so that the ids in between bound the messages: that spares a count.
    if newest_id - oldest_id < MAX_WAITING:
        return
    over = connection.execute(
        f"SELECT id FROM messages {waiting} DESC LIMIT -1 OFFSET ?", (*found, MAX_WAITING)
    ).fetchall()
    if over:
        if category is None:
            raise QueueFullError(recipient, MAX_WAITING)
        connection.executemany("DELETE FROM messages WHERE id = ?", over)
        count_loss(connection, recipient, "dropped", len(over))


def delete_messages_from(connection: sqlite3.Connection, sender: str, category: str) -> Cancelled:
    """Cancel a sender's messages of one category within a transaction."""
    which = "WHERE sender = ? AND category = ? AND state IN (0, 1)"
    deleted = connection.execute(f"DELETE FROM messages {which} AND state = 0", (sender, category))
    in_flight = connection.execute(
        f"UPDATE messages SET state = 3 {which} AND state = 1", (sender, category)
    )
    return Cancelled(deleted.rowcount, in_flight.rowcount)


def mark_dead(
    connection: sqlite3.Connection, message_id: int, recipient: str, error: str, now: float
) -> None:
    """Mark a message dead for an error, and store that as an event of its recipient."""
    connection.execute(
        "UPDATE messages SET state = 2, claim_token = NULL, last_error = ? WHERE id = ?",
        (error, message_id),
    )
    run = connection.execute(
        "SELECT run FROM events WHERE agent_id = ? ORDER BY id DESC LIMIT 1", (recipient,)
    ).fetchone()
    event, key = dead_letter(recipient, message_id, run[0] if run else "default", now)
    insert_event(connection, event, key)


def sweep(connection: JournalConnection, at: float, now: float) -> None:
    """End expired leases, and delete expired messages.

    Args:
        connection: Within a transaction.
        at: Now, by the clock of the journal.
        now: Epoch seconds, for events.
    """
    ended = "state IN (1, 3) AND claimed_until <= :at"
    expired = "state IN (0, 4) AND expires_at <= :at"
    due = {"at": at}
    # Mostly nothing is due: one question instead of five statements that change nothing.
    if not connection.execute(
        f"SELECT 1 FROM messages WHERE {ended} UNION ALL SELECT 1 FROM messages WHERE {expired}"
        f" UNION ALL SELECT 1 FROM messages WHERE {CLAIMED_AHEAD} LIMIT 1",
        due,
    ).fetchone():
        return
    bound_claimed(connection, at)
    connection.execute(f"DELETE FROM messages WHERE {ended} AND state = 3", due)
    for message_id, recipient in connection.execute(
        f"SELECT id, recipient FROM messages WHERE {ended} AND attempts >= :most",
        {**due, "most": MAX_ATTEMPTS},
    ).fetchall():
        mark_dead(connection, message_id, recipient, "its claimer went silent", now)
    connection.execute(
        f"UPDATE messages SET state = 0, claim_token = NULL, available_at = claimed_until"
        f" WHERE {ended}",
        due,
    )
    for recipient, count in connection.execute(
        f"SELECT recipient, count(*) FROM messages WHERE {expired} AND state = 0 GROUP BY 1", due
    ).fetchall():
        count_loss(connection, recipient, "expired", count)
    connection.execute(f"DELETE FROM messages WHERE {expired}", due)


def claim_ready(
    connection: JournalConnection,
    recipient: str,
    now: float,
    *,
    limit: int = 10,
    deliveries: Sequence[str] = DELIVERIES,
    lease_seconds: float = LEASE_SECONDS,
    only: str = "1",
) -> list[Message]:
    """Claim messages within a transaction, urgent ones first.

    A message that failed before comes alone, so that one that kills its claimer takes no other
    along. A notice waits for the older ones about the same agent, unless it is claimed together
    with them.

    Args:
        connection: Within a transaction.
        recipient: Whose.
        now: Epoch seconds.
        limit: At most so many, `MAX_BATCH` at the most.
        deliveries: Of these modes.
        lease_seconds: For how long.
        only: A condition in SQL that they must meet.
    """
    skew_seconds = skew_in(connection)
    at = now + skew_seconds
    sweep(connection, at, now)
    claimable = f"state = 0 AND available_at <= :at AND priority IN ({priorities(deliveries)})"
    query = (
        f"SELECT id, attempts FROM messages AS m WHERE recipient = :recipient AND {claimable}"
        f" AND {only} AND NOT ({IS_NOTICE} AND EXISTS (SELECT 1 FROM messages"
        " WHERE sender = m.sender"
        f"  AND {IS_NOTICE} AND state IN (0, 1) AND recipient = :recipient AND id < m.id"
        f"  AND NOT ({claimable})))"
        " ORDER BY priority, id LIMIT :limit"
    )
    wanted = {"recipient": recipient, "at": at, "limit": min(limit, MAX_BATCH)}
    ready = connection.execute(query, wanted).fetchall()
    # Messages that a clock queued too far ahead are looked for only where no others are ready.
    if not ready and bound_waiting(connection, recipient, at):
        ready = connection.execute(query, wanted).fetchall()
    token = random_hex(8)
    claimed = []
    for message_id in harmless(ready):
        connection.execute(
            "UPDATE messages SET state = 1, attempts = attempts + 1, claim_token = ?,"
            " claimed_until = ?, lease_seconds = ? WHERE id = ?",
            (token, at + lease_seconds, lease_seconds, message_id),
        )
        found = connection.execute(f"SELECT {COLUMNS} FROM messages WHERE id = ?", (message_id,))
        message = read_message(found.fetchone(), skew_seconds)
        if message is None:
            # As a dead letter it can be looked at, is counted, and keeps no other message back.
            mark_dead(connection, message_id, recipient, UNREADABLE, now)
        else:
            claimed.append(message)
    return claimed


def end_claimed(connection: sqlite3.Connection, message_id: int, claim_token: str) -> bool:
    """End a message within a transaction; False when another claimer has it meanwhile."""
    claimed = "WHERE id = ? AND claim_token = ?"
    done = connection.execute(
        f"DELETE FROM messages {claimed} AND (state = 3 OR state = 1 AND dedupe_key IS NULL)",
        (message_id, claim_token),
    )
    if not done.rowcount:
        done = connection.execute(
            "UPDATE messages SET state = 4, text = '', facts = '{}', claim_token = NULL"
            f" {claimed} AND state = 1",
            (message_id, claim_token),
        )
    return done.rowcount == 1


def put_back(connection: JournalConnection, message_id: int, claim_token: str, now: float) -> None:
    """Make a claimed message ready as if it had not been claimed, within a transaction."""
    held = "WHERE id = ? AND claim_token = ? AND state"
    connection.execute(f"DELETE FROM messages {held} = 3", (message_id, claim_token))
    connection.execute(
        "UPDATE messages SET state = 0, claim_token = NULL, attempts = attempts - 1,"
        f" available_at = ? {held} = 1",
        (now + skew_in(connection), message_id, claim_token),
    )


def refuse(
    connection: sqlite3.Connection, message_id: int, claim_token: str, error: str, now: float
) -> None:
    """Mark a claimed message dead within a transaction: no attempt could deliver it."""
    held = connection.execute(
        "SELECT recipient FROM messages WHERE id = ? AND claim_token = ? AND state = 1",
        (message_id, claim_token),
    ).fetchone()
    if held is None:  # cancelled meanwhile, or claimed by another
        end_claimed(connection, message_id, claim_token)
        return
    mark_dead(connection, message_id, held[0], error, now)


def forget(connection: JournalConnection, before: float, agents: Sequence[str]) -> None:
    """Delete dead messages queued before a time, and the rows of deleted agents."""
    connection.execute(
        "DELETE FROM messages WHERE state = 2 AND queued_at < ?", (before + skew_in(connection),)
    )
    for table, column in BELONGINGS:
        connection.executemany(
            f"DELETE FROM {table} WHERE {column} = ?", [(agent_id,) for agent_id in agents]
        )
    for agent_id in agents:
        lower_beside(connection, agent_id)
