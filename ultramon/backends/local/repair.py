"""The repair of a damaged journal: what can be read is stored anew, and the damaged one is kept.

Row numbers, keys and cursors stay, so that consumers continue where they were. Writers wait: see
`being_repaired`.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections import deque
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from ultramon.backends.local.connection import text_or_bytes
from ultramon.backends.local.row_shapes import MAX_SHOWN, describe, stored_tables
from ultramon.backends.local.schema import migrate
from ultramon.errors import StateWriteError
from ultramon.system.files import create_private, delete_quietly, open_private, refused
from ultramon.system.ids import random_hex
from ultramon.system.locks import Lock, LockedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.backends.local.row_shapes import Shape

    Row = tuple[Any, ...]

_MAX_FAILED_READS = 20_000
"""The limit for one table; around each damaged page a binary search takes about 120 reads."""
_FIRST_ROW, _LAST_ROW = -(1 << 63), (1 << 63) - 1
_LOST_NUMBERS = 1_000_000
"""Messages that may have been numbered since the last one that can be read."""
_MAX_NUMBER = 1 << 53
_PAGE_BYTES = 4096
_SIDE_FILES = ("-wal", "-shm")
_DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What reading a damaged journal raises: SQLite quotes the bytes of a damaged schema, which Python
decodes."""


class Repair(NamedTuple):
    """What a repair has done."""

    kept_as: str
    """Where the damaged journal is now."""
    rows: dict[str, int]
    """Rows stored anew, by table."""
    bad: int
    """Rows that were found and could not be read as what they are."""
    shown: list[str]
    """The first of these, described."""
    damaged: list[str]
    """Tables with pages that cannot be read: how many rows were there is not known."""

    def words(self) -> str:
        """Return what was kept and what was lost, in a line."""
        kept = ", ".join(f"{count:,} {table}" for table, count in self.rows.items() if count)
        text = f"set aside as {self.kept_as}; kept {kept or 'nothing'}"
        if self.bad:
            text += f"; {self.bad:,} rows could not be read: {'; '.join(self.shown)}"
        if self.damaged:
            text += f"; rows on damaged pages are lost in {', '.join(self.damaged)}"
        return text


def being_repaired(mark: str) -> bool:
    """Return whether a process repairs a journal; what a killed one left behind is deleted.

    Args:
        mark: The file that is locked during a repair.
    """
    try:
        with Lock(mark, open_private, 0.0):
            delete_quietly(mark)
    except LockedError:
        return True
    return False


def repair(path: str, mark: str, timeout_seconds: float) -> Repair:
    """Store what can be read of a journal in its place.

    Call it without an open connection of this process to the journal.

    Args:
        path: The journal, a regular file.
        mark: The file to lock meanwhile.
        timeout_seconds: How long to wait for a writer, and for another repair.

    Raises:
        StateWriteError: It is locked beyond the timeout, or the system refused; the journal is as
            it was.
    """
    new = f"{path}.{random_hex(6)}.tmp"
    try:
        with Lock(mark, open_private, timeout_seconds):
            try:
                return _repair(path, new, timeout_seconds)
            finally:
                for name in (new, f"{new}-graft", mark):
                    delete_quietly(name)
    except sqlite3.Error as error:
        raise StateWriteError(path, f"cannot be repaired: {error}") from error
    except OSError as error:
        raise refused(path, "cannot be repaired", error) from error


def _repair(path: str, new: str, timeout_seconds: float) -> Repair:
    kept = f"{path}.corrupt-{random_hex(4)}"
    for name in (new, kept):
        os.close(create_private(name))
    with closing(_connect(path, timeout_seconds)) as old:
        is_database = _copy_pages(old, kept)
    if not is_database:
        _move(path, kept)
    done = _salvage(kept, new)
    if is_database:
        try:
            _store(new, path, timeout_seconds)
        except _DAMAGE as error:
            if _is_busy(error):
                delete_quietly(kept)
                raise
            _move(path, kept)  # e.g. pages of another size: no connection can use it
            is_database = False
    if not is_database:
        os.replace(new, path)
    return done


