"""The parts of a backend that either database carries out by the same statements and rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.backends.queue import Depth
from ultramon.backends.sql_rows import CANCELLED, COLUMNS, read_legible, read_message
from ultramon.notices import router
from ultramon.notices.message_rules import MAX_ATTEMPTS, MAX_ERROR_CHARS, backoff_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from ultramon.backends.sql_rows import SqlConnection, SqlRows
    from ultramon.notices.message import Cancelled, Message
    from ultramon.notices.registration import StoredRegistration
    from ultramon.notices.rows import RouteRows
    from ultramon.state.record import StateRecord

    Found = TypeVar("Found")
    Answer = TypeVar("Answer")

# Cast, as PostgreSQL sums large integers to `numeric`.
_DEPTH = """
    SELECT recipient, CAST(sum(ready) AS INTEGER), CAST(sum(waiting) AS INTEGER),
        CAST(sum(claimed) AS INTEGER), CAST(sum(dead) AS INTEGER), CAST(sum(dropped) AS INTEGER),
        CAST(sum(expired) AS INTEGER), min(oldest) - ?
    FROM (
        SELECT recipient,
            CASE WHEN state = 0 AND available_at <= ? THEN 1 ELSE 0 END AS ready,
            CASE WHEN state = 0 AND available_at > ? THEN 1 ELSE 0 END AS waiting,
            CASE WHEN state IN (1, 3) THEN 1 ELSE 0 END AS claimed,
            CASE state WHEN 2 THEN 1 ELSE 0 END AS dead, 0 AS dropped, 0 AS expired,
            CASE WHEN state IN (0, 1) THEN queued_at END AS oldest
        FROM main.messages WHERE state < 4 AND NOT (state = 0 AND expires_at <= ?)
        UNION ALL SELECT recipient, 0, 0, 0, 0, CASE reason WHEN 'dropped' THEN count ELSE 0 END,
            CASE reason WHEN 'expired' THEN count ELSE 0 END, NULL FROM main.message_losses
    ) AS counted GROUP BY recipient ORDER BY recipient
"""


class SqlQueue:
    """The rules of the queue, in SQL that both databases take."""

    def _look(self, look: Callable[[SqlConnection, float], list[Found]]) -> list[Found]:
        """Call a function with a connection and the seconds that the store's clock is ahead."""
        raise NotImplementedError

    def _change(self, change: Callable[[SqlConnection, float], bool]) -> bool:
        """Call a function as `_look` does, within a transaction that may write."""
        raise NotImplementedError

    def _mark_dead(
        self, connection: Any, message_id: int, recipient: str, error: str, now: float
    ) -> None:
        """Mark a message dead within a transaction."""
        raise NotImplementedError

    def _encode(self, text: str) -> str:
        """Return a text as the store takes it."""
        return text

    def _decode(self, message: Message) -> Message:
        """Return a message with its texts as they were queued."""
        return message

    def reject(self, message_id: int, claim_token: str, error: str, *, now: float) -> bool:
        error = error[:MAX_ERROR_CHARS]

        def reject(connection: SqlConnection, skew_seconds: float) -> bool:
            # The change comes first: no other claimer can have the message from here on.
            held = connection.execute(
                "UPDATE main.messages SET last_error = ?"
                " WHERE id = ? AND claim_token = ? AND state IN (1, 3)",
                (self._encode(error), message_id, claim_token),
            )
            if not held.rowcount:
                return False
            recipient, attempts, state = connection.execute(
                "SELECT recipient, attempts, state FROM main.messages WHERE id = ?", (message_id,)
            ).fetchone()
            if state == CANCELLED:
                connection.execute("DELETE FROM main.messages WHERE id = ?", (message_id,))
            elif attempts >= MAX_ATTEMPTS:
                self._mark_dead(connection, message_id, recipient, error, now)
            else:
                connection.execute(
                    "UPDATE main.messages SET state = 0, claim_token = NULL, available_at = ?"
                    " WHERE id = ?",
                    (now + skew_seconds + backoff_seconds(attempts), message_id),
                )
            return True

        return self._change(reject)

    def peek(
        self, recipient: str, *, now: float, after: int = 0, limit: int = 100
    ) -> list[Message]:
        which = "recipient = ? AND state IN (0, 1) AND id > ? AND expires_at > ?"

        def look(connection: SqlConnection, skew_seconds: float) -> list[Message]:
            values = recipient, after, now + skew_seconds, limit
            rows = _select(connection, f"{which} ORDER BY id LIMIT ?", *values)
            found = (read_message(row, skew_seconds) for row in rows)
            return [self._decode(message) for message in found if message is not None]

        return self._look(look)

    def dead(self, recipient: str | None = None) -> list[Message]:
        which, values = ("", ()) if recipient is None else ("AND recipient = ?", (recipient,))

        def look(connection: SqlConnection, skew_seconds: float) -> list[Message]:
            rows = _select(connection, f"state = 2 {which} ORDER BY id", *values)
            return [self._decode(read_legible(row, skew_seconds)) for row in rows]

        return self._look(look)

    def drop(self, message_id: int) -> bool:
        statement = "DELETE FROM main.messages WHERE id = ? AND state = 2"
        return self._change(lambda rows, _: rows.execute(statement, (message_id,)).rowcount == 1)

    def depth(self, *, now: float) -> list[Depth]:
        def count(connection: SqlConnection, skew_seconds: float) -> list[Depth]:
            at = now + skew_seconds
            rows = connection.execute(_DEPTH, (skew_seconds, at, at, at)).fetchall()
            # In a damaged row a name may be anything.
            return [Depth(*row) for row in rows if isinstance(row[0], str)]

        return self._look(count)


def _select(connection: SqlConnection, which: str, *values: object) -> list[tuple[Any, ...]]:
    query = f"SELECT {COLUMNS} FROM main.messages WHERE {which}"
    rows: list[tuple[Any, ...]] = connection.execute(query, values).fetchall()
    return rows


class SqlRegistry:
    """Registrations and their routes, in SQL that both databases take."""

    def _read(self, read: Callable[[SqlRows], Answer]) -> Answer | None:
        """Read rows; None where nothing was ever stored."""
        raise NotImplementedError

    def _change(self, agent_id: str, rule: Callable[[RouteRows], Answer]) -> Answer:
        """Apply a rule of the router to an agent, within a transaction."""
        raise NotImplementedError

    def register(self, registration: StoredRegistration) -> Cancelled:
        return self._change(registration.agent_id, lambda rows: router.register(rows, registration))

    def unregister(self, agent_id: str) -> Cancelled | None:
        return self._change(agent_id, lambda rows: router.unregister(rows, agent_id))

    def registrations(self, agent_id: str | None = None) -> list[StoredRegistration]:
        return self._read(lambda rows: rows.registrations(agent_id)) or []

    def announcement(self, agent_id: str, audience: str) -> tuple[int, str] | None:
        return self._read(lambda rows: rows.announcement(agent_id, audience))

    def cancel_notices(
        self, record: StateRecord, *, requester: str | None, now: float
    ) -> Cancelled:
        return self._change(
            record.agent_id, lambda rows: router.cancel_notices(rows, record, requester, now)
        )
