"""The database of opencode and its forks: sessions, their messages and the parts of these.

Loaded late: SQLite would cost a hook 5 ms. Every query goes through an index and is bounded by one
session, for databases of many gigabytes.

A fork may keep the messages of a session's subagents in that session, each with the agent's name.
Such a subagent is named ``<session>.<agent>``, and every function here that takes a session takes
that name too.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ultramon.hosts.transcripts.database import (
    MOST_REMEMBERED,
    column_names,
    opened,
    stamps_of,
    table_names,
    text,
    whole_number,
)
from ultramon.system.ids import is_agent_id

if TYPE_CHECKING:
    from collections.abc import Iterator

OPENCODE, KILO, MIMO = "opencode", "kilo", "mimo"
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
_MAIN = "main"
# Sessions that a fork has copied from other hosts, whose own files have them.
_IMPORTS = ("external_import", "claude_import")
_AGENT = "agent_id"
_CHANGING_MESSAGES = 8
"""The newest of a session, among which those are that still change."""


def host_of(path: str) -> str | None:
    """Return whose database a file is: `OPENCODE`, `KILO` or `MIMO`; None = of none of them.

    A fork has the tables of opencode and more: a copy under another name is known by those.

    Raises:
        OSError: As `opened`, but for a file that is not there.
        ValueError: It is a database, and damaged.
    """
    return _host_of(path, stamps_of(path))


@lru_cache(MOST_REMEMBERED)
def _host_of(path: str, stamps: tuple[object, ...]) -> str | None:
    names = table_names(path)
    if not names >= _TABLES:
        return None
    with opened(path) as database:
        if _AGENT in column_names(database, "message"):
            return MIMO
    is_kilo = os.path.basename(path).startswith(KILO)
    return KILO if is_kilo or any(name.startswith(f"{KILO}_") for name in names) else OPENCODE


def session_ids(path: str) -> list[str]:
    """Return all sessions of a database, the oldest first; raises as `opened`."""
    with opened(path) as database:
        return _session_ids(database, path)


def _session_ids(database: Any, path: str) -> list[str]:
    query = f"SELECT id FROM session {_not_imported(path)} ORDER BY time_created, id"
    rows = database.execute(query).fetchall()
    return [one for (name,) in rows if name for one in _with_agents(database, text(name))]


def subagent_ids(path: str, session_id: str) -> list[str]:
    """Return the subagents of a session and theirs, the oldest first; raises as `opened`."""
    with opened(path) as database:
        rows = database.execute(_CHILDREN, {"id": session_id}).fetchall()
        children = sorted((text(one) for (one,) in rows), reverse=True)  # newer ids sort lower
        own = _with_agents(database, session_id)[1:]
        return own + [one for name in children for one in _with_agents(database, name)]


def _not_imported(path: str) -> str:
    found = sorted(table_names(path).intersection(_IMPORTS))
    conditions = (f"id NOT IN (SELECT session_id FROM {name})" for name in found)
    return f"WHERE {' AND '.join(conditions)}" if found else ""


def _with_agents(database: Any, session_id: str) -> list[str]:
    """Return a session, and the subagents whose messages are kept in it."""
    if not has_agents(database) or "." in session_id:
        return [session_id]
    query = f"SELECT DISTINCT {_AGENT} FROM message WHERE session_id = ? ORDER BY {_AGENT}"
    rows = database.execute(query, (session_id,)).fetchall()
    others = (text(name) for (name,) in rows if text(name) not in (_MAIN, session_id))
    return [session_id, *(f"{session_id}.{name}" for name in others if is_agent_id(name))]


def has_agents(database: Any) -> bool:
    """Return whether messages name their agent: then those of subagents lie in the session."""
    return _AGENT in column_names(database, "message")


def _own(database: Any, name: str) -> tuple[str, tuple[str, ...]]:
    """Return the condition by which the messages of one agent are found, and its values."""
    if not has_agents(database):
        return "session_id = ?", (name,)
    session_id, _, agent = name.partition(".")
    # A session that another one has launched keeps its own messages under its id.
    return f"session_id = ? AND {_AGENT} IN (?, ?)", (
        session_id, agent or _MAIN, agent or session_id
    )  # fmt: skip


def size_and_change(path: str, session_id: str) -> tuple[int, int] | None:
    """Return how many messages a session has, and when one changed last; None = no session.

    Milliseconds; raises as `opened`.
    """
    with opened(path) as database:
        return _size_and_change(database, session_id)


def sizes_and_changes(path: str) -> dict[str, tuple[int, int]]:
    """Return what `size_and_change` does for every session, by its id; raises as `opened`."""
    with opened(path) as database:
        found = {name: _size_and_change(database, name) for name in _session_ids(database, path)}
    return {name: one for name, one in found.items() if one is not None}


def _size_and_change(database: Any, session_id: str) -> tuple[int, int] | None:
    session, _, agent = session_id.partition(".")
    if not database.execute("SELECT 1 FROM session WHERE id = ?", (session,)).fetchone():
        return None
    condition, values = _own(database, session_id)
    # Counted by an index alone. The rows of all messages would be most of what is read for a list
    # of sessions, and a message does not change any more once its reply is over.
    query = f"SELECT count(*) FROM message WHERE {condition}"
    (count,) = database.execute(query, values).fetchone()
    query = f"SELECT time_updated FROM message WHERE {condition} "
    query += "ORDER BY time_created DESC, id DESC LIMIT ?"
    rows = database.execute(query, (*values, _CHANGING_MESSAGES)).fetchall()
    changed_ms = max((whole_number(at) or 0 for (at,) in rows), default=0)
    return None if agent and not count else (count, changed_ms)


def newest_messages(database: Any, session_id: str, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield the last messages of a session, the newest first: id and JSON."""
    condition, values = _own(database, session_id)
    query = f"SELECT id, data FROM message WHERE {condition} "
    query += "ORDER BY time_created DESC, id DESC LIMIT ?"
    for message_id, data in database.execute(query, (*values, count)):
        yield text(message_id), _json(data)


