"""Events as rows of the journal: each is stored once under its key."""

from __future__ import annotations

from ultramon.errors import ConfigurationError
from ultramon.state.event_keys import event_key, is_event
from ultramon.system import compact_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from typing import Any

EVENT_COLUMNS = "key, type, run, agent_id, occurred_at, payload"
CURSORS = "a cursor that this store has returned, or nothing for the beginning"
# A longer number would not fit the integers of SQLite.
_MAX_CURSOR_CHARS = 18


def position_of(cursor: str | None) -> int:
    """Return the id of the event that a cursor lies behind.

    Raises:
        ConfigurationError: It is no cursor of a journal.
    """
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= _MAX_CURSOR_CHARS):
        raise ConfigurationError("after", cursor, CURSORS)
    return int(cursor)


def keyed(
    events: Sequence[dict[str, Any]], key_of: Callable[[dict[str, Any]], str] = event_key
) -> dict[str, dict[str, Any]]:
    """Return events by key, the first of each, in their order."""
    first: dict[str, dict[str, Any]] = {}
    for event in events:
        first.setdefault(key_of(event), event)
    return first


def event_row(key: str, event: dict[str, Any]) -> tuple[str, str, str, str, str, str]:
    """Return the columns of an event that every SQL store has: `EVENT_COLUMNS`."""
    return (
        key,
        event["type"],
        event["run"],
        event["agentId"],
        event["occurredAt"],
        compact_json.dumps(event),
    )


def has_kinds(row: Sequence[object], kinds: Sequence[type | tuple[type, ...]]) -> bool:
    """Return whether the values of a row are of these types: those of a damaged one may not be."""
    return all(isinstance(value, kind) for value, kind in zip(row, kinds, strict=True))


def read_event(payload: object) -> dict[str, Any] | None:
    """Return a stored event; None for a damaged row, which must not stop the readers behind it."""
    if not isinstance(payload, str):
        return None
    try:
        event: dict[str, Any] = compact_json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return event if is_event(event) else None


def insert_event(
    connection: sqlite3.Connection, event: dict[str, Any], key: str | None = None
) -> bool:
    """Add an event within a transaction; return False when its key is there already."""
    done = connection.execute(
        f"INSERT OR IGNORE INTO events ({EVENT_COLUMNS}, generation, epoch)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (*event_row(key or event_key(event), event), event["generation"], event["epoch"]),
    )
    return done.rowcount == 1
