"""The host's database: sessions, their messages and the parts of these.

Loaded late: SQLite would cost a hook 5 ms. Every query goes through an index and is bounded by one
session, for databases of many gigabytes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ultramon.hosts.transcripts.database import check_regular, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"SQLite format 3\0"
_TABLES = {"session", "message", "part", "todo", "project"}
_ROOT = """
    WITH RECURSIVE up(id, parent_id, depth) AS (
        SELECT id, parent_id, 0 FROM session WHERE id = :id
        UNION ALL SELECT s.id, s.parent_id, depth + 1 FROM session s JOIN up ON s.id = up.parent_id
        WHERE depth < 16
    ) SELECT id FROM up ORDER BY depth DESC LIMIT 1
"""
_CHILDREN = """
    WITH RECURSIVE down(id, depth) AS (
        SELECT id, 1 FROM session WHERE parent_id = :id
        UNION ALL SELECT s.id, depth + 1 FROM session s JOIN down ON s.parent_id = down.id
        WHERE depth < 16
    ) SELECT id FROM down
"""


def split(path: str) -> tuple[str, str]:
    """Return the database and the session of a transcript's name.

    Raises:
        ValueError: It names none.
    """
    database, session_id = os.path.split(path)
    if not database or not session_id:
        raise ValueError(f"{path} names no session in a database")
    return database, session_id


def is_of_host(path: str) -> bool:
    """Return whether a file is a database of this host.

    Raises:
        OSError: As `opened`, but for a file that is not there.
        ValueError: It is a database, and damaged.
    """
    try:
        check_regular(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    with open(path, "rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            return False
    with opened(path) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {_text(name) for (name,) in names} >= _TABLES


def session_ids(path: str) -> list[str]:
    """Return all sessions of a database, the oldest first; raises as `opened`."""
    with opened(path) as database:
        rows = database.execute("SELECT id FROM session ORDER BY time_created, id").fetchall()
    return [_text(session_id) for (session_id,) in rows if session_id]


def subagent_ids(path: str, session_id: str) -> list[str]:
    """Return the subagents of a session and theirs, the oldest first; raises as `opened`."""
    with opened(path) as database:
        rows = database.execute(_CHILDREN, {"id": session_id}).fetchall()
    return sorted((_text(one) for (one,) in rows), reverse=True)  # newer ids sort lower


def size_and_change(path: str, session_id: str) -> tuple[int, int] | None:
    """Return how many messages a session has, and when one changed last; None = no session.

    Milliseconds; raises as `opened`.
    """
    with opened(path) as database:
        if not database.execute("SELECT 1 FROM session WHERE id = ?", (session_id,)).fetchone():
            return None
        query = "SELECT count(*), max(time_updated) FROM message WHERE session_id = ?"
        count, changed_ms = database.execute(query, (session_id,)).fetchone()
    return count, _milliseconds(changed_ms) or 0


def newest_messages(database: Any, session_id: str, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield the last messages of a session, the newest first: id and JSON."""
    query = "SELECT id, data FROM message WHERE session_id = ? "
    query += "ORDER BY time_created DESC, id DESC LIMIT ?"
    for message_id, data in database.execute(query, (session_id, count)):
        yield _text(message_id), _json(data)


def newest_message_ids(database: Any, session_id: str, count: int) -> list[str]:
    """Return the ids of the last messages of a session, the oldest first."""
    query = "SELECT id FROM message WHERE session_id = ? "
    query += "ORDER BY time_created DESC, id DESC LIMIT ?"
    rows = database.execute(query, (session_id, count)).fetchall()
    return [_text(message_id) for (message_id,) in reversed(rows)]


def message(database: Any, message_id: str) -> bytes:
    """Return a message, as JSON; ``null`` where it is gone."""
    query = "SELECT data FROM message WHERE id = ?"
    found = database.execute(query, (message_id,)).fetchone()
    return _json(None if found is None else found[0])


def parts_of(database: Any, message_id: str) -> Iterator[bytes]:
    """Yield the parts of a message in their order, as JSON."""
    query = "SELECT data FROM part WHERE message_id = ? ORDER BY id"
    for (data,) in database.execute(query, (message_id,)):
        yield _json(data)


def session_lines(path: str, session_id: str) -> Iterator[bytes]:
    """Yield a session as lines: itself, then each message, followed by its parts.

    Raises:
        OSError, ValueError: As `opened`, with the first line.
    """
    with opened(path) as database:
        query = "SELECT directory, version, model, time_created FROM session WHERE id = ?"
        found = database.execute(query, (session_id,)).fetchone()
        if found is None:
            return
        directory, version, model, created_ms = found
        (root_id,) = database.execute(_ROOT, {"id": session_id}).fetchone()
        yield _line("session", session_id, _session(root_id, directory, version, model, created_ms))
        query = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
        for message_id, data in database.execute(query, (session_id,)):
            name = _text(message_id)
            yield _line("message", name, _json(data))
            for part in parts_of(database, name):
                yield _line("part", name, part)


def _session(root_id: bytes, directory: bytes | None, version: bytes | None,
             model: bytes | None, created_ms: object) -> bytes:  # fmt: skip
    from ultramon.system import compact_json

    told = {
        "root": _text(root_id),
        "directory": _text(directory),
        "version": _text(version),
        "model": None if model is None else _text(model),
        "created": _milliseconds(created_ms),
    }
    return compact_json.dumps(told).encode()


def _text(value: bytes | None) -> str:
    """Return a text of the database, where the client keeps none but a damaged file may."""
    return "" if value is None else value.decode("utf-8", "replace")


def _json(value: bytes | None) -> bytes:
    return b"null" if value is None else value


def _milliseconds(value: object) -> int | None:
    """Return a time of the database; None = it is none, as SQLite keeps anything in a column."""
    return value if isinstance(value, int) else None


def _line(kind: str, name: str, data: bytes) -> bytes:
    # A line end in JSON can only be white space: in a text it is escaped.
    return b'{"opencode":"%b","id":"%b","data":%b}\n' % (
        kind.encode(), name.encode(), data.replace(b"\n", b" ")
    )  # fmt: skip


def sessions_since(path: str, since: float) -> dict[str, float]:
    """Return the sessions that began after a time, each with its time, epoch seconds.

    Without subagents, the newest hundred; raises as `opened`.
    """
    # By the key: newer ids sort lower, and the table has no index of times.
    query = "SELECT id, time_created FROM session WHERE parent_id IS NULL ORDER BY id LIMIT 100"
    with opened(path) as database:
        found = {_text(name): _milliseconds(at) for name, at in database.execute(query)}
    return {name: at / 1000 for name, at in found.items() if at is not None and at / 1000 > since}