def _move(path: str, kept: str) -> None:
    """Move a journal that no connection can read or write, and what lies beside it."""
    os.replace(path, kept)
    for suffix in _SIDE_FILES:
        with suppress(FileNotFoundError):
            os.replace(path + suffix, kept + suffix)


def _is_busy(error: Exception) -> bool:
    return any(word in str(error) for word in ("locked", "full", "disk I/O"))


def _connect(path: str, timeout_seconds: float = 0.0) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=timeout_seconds, isolation_level=None)
    connection.text_factory = text_or_bytes
    return connection


def _copy_pages(old: sqlite3.Connection, kept: str) -> bool:
    """Copy a journal page by page, damaged ones too; False where SQLite finds none in it."""
    try:
        # Writers that began before the mark was there have ended then.
        old.execute("BEGIN IMMEDIATE")
        old.execute("ROLLBACK")
        with closing(_connect(kept)) as copy:
            old.backup(copy)
    except _DAMAGE as error:
        if _is_busy(error):
            delete_quietly(kept)
            raise
        return False
    return True


def _store(new: str, path: str, timeout_seconds: float) -> None:
    """Replace the content of a journal in one transaction; its connections stay valid."""
    deadline = time.monotonic() + timeout_seconds

    def check(_status: int, _left: int, _pages: int) -> None:
        if time.monotonic() > deadline:
            raise sqlite3.OperationalError("database is locked")

    with closing(_connect(new)) as source, closing(_connect(path, timeout_seconds)) as place:
        place.execute("PRAGMA synchronous = FULL")
        source.backup(place, progress=check, sleep=0.01)


def _salvage(kept: str, new: str) -> Repair:
    with closing(_connect(new)) as target:
        migrate(target)
        graft, done = f"{new}-graft", None
        try:
            with closing(_open_kept(kept)) as source:
                done = _copy_rows(source, target, kept)
        except _DAMAGE:
            pass  # its schema cannot be read
        if done is not None and (any(done.rows.values()) or not done.damaged):
            return done
        try:
            _graft_schema(new, kept, graft)
            with closing(_open_kept(graft)) as source:
                return _copy_rows(source, target, kept)
        except _DAMAGE:
            return done or Repair(kept, {}, 0, [], ["all tables"])


def _open_kept(path: str) -> sqlite3.Connection:
    """Open a journal without changing it, unless a part of it is still in its log."""
    try:
        is_whole = os.path.getsize(path + "-wal") == 0
    except FileNotFoundError:
        is_whole = True
    options = "?immutable=1" if is_whole else ""
    source = sqlite3.connect(f"file:{quote(path)}{options}", uri=True, isolation_level=None)
    source.text_factory = text_or_bytes
    return source