def newest_message_ids(database: Any, session_id: str, count: int) -> list[str]:
    """Return the ids of the last messages of a session, the oldest first."""
    condition, values = _own(database, session_id)
    query = f"SELECT id FROM message WHERE {condition} "
    query += "ORDER BY time_created DESC, id DESC LIMIT ?"
    rows = database.execute(query, (*values, count)).fetchall()
    return [text(message_id) for (message_id,) in reversed(rows)]


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
    host = host_of(path)
    session = session_id.partition(".")[0]
    with opened(path) as database:
        # A fork may say the model only with each message.
        model = "model" if "model" in column_names(database, "session") else "NULL"
        query = f"SELECT directory, version, {model}, time_created FROM session WHERE id = ?"
        found = database.execute(query, (session,)).fetchone()
        if found is None:
            return
        (root_id,) = database.execute(_ROOT, {"id": session}).fetchone()
        data = _session(root_id, *found)
        yield b'{"opencode":"session","host":"%b","id":"%b","data":%b}\n' % (
            (host or "").encode(), session_id.encode(), data
        )  # fmt: skip
        condition, values = _own(database, session_id)
        query = f"SELECT id, data FROM message WHERE {condition} ORDER BY time_created, id"
        for message_id, data in database.execute(query, values):
            name = text(message_id)
            yield _line("message", name, _json(data))
            for part in parts_of(database, name):
                yield _line("part", name, part)


def _session(root_id: bytes, directory: bytes | None, version: bytes | None,
             model: bytes | None, created_ms: object) -> bytes:  # fmt: skip
    from ultramon.system import compact_json

    told = {
        "root": text(root_id),
        "directory": text(directory),
        "version": text(version),
        "model": None if model is None else text(model),
        "created": whole_number(created_ms),
    }
    return compact_json.dumps(told).encode()


def _json(value: bytes | None) -> bytes:
    return b"null" if value is None else value


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
        found = {text(name): whole_number(at) for name, at in database.execute(query)}
    return {name: at / 1000 for name, at in found.items() if at is not None and at / 1000 > since}
