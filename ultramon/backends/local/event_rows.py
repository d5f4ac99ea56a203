"""Events as rows of the journal: each is stored once under its key."""

from __future__ import annotations

from ultramon.errors import ConfigurationError
from ultramon.state.event_keys import event_key
from ultramon.system import compact_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from typing import Any


CURSORS = "a cursor that this store has returned, or nothing for the beginning"


_MAX_CURSOR_CHARS = 18


def position_of(cursor: str | None) -> int:
    """Return the row of the journal behind which a cursor goes on.

    Raises:
        ConfigurationError: It is no cursor of a journal.
    """
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= _MAX_CURSOR_CHARS):
        raise ConfigurationError("after", cursor, CURSORS)
    return int(cursor)


def insert_event(
    connection: sqlite3.Connection, event: dict[str, Any], key: str | None = None
) -> bool:
    """Add an event within a transaction; return False when its key is there already."""
    done = connection.execute(
        "INSERT OR IGNORE INTO events (key, type, run, agent_id, generation, epoch,"
        " occurred_at, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            key or event_key(event),
            event["type"],
            event["run"],
            event["agentId"],
            event["generation"],
            event["epoch"],
            event["occurredAt"],
            compact_json.dumps(event),
        ),
    )
    return done.rowcount == 1
