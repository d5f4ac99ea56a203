"""Events in commit order, and the cursors of their consumers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ultramon.backends.base import EventPage, Subscription
from ultramon.backends.lease_holder import is_gone
from ultramon.backends.local.event_rows import CURSORS, EVENT_COLUMNS, event_row, keyed
from ultramon.errors import ConfigurationError
from ultramon.state.event_keys import event_key
from ultramon.system import compact_json
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ultramon.backends.postgres.connection.database import Connection, Database

_BEGINNING = "0:0"
_CURSOR = re.compile("[0-9]{1,18}:[0-9]{1,18}")


class EventLog:
    """The rows of events.

    Args:
        database: Where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

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
        cursor = after or _BEGINNING
        if not _CURSOR.fullmatch(cursor):
            raise ConfigurationError("after", cursor, CURSORS)
        txid, _, position = cursor.partition(":")
        rows = self._database.select(
            # By the column: `txid` alone would mean the text that is returned.
            "SELECT txid::text, id, payload FROM ultramon.events AS e"
            " WHERE (txid, id) > (%s::xid8, %s::bigint)"
            " AND txid < pg_snapshot_xmin(pg_current_snapshot())"
            " ORDER BY e.txid, e.id LIMIT %s",
            txid,
            position,
            limit,
        )
        cursors = [f"{txid}:{position}" for txid, position, _ in rows]
        events = [compact_json.loads(payload) for _, _, payload in rows]
        return EventPage(events, cursors[-1] if cursors else cursor, cursors)

    def change_mark(self) -> object:
        """Return the last event that can be read. See `Backend.change_mark`.

        Not the transactions that have ended: each heartbeat would make all readers look.
        """
        return self._last_event()

    def last_cursor(self) -> str | None:
        """See `ultramon.backends.toolkit.last_cursor`."""
        rows = self._last_event()
        return f"{rows[0][0]}:{rows[0][1]}" if rows else None

    def _last_event(self) -> list[tuple[Any, ...]]:
        return self._database.select(
            "SELECT txid::text, id FROM ultramon.events AS e"
            " WHERE txid < pg_snapshot_xmin(pg_current_snapshot())"
            " ORDER BY e.txid DESC, e.id DESC LIMIT 1"
        )

    def subscribe(
        self, name: str, holder: str, *, now: float, lease_seconds: float
    ) -> Subscription | None:
        """See `Backend.subscribe`."""
        now = self._database.to_server(now)
        with self._database.transaction() as connection:
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
            if other not in (None, holder) and lease_until > now and not is_gone(other):
                return None
            connection.execute(
                "UPDATE ultramon.consumers SET holder = %s, lease_until = %s WHERE name = %s",
                (holder, now + lease_seconds, name),
            )
        return Subscription(cursor, compact_json.loads(memory))

    def acknowledge(self, name: str, holder: str, cursor: str, memory: dict[str, Any]) -> bool:
        """See `Backend.acknowledge`."""
        statement = (
            "UPDATE ultramon.consumers SET cursor = %s, memory = %s WHERE name = %s AND holder = %s"
        )
        known = compact_json.dumps(memory)
        return self._database.change(statement, cursor, known, name, holder) == 1

    def unsubscribe(self, name: str, holder: str) -> None:
        """See `Backend.unsubscribe`."""
        statement = "UPDATE ultramon.consumers SET holder = NULL WHERE name = %s AND holder = %s"
        self._database.change(statement, name, holder)

    def prune(self, connection: Connection, before: float) -> None:
        """Delete events older than a time of this host's clock."""
        connection.execute(
            "DELETE FROM ultramon.events WHERE occurred_at < %s", (format_time(before),)
        )
