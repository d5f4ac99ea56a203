"""The database of opencode, or of a fork of it, as recorded, made anew from its rows."""

from __future__ import annotations

import sqlite3

from helpers import DATA

RECORDED = DATA / "opencode"


def plant(path, name, *, keep_open=False, recorded=RECORDED):
    """Make the database of a recorded run; return a connection that has it open, or None."""
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path)
    if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        database.executescript((recorded / "schema.sql").read_text())
    database.execute("PRAGMA foreign_keys = OFF")
    rows = (recorded / f"{name}.sql").read_text().replace("INSERT INTO", "INSERT OR IGNORE INTO")
    database.executescript(rows)
    if keep_open:
        return database
    database.close()
    return None


def session_id(path, title="", *, is_subagent=False):
    """Return the oldest session of a database, or that of a subagent by its title."""
    with sqlite3.connect(path) as database:
        query = "SELECT id FROM session WHERE (parent_id IS NOT NULL) = ? AND title LIKE ?"
        query += " ORDER BY time_created"
        (found, *_) = database.execute(query, (is_subagent, f"{title}%")).fetchone()
    database.close()
    return found
