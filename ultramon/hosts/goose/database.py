"""The database of Goose: sessions, messages and, since schema 15, what each request cost.

Loaded late. Every query goes through an index and is bounded by one session.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ultramon.hosts.transcripts.database import (
    MOST_REMEMBERED,
    column_names,
    opened,
    root_query,
    stamps_of,
    table_names,
    text,
)
from ultramon.hosts.transcripts.database import seconds as seconds_of
from ultramon.system import compact_json
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = "goose"
_LEDGER = "usage_ledger"
_TABLES = {"schema_version", "sessions", "messages"}
_VERSIONS = range(1, 18)
_COUNTS = ("input_tokens", "output_tokens", "total_tokens", "cache_read_tokens",
           "cache_write_tokens")  # fmt: skip
_SUMS = tuple(f"accumulated_{name}" for name in _COUNTS)
_PARENT = "parent_session_id"
_CHILDREN = f"""
    WITH RECURSIVE down(id, depth) AS (
        SELECT id, 1 FROM sessions WHERE {_PARENT} = :id
        UNION ALL SELECT s.id, depth + 1 FROM sessions s JOIN down ON s.{_PARENT} = down.id
        WHERE depth < 16
    ) SELECT id FROM down
"""
_ROOT = root_query(_PARENT)
_AT = "iif(created_timestamp > 10000000000, created_timestamp / 1000.0, created_timestamp)"
# Of one second: a compaction, a prompt, what a request cost, its reply.
_LINES = f"""
    SELECT {_AT} AS at, role = 'assistant', id, 'message' AS kind, role AS label,
        content_json AS data, metadata_json AS more FROM messages WHERE session_id = :id
"""
_COSTS = f"""
    UNION ALL SELECT {_AT} AS at, iif(is_compaction, -1, 0.5), id, 'usage', model, json_array(
        input_tokens, output_tokens, total_tokens, cache_read_tokens, cache_write_tokens
    ), json_array(cost, cost_source, is_compaction) FROM {_LEDGER} WHERE session_id = :id
"""


def host_of(path: str) -> str | None:
    """Return `HOST` where a file is a database of Goose.

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
        (version,) = database.execute("SELECT max(version) FROM schema_version").fetchone()
        columns = column_names(database, "sessions")
    if "working_dir" not in columns or "id" not in columns:
        return None
    if version not in _VERSIONS:
        raise ValueError(f"format {version} of Goose is not known: nothing was read")
    return HOST


def session_ids(path: str) -> list[str]:
    """Return all sessions, the oldest first; raises as `opened`."""
    with opened(path) as database:
        rows = database.execute("SELECT id FROM sessions ORDER BY created_at, id").fetchall()
    return [text(name) for (name,) in rows if text(name)]


def subagent_ids(path: str, session_id: str) -> list[str]:
    """Return the subagents of a session and theirs; none where the schema has no parents."""
    with opened(path) as database:
        if _PARENT not in column_names(database, "sessions"):
            return []
        rows = database.execute(_CHILDREN, {"id": session_id}).fetchall()
    return sorted(text(name) for (name,) in rows)


def size_and_change(path: str, session_id: str) -> tuple[int, int] | None:
    """Return how many messages and costs a session has, and when it changed last."""
    with opened(path) as database:
        query = "SELECT updated_at FROM sessions WHERE id = ?"
        found = database.execute(query, (session_id,)).fetchone()
        if found is None:
            return None
        query = "SELECT count(*), max(created_timestamp) FROM {} WHERE session_id = ?"
        tables = ["messages", *([_LEDGER] if _LEDGER in table_names(path) else ())]
        rows = [database.execute(query.format(one), (session_id,)).fetchone() for one in tables]
    changed = [_time(found[0]), *(seconds_of(at) for _, at in rows)]
    latest = max((at for at in changed if at is not None), default=0.0)
    return sum(count for count, _ in rows), int(latest * 1000)


def session_lines(path: str, session_id: str) -> Iterator[bytes]:
    """Yield a session as lines: itself, then its messages and costs in their order.

    Raises:
        OSError, ValueError: As `opened`, with the first line.
    """
    with opened(path) as database:
        columns = column_names(database, "sessions")
        wanted = ["working_dir", "created_at", "updated_at", "model_config_json", *_COUNTS, *_SUMS]
        wanted.append("accumulated_cost")
        chosen = ", ".join(one if one in columns else f"NULL AS {one}" for one in wanted)
        row = database.execute(f"SELECT {chosen} FROM sessions WHERE id = ?", (session_id,))
        found = row.fetchone()
        if found is None:
            return
        names = dict(zip(wanted, found, strict=True))
        root = session_id
        if _PARENT in columns:
            (name,) = database.execute(_ROOT, {"id": session_id}).fetchone()
            root = text(name)
        has_costs = False
        if _LEDGER in table_names(path):
            query = f"SELECT 1 FROM {_LEDGER} WHERE session_id = ? LIMIT 1"
            has_costs = database.execute(query, (session_id,)).fetchone() is not None
        compacted = None
        if has_costs:
            query = f"SELECT max(created_timestamp) FROM {_LEDGER} WHERE session_id = ? "
            query += "AND is_compaction"
            (compacted,) = database.execute(query, (session_id,)).fetchone()
        data = {
            "id": session_id,
            "root": root,
            "directory": text(names["working_dir"]),
            "created": _time(names["created_at"]),
            "compacted": seconds_of(compacted),
            "model": _decoded(names["model_config_json"]),
        }
        yield _line("session", data)
        query = _LINES
        if "metadata_json" not in column_names(database, "messages"):
            query = query.replace("metadata_json", "NULL")
        query += (_COSTS if has_costs else "") + " ORDER BY 1, 2, 3"
        for at, _, _, *row in database.execute(query, {"id": session_id}):
            yield _entry(seconds_of(at), *row)
        if not has_costs:
            sums = {name: names[name] for name in (*_COUNTS, *_SUMS, "accumulated_cost")}
            yield _line("sums", {"at": _time(names["updated_at"]), **sums})


def _entry(at: float | None, kind: bytes, label: object, data: object, more: object) -> bytes:
    """Return a row of `_LINES` or `_COSTS` as a line."""
    if kind == b"usage":
        named = {"model": text(label) or None, "counts": _decoded(data), "cost": _decoded(more)}
    else:
        named = {"role": text(label), "content": _decoded(data), "metadata": _decoded(more)}
    return _line(kind.decode(), {"at": at, **named})


def _line(kind: str, data: dict[str, Any]) -> bytes:
    return compact_json.dumps({"goose": kind, "data": data}).encode() + b"\n"


def _time(value: object) -> float | None:
    """Return a time that SQLite wrote as text, in UTC."""
    written = text(value)
    return seconds_of(value) if not written else parse_time(written.replace(" ", "T") + "Z")


def _decoded(value: object) -> object:
    try:
        return compact_json.loads(value) if isinstance(value, bytes) else None
    except ValueError:
        return None
