"""What `ultramon backend check` and `ultramon doctor` say about a journal; every row is read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from ultramon.backends.local.journal import SECOND_NAME, Journal
from ultramon.backends.local.row_shapes import MAX_SHOWN, bad_rows
from ultramon.backends.local.schema import SCHEMA_VERSION
from ultramon.errors import StateCorruptError, StateError
from ultramon.system.findings import OK, PROBLEM, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator


def examine_journal(directory: str) -> Iterator[Finding]:
    """Check the journal of a state directory; nothing is created or migrated."""
    with closing(Journal(directory)) as journal:
        yield _judge(journal)
        if journal.has_second_name():
            cure = "docs/operations.md says how to back up; delete the copy when it is not needed"
            yield Finding("backup", WARNING, f"{journal.path} {SECOND_NAME}", cure)


def _judge(journal: Journal) -> Finding:
    def check(connection: sqlite3.Connection) -> tuple[int, str, list[str]]:
        version = journal.version(connection)
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        return version, found, [] if found != "ok" else list(bad_rows(connection))

    try:
        checked = journal.read(0, check)
    except StateCorruptError as error:
        return Finding("journal", PROBLEM, f"{error.path} is damaged: {error.reason}", journal.cure)
    except StateError as error:
        return Finding("journal", PROBLEM, str(error))
    if checked is None:
        return Finding("journal", OK, "is made with the first event")
    version, found, bad = checked
    if found != "ok":
        message = f"{journal.path} is damaged: {found}"
        return Finding("journal", PROBLEM, message, journal.cure)
    if bad:
        message = f"{journal.path}: {len(bad):,} rows cannot be read and are passed over: "
        shown = "; ".join(bad[:MAX_SHOWN]) + ("; …" if bad[MAX_SHOWN:] else "")
        return Finding("journal", WARNING, message + shown, journal.cure)
    if version < SCHEMA_VERSION:
        message = f"version {version}; the next writer brings it to {SCHEMA_VERSION}"
        return Finding("journal", OK, message)
    return Finding("journal", OK, f"version {version}, sound")
