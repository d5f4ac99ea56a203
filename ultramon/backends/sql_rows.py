"""The rows of messages, registrations and notices: what both databases understand alike.

A message is ready, claimed for a time, dead, or, while claimed, cancelled. Delivered ones are
deleted; those with a dedupe key leave the key behind until they expire.
"""

from __future__ import annotations

from ultramon.backends.local.event_rows import has_kinds
from ultramon.notices.message import Draft, Message
from ultramon.notices.message_rules import DELIVERIES
from ultramon.notices.registration import StoredRegistration
from ultramon.notices.texts import CATEGORIES, category_of, delivery_of
from ultramon.system import compact_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    class SqlConnection(Protocol):
        """A connection to either database, within a transaction.

        Of the SQL that both speak it takes the form of SQLite: the tables lie in the schema
        ``main``, and values are ``?``.
        """

        def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Any:
            """Execute a statement; return the cursor."""


BELONGINGS = (
    ("messages", "recipient"),
    ("message_losses", "recipient"),
    ("senders", "agent_id"),
    ("registrations", "agent_id"),
    ("announcements", "agent_id"),
    ("credentials", "agent_id"),
)
"""The tables that hold rows of an agent, each with the column that names it."""

READY, CLAIMED, DEAD, CANCELLED, DELIVERED = range(5)

IS_NOTICE = (
    f"(category IS NOT NULL AND category IN ({', '.join(repr(name) for name in CATEGORIES)})"
    " AND facts <> '{}')"
)
"""In SQL: whether a message is a notice about its sender. Those arrive in the order of ids."""
LEVEL_FACT = '"kind":"level"'
"""In the stored facts of a notice: it is about a level that was reached."""
COLUMNS = (
    "id, recipient, sender, category, priority, text, facts, attempts, claim_token, queued_at,"
    " expires_at, last_error"
)
_TEXT_OR_NONE, _NUMBER = (str, type(None)), (int, float)
_MESSAGE_KINDS: tuple[type | tuple[type, ...], ...] = (
    *(int, str, _TEXT_OR_NONE, _TEXT_OR_NONE, int, str, str, int),
    *(_TEXT_OR_NONE, _NUMBER, _NUMBER, _TEXT_OR_NONE),
)
_DEFAULTS = (0, "?", None, None, 0, "", "{}", 0, None, 0.0, 0.0, None)


def count_loss(connection: SqlConnection, recipient: str, reason: str, count: int) -> None:
    """Add to the number of a recipient's messages that were ``dropped`` or ``expired``."""
    connection.execute(
        "INSERT INTO main.message_losses AS l VALUES (?, ?, ?)"
        " ON CONFLICT (recipient, reason) DO UPDATE SET count = l.count + excluded.count",
        (recipient, reason, count),
    )


def read_message(row: Sequence[Any], skew_seconds: float) -> Message | None:
    """Return the message of a row of `COLUMNS`; None where a value of it is damaged.

    Facts that cannot be read are none.

    Args:
        row: The row.
        skew_seconds: How far the clock of its store is ahead of this machine's.
    """
    if not has_kinds(row, _MESSAGE_KINDS) or row[4] not in range(len(DELIVERIES)):
        return None
    try:
        facts = compact_json.loads(row[6])
    except (ValueError, RecursionError):
        facts = None  # an edited row must not keep the messages beside it back
    return Message(*row)._replace(
        delivery=DELIVERIES[row[4]],
        facts=facts if isinstance(facts, dict) else {},
        claim_token=row[8] or "",
        queued_at=row[9] - skew_seconds,
        expires_at=row[10] - skew_seconds,
    )


def read_legible(row: Sequence[Any], skew_seconds: float) -> Message:
    """Return a message to be looked at also where values are damaged. See `read_message`."""
    message = read_message(row, skew_seconds)
    if message is not None:
        return message
    legible: list[Any] = []
    for value, kind, default in zip(row, _MESSAGE_KINDS, _DEFAULTS, strict=True):
        if isinstance(value, bytes) and kind in (str, _TEXT_OR_NONE):
            legible.append(value.decode(errors="backslashreplace"))
        else:
            legible.append(value if isinstance(value, kind) else default)
    legible[4] = legible[4] if legible[4] in range(len(DELIVERIES)) else len(DELIVERIES) - 1
    message = read_message(legible, skew_seconds)
    assert message is not None  # each value has its type now
    return message


def priorities(deliveries: Sequence[str]) -> str:
    """Return modes as a list in SQL."""
    return ", ".join(str(DELIVERIES.index(delivery)) for delivery in deliveries)


_REGISTRATION_COLUMNS = "agent_id, notify_id, source, ladder, registered_by, registered_at"
_REGISTRATION_KINDS = (str, str, str, (str, type(None)), str, _NUMBER)


