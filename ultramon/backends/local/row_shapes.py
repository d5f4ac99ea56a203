"""What a readable row of each table of the journal is, for its check and its repair.

Loaded where a journal is checked or damaged, never on a hook's usual path.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.backends.local.connection import text_or_bytes
from ultramon.backends.local.event_rows import read_event
from ultramon.backends.local.schema import migrate
from ultramon.notices.message_rules import DELIVERIES
from ultramon.system import compact_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_SHOWN = 5
_KINDS: dict[str, tuple[type, ...]] = {"TEXT": (str,), "INTEGER": (int,), "REAL": (int, float)}
_ROWID_TABLES = {"events": "id", "messages": "id", "consumers": "rowid"}


def is_object(text: str) -> bool:
    """Return whether a text is a JSON object."""
    try:
        return isinstance(compact_json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


_MEANINGS: dict[tuple[str, str], tuple[Callable[[Any], bool], str]] = {
    ("events", "payload"): (lambda text: read_event(text) is not None, "is no event"),
    ("consumers", "memory"): (is_object, "is no JSON object"),
    ("messages", "facts"): (is_object, "is no JSON object"),
    ("messages", "priority"): (range(len(DELIVERIES)).__contains__, "is no delivery mode"),
    ("messages", "state"): (range(5).__contains__, "is no state of a message"),
    ("registrations", "ladder"): (is_object, "is no JSON object"),
    ("handoff_claims", "status"): (
        ("pending", "confirmed", "released").__contains__,
        "is no status of a claim",
    ),
}


class Shape(NamedTuple):
    """A table and what its columns may hold."""

    table: str
    columns: tuple[str, ...]
    kinds: tuple[tuple[type, ...], ...]
    optional: tuple[bool, ...]
    order: tuple[str, ...]
    """The columns of its primary key, in the order of which its rows lie."""

    @property
    def rowid(self) -> str | None:
        """The column of the row's number; None in a table without one."""
        return _ROWID_TABLES.get(self.table)

    def problem(self, row: tuple[Any, ...]) -> str | None:
        """Return what is wrong with the values of a row, None where nothing is."""
        for column, kinds, optional, value in zip(
            self.columns, self.kinds, self.optional, row, strict=True
        ):
            if value is None and optional:
                continue
            if isinstance(value, bytes):
                return f"{column} is no UTF-8 text"
            if not isinstance(value, kinds):
                return f"{column} is of type {type(value).__name__}"
            is_right, words = _MEANINGS.get((self.table, column), (None, ""))
            if is_right is not None and not is_right(value):
                return f"{column} {words}"
        return None


def new_tables() -> list[Shape]:
    """Return the shape of every table of the journal, of the newest version."""
    # Read off the migrations themselves: a second list of the columns could differ.
    with sqlite3.connect(":memory:", isolation_level=None) as fresh:
        migrate(fresh)
        names = fresh.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )
        shapes = []
        for (table,) in names.fetchall():
            columns = fresh.execute(f"PRAGMA table_info({table})").fetchall()
            keys = sorted((one[5], one[1]) for one in columns if one[5])
            shapes.append(
                Shape(
                    table,
                    tuple(one[1] for one in columns),
                    tuple(_KINDS[one[2]] for one in columns),
                    tuple(not (one[3] or one[5]) for one in columns),
                    tuple(name for _, name in keys),
                )
            )
    fresh.close()
    return shapes


def stored_tables(connection: sqlite3.Connection) -> Iterator[Shape]:
    """Yield the shape of every table that a journal has, with the columns of its version.

    Raises:
        sqlite3.DatabaseError: A table has lost a column of its key.
    """
    for shape in new_tables():
        known = {row[1] for row in connection.execute(f"PRAGMA table_info({shape.table})")}
        if known and not known.issuperset(shape.order):
            # No version had another key: its rows would be stored without one.
            raise sqlite3.DatabaseError(f"the schema of {shape.table} is damaged")
        if known:
            kept = [place for place, name in enumerate(shape.columns) if name in known]
            yield shape._replace(
                columns=tuple(shape.columns[place] for place in kept),
                kinds=tuple(shape.kinds[place] for place in kept),
                optional=tuple(shape.optional[place] for place in kept),
            )


def bad_rows(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield a description of each row that cannot be read as what it is.

    Raises:
        sqlite3.DatabaseError: A page is damaged.
    """
    connection.text_factory = text_or_bytes
    for shape in stored_tables(connection):
        names = ", ".join(shape.columns)
        # Not by an index, which may be the damaged part.
        for row in connection.execute(f"SELECT {names} FROM {shape.table} NOT INDEXED"):
            if (problem := shape.problem(row)) is not None:
                yield describe(shape, row, problem)


def describe(shape: Shape, row: tuple[Any, ...], problem: str) -> str:
    """Return which row it is and what is wrong with it."""
    values = dict(zip(shape.columns, row, strict=True))
    which = ", ".join(repr(values[name])[:80] for name in shape.order)
    return f"{shape.table} {which}: {problem}"
