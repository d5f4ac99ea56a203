"""A host's database, read without writing to it or keeping it from being written.

Loaded late: SQLite would cost a hook 5 ms.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUSY_SECONDS = 0.2
_MAGIC = b"SQLite format 3\0"
MOST_REMEMBERED = 256
_LEAST_MILLISECONDS = 10_000_000_000
"""As Goose tells the two apart: the year 2286 in seconds."""


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """Open a database for reading; a link is what it leads to, as it is to the client.

    Raises:
        OSError: It is not there, not readable, or another program has locked it.
        ValueError: It is no regular file, no database, or one whose tables are not known.
    """
    check_regular(path)
    try:
        import sqlite3
    except ImportError as error:
        raise OSError(errno.ENOSYS, "this Python has no SQLite", path) from error
    # Without a log of writes no client has it open; SQLite would make an empty one, and leave it.
    real = os.path.realpath(path)  # a link has no log beside it
    how = "mode=ro" if os.path.exists(f"{real}-wal") else "mode=ro&immutable=1"
    try:
        uri = f"file:{quote(real)}?{how}"
        connection = sqlite3.connect(uri, timeout=_BUSY_SECONDS, isolation_level=None, uri=True)
        with closing(connection):
            connection.text_factory = bytes  # what is no UTF-8 must not hide the rest
            yield connection
    except sqlite3.OperationalError as error:
        if str(error).startswith("no such"):
            raise ValueError(
                f"{path}: of a version that ultramon does not know: {error}"
            ) from error
        raise OSError(errno.EIO, str(error), path) from error
    except sqlite3.DatabaseError as error:
        raise ValueError(f"{path}: {error}") from error


def check_regular(path: str) -> None:
    """Refuse what would block: a pipe waits for a writer."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{path} is not a regular file")


def stamps_of(path: str) -> tuple[object, ...]:
    """Return what changes with a database: of the file and of its log of writes.

    Each host with databases asks for each of its transcripts whose file it is: what the answer is
    depends on the file alone, and is remembered with these.
    """
    stamps = []
    for file in (path, f"{os.path.realpath(path)}-wal"):
        with suppress(FileNotFoundError, NotADirectoryError):
            found = os.stat(file)
            stamps.append((found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(stamps)


def table_names(path: str) -> frozenset[str]:
    """Return the tables of a database; empty where a file is none, or not there.

    Raises:
        OSError: As `opened`, but for a file that is not there.
        ValueError: It is a database, and damaged.
    """
    return _table_names(path, stamps_of(path))


@lru_cache(MOST_REMEMBERED)
def _table_names(path: str, stamps: tuple[object, ...]) -> frozenset[str]:
    try:
        check_regular(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return frozenset()
    with open(path, "rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            return frozenset()
    with opened(path) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return frozenset(text(name) for (name,) in names)


def column_names(database: Any, table: str) -> set[str]:
    """Return the columns of a table; empty where there is none of that name."""
    rows = database.execute("SELECT name FROM pragma_table_info(?)", (table,))
    return {text(name) for (name,) in rows}


def root_query(parent: str) -> str:
    """Return the query for the session that launched all above one, ``:id`` itself where none did.

    Args:
        parent: Column of the table ``sessions``.
    """
    return f"""
        WITH RECURSIVE up(id, parent, depth) AS (
            SELECT id, {parent}, 0 FROM sessions WHERE id = :id
            UNION ALL SELECT s.id, s.{parent}, depth + 1
            FROM sessions s JOIN up ON s.id = up.parent WHERE depth < 16
        ) SELECT id FROM up ORDER BY depth DESC LIMIT 1
    """


def text(value: object) -> str:
    """Return a text of a database, which a damaged file may keep as anything."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def whole_number(value: object) -> int | None:
    """Return a number of a database; None = it is none, as SQLite keeps anything in a column."""
    return value if isinstance(value, int) else None


def seconds(value: object) -> float | None:
    """Return a time of a database, in seconds or milliseconds since 1970; None = it is none."""
    if not isinstance(value, int | float) or not 0 < value < 1 << 53:
        return None
    return value / 1000 if value > _LEAST_MILLISECONDS else float(value)