class SqlRows:
    """The rows of routing, in SQL that both databases take: all of `RouteRows` but `cancel`.

    Args:
        connection: Within a transaction.
        to_store: Returns a time of this machine's clock by that of the database.
        from_store: The reverse.
    """

    def __init__(
        self,
        connection: SqlConnection,
        *,
        to_store: Callable[[float], float] = float,
        from_store: Callable[[float], float] = float,
    ) -> None:
        self._execute = connection.execute
        self._to_store = to_store
        self._from_store = from_store

    def _insert(self, draft: Draft, now: float) -> object:
        """Add a message."""
        raise NotImplementedError

    def registrations(self, agent_id: str | None = None) -> list[StoredRegistration]:
        """Return one agent's registration, or all by agent id."""
        which, values = ("", ()) if agent_id is None else ("WHERE agent_id = ?", (agent_id,))
        rows = self._execute(
            f"SELECT {_REGISTRATION_COLUMNS} FROM main.registrations {which} ORDER BY agent_id",
            values,
        )
        # A damaged row must not keep the others back; `backend check` names it.
        sound = (row for row in rows.fetchall() if has_kinds(row, _REGISTRATION_KINDS))
        return [self._registration(row) for row in sound]

    def registration(self, agent_id: str) -> StoredRegistration | None:
        return next(iter(self.registrations(agent_id)), None)

    def _registration(self, row: tuple[Any, ...]) -> StoredRegistration:
        return StoredRegistration._make((*row[:5], self._from_store(row[5])))

    def put_registration(self, registration: StoredRegistration) -> None:
        *columns, registered_at = registration
        self._execute(
            "INSERT INTO main.registrations VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (agent_id) DO UPDATE SET notify_id = excluded.notify_id,"
            " source = excluded.source, ladder = excluded.ladder,"
            " registered_by = excluded.registered_by, registered_at = excluded.registered_at",
            (*columns, self._to_store(registered_at)),
        )

    def delete_registration(self, agent_id: str) -> bool:
        done = self._execute("DELETE FROM main.registrations WHERE agent_id = ?", (agent_id,))
        return bool(done.rowcount == 1)

    def sender(self, agent_id: str) -> tuple[float, int, int, float] | None:
        """Return what `RouteRows.sender` states; the start is by the clock of the agent's owner."""
        row = self._execute(
            "SELECT started_at, generation, epoch, cleared_at FROM main.senders WHERE agent_id = ?",
            (agent_id,),
        ).fetchone()
        if row is None or not has_kinds(row, (_NUMBER, int, int, _NUMBER)):
            return None
        return (*row[:3], self._cleared(row[3]))

    def _cleared(self, at: float) -> float:
        return self._from_store(at) if at else 0.0

    def move_sender(self, agent_id: str, started_at: float, generation: int, epoch: int) -> None:
        self._execute(
            "INSERT INTO main.senders VALUES (?, ?, ?, ?, 0) ON CONFLICT (agent_id) DO UPDATE"
            " SET started_at = excluded.started_at, generation = excluded.generation,"
            " epoch = excluded.epoch",
            (agent_id, started_at, generation, epoch),
        )

    def note_clear(
        self, agent_id: str, started_at: float, generation: int, epoch: int, cleared_at: float
    ) -> None:
        self._execute(
            "INSERT INTO main.senders VALUES (?, ?, ?, ?, ?) ON CONFLICT (agent_id) DO UPDATE"
            " SET cleared_at = excluded.cleared_at",
            (agent_id, started_at, generation, epoch, self._to_store(cleared_at)),
        )

    def announcement(self, agent_id: str, audience: str) -> tuple[int, str] | None:
        row: tuple[int, str] | None = self._execute(
            "SELECT epoch, level FROM main.announcements WHERE agent_id = ? AND audience = ?",
            (agent_id, audience),
        ).fetchone()
        return row if row is None or has_kinds(row, (int, str)) else None

    def announce(self, agent_id: str, audience: str, epoch: int, level: str, now: float) -> None:
        self._execute(
            "INSERT INTO main.announcements VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (agent_id, audience) DO UPDATE SET epoch = excluded.epoch,"
            " level = excluded.level, announced_at = excluded.announced_at",
            (agent_id, audience, epoch, level, self._to_store(now)),
        )

    def forget_announcements(self, agent_id: str) -> None:
        self._execute("DELETE FROM main.announcements WHERE agent_id = ?", (agent_id,))

    def cancel_levels(self, sender: str) -> bool:
        # To find a text in another the two databases have functions of different names.
        is_level = f"{IS_NOTICE} AND replace(facts, '{LEVEL_FACT}', '') <> facts"
        which = f"WHERE sender = ? AND {is_level} AND state"
        deleted = self._execute(f"DELETE FROM main.messages {which} = 0", (sender,))
        claimed = self._execute(f"UPDATE main.messages SET state = 3 {which} = 1", (sender,))
        return bool(deleted.rowcount + claimed.rowcount > 0)

    def send(
        self,
        recipient: str,
        text: str,
        facts: dict[str, Any],
        now: float,
        held_seconds: float = 0.0,
    ) -> None:
        sender, delivery = facts["agentId"], delivery_of(facts)
        self._hasten(recipient, sender, DELIVERIES.index(delivery))
        category = category_of(facts)
        draft = Draft(
            recipient,
            text,
            sender,
            category=category,
            delivery=delivery,
            facts=facts,
            held_seconds=held_seconds,
        )
        self._insert(draft, now)

    def _hasten(self, recipient: str, sender: str, priority: int) -> None:
        # Notices about an agent arrive in the order of ids: an urgent one takes those before along.
        self._execute(
            f"UPDATE main.messages SET priority = ? WHERE sender = ? AND {IS_NOTICE}"
            " AND state IN (0, 1) AND recipient = ? AND priority > ?",
            (priority, sender, recipient, priority),
        )
