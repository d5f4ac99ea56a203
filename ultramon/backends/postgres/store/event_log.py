"""Events in commit order, and the cursors of their consumers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultramon.backends.base import EventPage
from ultramon.backends.local.event_rows import CURSORS, EVENT_COLUMNS, event_row, keyed, read_event
from ultramon.backends.toolkit import is_taken, read_subscription
from ultramon.errors import ConfigurationError
from ultramon.state.event_keys import event_key
from ultramon.system import compact_json
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ultramon.backends.base import Subscription
    from ultramon.backends.postgres.connection.database import Connection, Database

_BEGINNING = "0:0"
_CURSOR = re.compile("[0-9]{1,18}:[0-9]{1,18}")


def _check_cursor(cursor: str) -> None:
    if not _CURSOR.fullmatch(cursor):
        raise ConfigurationError("after", cursor, CURSORS)


@dataclass(frozen=True, slots=True)
class EventLog:
    """The rows of events.

    Attributes:
        database: Where they are.
    """

    database: Database

    def insert(
        self,
        connection: Connection,
        events: Sequence[dict[str, Any]],
        key_of: Callable[[dict[str, Any]], str] = event_key,
    ) -> list[dict[str, Any]]:
        """Store events within a transaction; return those that were not there yet."""
        if not events:
            return []
        by_key = keyed(events, key_of)
        rows = [event_row(key, event) for key, event in by_key.items()]
        stored = connection.execute(
            f"INSERT INTO ultramon.events ({EVENT_COLUMNS})"
            " SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[],"
            " %s::text[]) ON CONFLICT (key) DO NOTHING RETURNING key",
            tuple(map(list, zip(*rows, strict=True))),
        )
        fresh = {key for (key,) in stored}
        return [event for key, event in by_key.items() if key in fresh]

    def events(self, after: str | None = None, limit: int = 500) -> EventPage:
        """See `Backend.events`.

        Ids are assigned before commits: only below the oldest running transaction none can appear
        any more.
        """
        return self._select(
            after, "AND txid < pg_snapshot_xmin(pg_current_snapshot()) {order} LIMIT %s", limit
        )

    def committed_events(
        self, after: str | None = None, *, run: str | None = None, agent_id: str | None = None
    ) -> EventPage:
        wanted = {"run": run, "agent_id": agent_id}
        given = {column: value for column, value in wanted.items() if value is not None}
        conditions = "".join(f"AND {column} = %s " for column in given)
        return self._select(after, f"{conditions}{{order}}", *given.values())

    def _select(self, after: str | None, rest: str, *arguments: object) -> EventPage:
        """Return the events behind a cursor.

        Args:
            after: The cursor.
            rest: The end of the query, with ``{order}`` where that belongs.
            *arguments: Of the rest.
        """
        cursor = after or _BEGINNING
        _check_cursor(cursor)
        rows = self.database.select(
            "SELECT txid::text, id, payload FROM ultramon.events AS e"
            " WHERE (txid, id) > (%s::xid8, %s::bigint) "
            # By the column: `txid` alone would mean the text that is returned.
            + rest.format(order="ORDER BY e.txid, e.id"),
            *cursor.split(":"),
            *arguments,
        )
        if rows:
            cursor = f"{rows[-1][0]}:{rows[-1][1]}"
        # A damaged row is passed over: it must not stop the readers behind it.
        read = [(f"{txid}:{position}", read_event(payload)) for txid, position, payload in rows]
        cursors = [place for place, event in read if event]
        return EventPage([event for _, event in read if event], cursor, cursors)

    def events_about(self, connection: Connection, agent_id: str) -> list[dict[str, Any]]:
        """Return the committed events of an agent within a transaction, in commit order."""
        rows = connection.execute(
            "SELECT payload FROM ultramon.events AS e WHERE agent_id = %s ORDER BY e.txid, e.id",
            (agent_id,),
        )
        return [event for (payload,) in rows if (event := read_event(payload))]

    def change_mark(self) -> object:
        """Return the last event that can be read. See `Backend.change_mark`.

        Not the transactions that have ended: each heartbeat would make all readers look.
        """
        return self._last_event()

    def last_cursor(self) -> str | None:
        """Return the cursor behind the last event; None where there is none."""
        rows = self._last_event()
        return f"{rows[0][0]}:{rows[0][1]}" if rows else None

    def _last_event(self) -> list[tuple[Any, ...]]:
        return self.database.select(
            "SELECT txid::text, id FROM ultramon.events AS e"
            " WHERE txid < pg_snapshot_xmin(pg_current_snapshot())"
            " ORDER BY e.txid DESC, e.id DESC LIMIT 1"
        )

    def subscribe(
        self, name: str, holder: str, *, now: float, lease_seconds: float
    ) -> Subscription | None:
        now = self.database.to_server(now)
        with self.database.transaction() as connection:
            # There is a row before it is locked: two new holders would both find none.
            connection.execute(
                "INSERT INTO ultramon.consumers VALUES (%s, NULL, '{}', NULL, 0)"
                " ON CONFLICT (name) DO NOTHING",
                (name,),
            )
            [(other, lease_until, cursor, memory)] = connection.execute(
                "SELECT holder, lease_until, cursor, memory FROM ultramon.consumers"
                " WHERE name = %s FOR UPDATE",
                (name,),
            )
            if is_taken(other, lease_until, holder, now):
                return None
            connection.execute(
                "UPDATE ultramon.consumers SET holder = %s, lease_until = %s WHERE name = %s",
                (holder, now + lease_seconds, name),
            )
        return read_subscription(name, cursor, memory, _check_cursor)

    def acknowledge(self, name: str, holder: str, cursor: str, memory: dict[str, Any]) -> bool:
        statement = (
            "UPDATE ultramon.consumers SET cursor = %s, memory = %s WHERE name = %s AND holder = %s"
        )
        known = compact_json.dumps(memory)
        return self.database.change(statement, cursor, known, name, holder) == 1

    def unsubscribe(self, name: str, holder: str) -> None:
        statement = "UPDATE ultramon.consumers SET holder = NULL WHERE name = %s AND holder = %s"
        self.database.change(statement, name, holder)

    def prune(self, connection: Connection, before: float) -> None:
        """Delete events older than a time of this machine's clock."""
        connection.execute(
            "DELETE FROM ultramon.events WHERE occurred_at < %s", (format_time(before),)
        )