def _graft_schema(new: str, kept: str, graft: str) -> None:
    """Give a copy of a journal whose schema cannot be read the pages of a new one's schema.

    They say where the tables begin: in a journal that was made by this version, at the same places.
    What lies elsewhere has other columns, and is refused row by row.
    """
    with closing(_connect(new)) as fresh:
        roots = {page for (page,) in fresh.execute("SELECT rootpage FROM sqlite_master")}
    with open(new, "rb") as file:
        pages = file.read()
    with open(kept, "rb") as file:
        data = bytearray(file.read())
    for number in range(1, len(pages) // _PAGE_BYTES + 1):
        if number not in roots:
            place = slice((number - 1) * _PAGE_BYTES, number * _PAGE_BYTES)
            data[place] = pages[place]
    # The header says how many pages the file has, and which of them are free.
    data[28:32] = (len(data) // _PAGE_BYTES).to_bytes(4, "big")
    data[32:40] = bytes(8)  # no free pages
    with open(create_private(graft), "wb") as file:
        file.write(data)


def _copy_rows(source: sqlite3.Connection, target: sqlite3.Connection, kept: str) -> Repair:
    rows: dict[str, int] = {}
    shown: list[str] = []
    damaged: list[str] = []
    bad = 0
    source.execute("SELECT count(*) FROM sqlite_master").fetchone()
    target.execute("BEGIN")
    try:
        for shape in stored_tables(source):
            reader = _Reader(source, shape)
            names, places = ", ".join(shape.columns), ", ".join("?" * len(shape.columns))
            insert = f"INSERT OR IGNORE INTO {shape.table} ({names}) VALUES ({places})"
            rows[shape.table] = 0
            for row in reader.rows():
                problem = shape.problem(row)
                if problem is not None and problem.startswith("facts"):
                    # The text of a message can be read without them.
                    mended = dict(zip(shape.columns, row, strict=True)) | {"facts": "{}"}
                    row = tuple(mended.values())  # noqa: PLW2901
                    problem = shape.problem(row)
                if problem is None:
                    rows[shape.table] += target.execute(insert, row).rowcount
                    continue
                bad += 1
                if len(shown) < MAX_SHOWN:
                    shown.append(describe(shape, row, problem))
            if reader.is_damaged:
                damaged.append(shape.table)
        _continue_numbers(source, target, is_damaged=bool(damaged))
        target.execute("COMMIT")
    finally:
        if target.in_transaction:
            target.execute("ROLLBACK")
    return Repair(kept, rows, bad, shown, damaged)


def _continue_numbers(
    source: sqlite3.Connection, target: sqlite3.Connection, *, is_damaged: bool
) -> None:
    """Have new messages numbered behind all that ever were: a number is never used twice.

    Events are numbered from the time at which their journal was made.
    """
    (last,) = target.execute("SELECT ifnull(max(id), 0) FROM messages").fetchone()
    seq = None
    with suppress(*_DAMAGE):
        [(seq,)] = source.execute(
            "SELECT max(seq) FROM sqlite_sequence"
            " WHERE name = 'messages' AND typeof(seq) = 'integer'"
        )
    if seq is None and (last or is_damaged):
        seq = last + _LOST_NUMBERS
    if seq is not None:
        target.execute("DELETE FROM sqlite_sequence WHERE name = 'messages'")
        last = min(max(last, seq), _MAX_NUMBER)
        target.execute("INSERT INTO sqlite_sequence VALUES ('messages', ?)", (last,))


class _Reader:
    """Reads the rows of a table around the pages that cannot be read."""

    def __init__(self, source: sqlite3.Connection, shape: Shape) -> None:
        self._source = source
        self._table = shape.table
        self._names = ", ".join(shape.columns)
        self._order = shape.order
        self._rowid = shape.rowid
        self.is_damaged = False

    def rows(self) -> Iterator[Row]:
        """Yield each row that can be read."""
        return self._by_number() if self._rowid else self._from_both_ends()

    def _by_number(self) -> Iterator[Row]:
        """Read ranges of row numbers from both ends, and halve what is left between them."""
        ranges = deque([(_FIRST_ROW, _LAST_ROW)])
        failed = 0
        while ranges and failed < _MAX_FAILED_READS:
            first, last = ranges.popleft()
            for step in (1, -1):
                number = None
                try:
                    for number, *row in self._range(first, last, step):
                        yield tuple(row)
                        if step > 0:
                            first = number + 1
                        else:
                            last = number - 1
                except _DAMAGE:
                    self.is_damaged = True
                    failed += 1
                else:
                    break
            else:
                if first < last:
                    middle = (first + last) // 2
                    ranges += ((first, middle), (middle + 1, last))

    def _range(self, first: int, last: int, step: int) -> Iterator[Row]:
        order = "" if step > 0 else " DESC"
        seen: int | None = None
        for row in self._source.execute(
            f"SELECT {self._rowid}, {self._names} FROM {self._table} NOT INDEXED"
            f" WHERE {self._rowid} BETWEEN ? AND ? ORDER BY {self._rowid}{order}",
            (first, last),
        ):
            if not first <= row[0] <= last or (seen is not None and (row[0] - seen) * step <= 0):
                raise sqlite3.DatabaseError("rows out of order")  # a page that leads back
            seen = row[0]
            yield row

    def _from_both_ends(self) -> Iterator[Row]:
        for order in ("", " DESC"):
            keys = ", ".join(f"{name}{order}" for name in self._order)
            seen: set[Row] = set()
            try:
                for row in self._source.execute(
                    f"SELECT {self._names} FROM {self._table} NOT INDEXED ORDER BY {keys}"
                ):
                    if row in seen:
                        raise sqlite3.DatabaseError("rows out of order")
                    seen.add(row)
                    yield row
            except _DAMAGE:
                self.is_damaged = True
            else:
                return
