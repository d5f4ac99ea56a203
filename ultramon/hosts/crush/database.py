"""The database of Crush, one for each project: sessions with their last count, and messages.

Loaded late. Messages are found by an index; the sessions of a project are few.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ultramon.hosts.transcripts.database import (
    MOST_REMEMBERED,
    column_names,
    opened,
    root_query,
    seconds,
    stamps_of,
    table_names,
    text,
)
from ultramon.system import compact_json

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = "crush"
_VERSIONS_TABLE = "goose_db_version"
_TABLES = {_VERSIONS_TABLE, "sessions", "messages", "files"}
_VERSIONS = frozenset({
    20250424200609, 20250515105448, 20250624000000, 20250627000000, 20250810000000,
    20250812000000, 20260127000000,
})  # fmt: skip
_FOLDER = ".crush"
_CHILDREN = """
    WITH RECURSIVE down(id, depth) AS (
        SELECT id, 1 FROM sessions WHERE parent_session_id = :id AND message_count > 0
        UNION ALL SELECT s.id, depth + 1 FROM sessions s JOIN down ON s.parent_session_id = down.id
        WHERE depth < 16 AND message_count > 0
    ) SELECT id FROM down
"""
_ROOT = root_query("parent_session_id")


def host_of(path: str) -> str | None:
    """Return `HOST` where a file is a database of Crush.

    Raises:
        OSError: As `opened`, but for a file that is not there.
        ValueError: It is damaged, or of a schema that is not known.
    """
    return _host_of(path, stamps_of(path))


@lru_cache(MOST_REMEMBERED)
def _host_of(path: str, stamps: tuple[object, ...]) -> str | None:
    if not table_names(path) >= _TABLES:
        return None
    with opened(path) as database:
        query = f"SELECT max(version_id) FROM {_VERSIONS_TABLE} WHERE is_applied"
        (version,) = database.execute(query).fetchone()
    if version not in _VERSIONS:
        raise ValueError(f"format {version} of Crush is not known: nothing was read")
    return HOST


def session_ids(path: str) -> list[str]:
    """Return all sessions with a message, the oldest first; raises as `opened`."""
    with opened(path) as database:
        query = "SELECT id FROM sessions WHERE message_count > 0 ORDER BY created_at, id"
        rows = database.execute(query).fetchall()
    return [text(name) for (name,) in rows if text(name)]


def subagent_ids(path: str, session_id: str) -> list[str]:
    """Return the subagents of a session and theirs; raises as `opened`."""
    with opened(path) as database:
        rows = database.execute(_CHILDREN, {"id": session_id}).fetchall()
    return sorted(text(name) for (name,) in rows)


def size_and_change(path: str, session_id: str) -> tuple[int, int] | None:
    """Return how many messages a session has, and when it changed last, milliseconds."""
    with opened(path) as database:
        query = "SELECT updated_at FROM sessions WHERE id = ?"
        found = database.execute(query, (session_id,)).fetchone()
        if found is None:
            return None
        query = "SELECT count(*), max(updated_at) FROM messages WHERE session_id = ?"
        count, changed = database.execute(query, (session_id,)).fetchone()
    return count, int(max(seconds(found[0]) or 0, seconds(changed) or 0) * 1000)


def session_lines(path: str, session_id: str) -> Iterator[bytes]:
    """Yield a session as lines: itself, and its messages; its count before the reply it is of.

    Raises:
        OSError, ValueError: As `opened`, with the first line.
    """
    with opened(path) as database:
        columns = column_names(database, "sessions")
        summary = "summary_message_id" if "summary_message_id" in columns else "NULL"
        # A session's cost has that of its subagents.
        query = f"""
            SELECT created_at, prompt_tokens, completion_tokens, {summary}, cost - (
                SELECT coalesce(sum(cost), 0) FROM sessions s WHERE s.parent_session_id = :id
            ) FROM sessions WHERE id = :id
        """
        found = database.execute(query, {"id": session_id}).fetchone()
        if found is None:
            return
        created, prompt, completion, summary_id, cost = found
        (root,) = database.execute(_ROOT, {"id": session_id}).fetchone()
        folder = os.path.dirname(os.path.abspath(path))
        is_usual = os.path.basename(folder) == _FOLDER
        data = {
            "id": session_id,
            "root": text(root),
            "directory": os.path.dirname(folder) if is_usual else None,
            "created": seconds(created),
        }
        yield _line("session", data)
        columns = column_names(database, "messages")
        is_summary = "is_summary_message" if "is_summary_message" in columns else "0"
        query = f"""
            SELECT id, role, parts, model, created_at, {is_summary} OR id = :summary
            FROM messages WHERE session_id = :id ORDER BY created_at, rowid
        """
        values = {"id": session_id, "summary": text(summary_id)}
        rows = database.execute(query, values).fetchall()
        replies = [name for name, role, *_, is_one in rows if role == b"assistant" and not is_one]
        for name, role, parts, model, at, is_one in rows:
            if replies and name == replies[-1]:
                counts = {"prompt": prompt, "completion": completion, "cost": cost}
                yield _line("usage", {"at": seconds(at), "model": text(model) or None, **counts})
            said = {"id": text(name), "role": text(role), "at": seconds(at)}
            yield _line("message", {**said, "is_summary": bool(is_one), "parts": _decoded(parts)})


def _line(kind: str, data: dict[str, Any]) -> bytes:
    return compact_json.dumps({"crush": kind, "data": data}).encode() + b"\n"


def _decoded(value: object) -> object:
    try:
        return compact_json.loads(value) if isinstance(value, bytes) else None
    except ValueError:
        return None
