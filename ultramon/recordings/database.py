"""A SQLite file of the recordings: private, checked when it is opened, made where it is missing."""

from __future__ import annotations

import os
import sqlite3

from ultramon.system.files import delete_quietly, make_private_directory, open_private

_BUSY_SECONDS = 5.0


def open_database(
    path: str | None, version: int, schema: str, *, replaces: bool
) -> sqlite3.Connection:
    """Open a file, or make it with its directory.

    Args:
        path: The file; None = in memory.
        version: Of the schema.
        schema: Its statements.
        replaces: Whether a damaged file, or one of another version, is made anew. Else it is left
            as it is.

    Raises:
        sqlite3.Error: The file cannot be used.
        OSError: It cannot be made.
        StateError: It is not safe to use.
    """
    if path is None:
        return _open(":memory:", version, schema, replaces)
    make_private_directory(os.path.dirname(path))
    # Made before SQLite would make it, for this user alone.
    os.close(open_private(path))
    try:
        return _open(path, version, schema, replaces)
    except sqlite3.DatabaseError as error:
        # A file that is locked or out of reach is not damaged, and a new one would help nothing.
        if not replaces or isinstance(error, sqlite3.OperationalError):
            raise
    # No database, or a torn one. Another process that has it open writes to nowhere.
    for suffix in ("", "-journal"):
        delete_quietly(path + suffix)
    os.close(open_private(path))
    return _open(path, version, schema, replaces)


def _open(path: str, version: int, schema: str, replaces: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS)
    try:
        _prepare(connection, version, schema, replaces)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, version: int, schema: str, replaces: bool) -> None:
    found = _version_of(connection)
    if found == version:
        if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("the file is damaged")
        return
    if found > version and not replaces:
        raise sqlite3.DatabaseError(f"made by a newer version of ultramon (format {found})")
    with connection:
        connection.execute("BEGIN EXCLUSIVE")
        if _version_of(connection) == version:
            return  # another process was faster
        if replaces:
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            for (name,) in names.fetchall():
                connection.execute(f"DROP TABLE {name}")
        for statement in schema.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {version}")


def _version_of(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version
