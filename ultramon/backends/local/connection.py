"""The SQLite connection of a journal. Imported only where a journal is opened."""

from __future__ import annotations

import sqlite3


class JournalConnection(sqlite3.Connection):
    """A connection that knows what its statements would otherwise have to ask SQLite for.

    Attributes:
        directory: The state directory, where the flags of recipients are; empty = no hook reads
            this journal, and nobody needs a flag.
        busy_milliseconds: What its ``busy_timeout`` was set to last; None = never.
    """

    directory: str = ""
    busy_milliseconds: int | None = None
