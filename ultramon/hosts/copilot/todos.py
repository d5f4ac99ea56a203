"""The list that agents keep by SQL: a table in the session's database, which subagents share.

Loaded by the calls that name it alone.
"""

from __future__ import annotations

import os

from ultramon.hosts.transcripts.database import opened
from ultramon.state.plan import DONE, IN_PROGRESS, PENDING
from ultramon.state.stored_plan import LISTED, ReportedTask, TaskReport

DATABASE_NAME = "session.db"
_STATUSES = {"in_progress": IN_PROGRESS, "done": DONE}
"""Those that are no other than pending; a blocked one is pending too."""
_MOST = 10_000
_QUERY = "SELECT id, title, status FROM todos ORDER BY rowid LIMIT ?"


def read_todos(event_file: str) -> TaskReport | None:
    """Return the list as it is now; None where it cannot be read."""
    path = os.path.join(os.path.dirname(event_file), DATABASE_NAME)
    try:
        with opened(path) as database:
            rows = database.execute(_QUERY, (_MOST,)).fetchall()
    except (OSError, ValueError):
        return None
    tasks = [
        ReportedTask(_text(name), _text(title), _STATUSES.get(_text(status), PENDING))
        for name, title, status in rows
    ]
    return TaskReport(LISTED, tasks)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
