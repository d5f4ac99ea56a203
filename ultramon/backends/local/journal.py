"""The journal: one SQLite file of events, claims and consumers beside the state files.

Events are appended once per key and read in commit order. Registrations and the message queue are
further tables of the same file: `ultramon.backends.local.queue` and `registry`. All tables are
defined in `ultramon.backends.local.schema`.
"""

from __future__ import annotations

import os
import time
from _thread import RLock  # as `threading.RLock`, without what a hook would pay for that module

from ultramon.backends.local.event_rows import insert_event, position_of, read_event
from ultramon.backends.local.level_marks import is_due, write_mark
from ultramon.backends.local.message_rows import forget
from ultramon.backends.local.route_rows import JournalRows
from ultramon.backends.local.schema import SCHEMA_VERSION, migrate
from ultramon.errors import (
    StateCorruptError,
    StateError,
    StateSchemaError,
    StateWriteError,
    UltramonError,
)
from ultramon.notices.router import route, route_noted
from ultramon.notices.texts import ENDS
from ultramon.state.event_keys import event_key
from ultramon.system.files import check_private, make_private_directory
from ultramon.system.ids import random_hex
from ultramon.system.timestamps import format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypeVar

    from ultramon.backends.base import Follow
    from ultramon.backends.local.connection import JournalConnection
    from ultramon.backends.local.level_marks import Mark
    from ultramon.backends.local.repair import Repair
    from ultramon.state.record import StateRecord

    Found = TypeVar("Found")

JOURNAL = "journal.sqlite3"
AGENT_TIMEOUT_SECONDS = 0.05
"""How long a write on an agent's or a hook's path waits for another writer."""
TOOL_TIMEOUT_SECONDS = 5.0
"""How long everything else waits, for which a person or an orchestrator waits."""
_RETRY_SECONDS = 0.002
_ERRORS_OF_VALUES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
MAX_AUTOMATIC_REPAIR_BYTES = 64 << 20
"""A larger journal is repaired by `ultramon backend repair` alone, not within a writer's call."""
SECOND_NAME = "has a second name (hard link), which changes with the store and is no backup"


def execute_with_retry(
    connection: sqlite3.Connection, statement: str, timeout_seconds: float
) -> None:
    """Execute a statement as soon as no other writer holds the lock, retrying in small steps.

    SQLite itself retries less and less often, at last every 100 ms: of eight busy writers one then
    waited more than 5 s.
    """
    import sqlite3

    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            connection.execute(statement)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def _size_and_time(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


class Journal:
    """The SQLite file under a state directory. One object serves the threads of one process.

    Args:
        directory: The state directory; it must exist before anything is written.

    Attributes:
        path: The file.
        lock: Keeps the threads of this process apart; a transaction holds it.
    """

    __slots__ = ("_connection", "_directory", "_identity", "_is_prepared", "_pid", "lock", "path")

    # A connection opened before a fork must be neither used nor closed in the child.
    _inherited: list[object] = []  # noqa: RUF012 - shared on purpose

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, JOURNAL)
        self._directory = directory
        self._connection: JournalConnection | None = None
        self._identity: tuple[int, int] | None = None
        self._is_prepared = False
        self._pid = 0
        self.lock = RLock()

    @property
    def cure(self) -> str:
        """What to do about a damaged file, for the error that names it."""
        return f"`ultramon backend repair --state-dir {self._directory}` keeps what can be read"

    def after_fork(self) -> None:
        """Replace a lock that another thread of the parent may have held."""
        self.lock = RLock()

    def make_directory(self) -> None:
        """Make the state directory where it is missing, and check it.

        Raises:
            StateDirectoryError: It is not safe to use.
        """
        make_private_directory(self._directory)

    def exists(self) -> bool:
        """Return whether anything was ever written; reading makes no journal."""
        return os.path.exists(self.path)

    def has_second_name(self) -> bool:
        """Return whether the file has a second name: see `SECOND_NAME`."""
        try:
            return os.lstat(self.path).st_nlink > 1
        except OSError:
            return False

    def change_mark(self) -> object:
        """Return a cheap value that differs once something was written, by whichever process."""
        return tuple(_size_and_time(self.path + suffix) for suffix in ("-wal", ""))

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        with self.lock:
            connection, self._connection = self._connection, None
            if connection is None:
                return
            if self._pid == os.getpid():
                connection.close()
            else:
                self._inherited.append(connection)

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # At the end of the interpreter the globals of this module may be gone.
        if self._connection is not None and self._pid == getpid():
            self._connection.close()

    def _open(self, timeout_seconds: float, *, to_write: bool) -> JournalConnection:
        from ultramon.backends.local.connection import JournalConnection, text_or_bytes

        is_own = self._pid == os.getpid()
        # Another process may have set the file aside, and a new one may be in its place.
        if self._connection is not None and not (is_own and self._identity == self._find()):
            self.close()
        if self._connection is None:
            self._create_private()
            self._identity = self._find()
            # From any thread: `lock` keeps them apart.
            self._connection = JournalConnection(
                self.path, timeout=timeout_seconds, isolation_level=None, check_same_thread=False
            )
            self._connection.text_factory = text_or_bytes
            self._connection.directory = self._directory
            self._pid = os.getpid()
            self._is_prepared = False
        # A reader must not shut out an older ultramon that still writes this journal.
        if to_write and not self._is_prepared:
            self._prepare(self._connection, timeout_seconds)
            self._is_prepared = True
        return self._connection

    def _prepare(self, connection: sqlite3.Connection, timeout_seconds: float) -> None:
        # Where two processes make the file at once, SQLite refuses one without waiting for it.
        execute_with_retry(connection, "PRAGMA journal_mode = WAL", timeout_seconds)
        # WAL + NORMAL lost acknowledged rows in every simulated power cut, FULL none in 18.
        connection.execute("PRAGMA synchronous = FULL")
        # On macOS a sync ends in the cache of the disk without it; elsewhere it changes nothing.
        connection.execute("PRAGMA fullfsync = ON")
        if self.version(connection) < SCHEMA_VERSION:
            migrate(connection)

    def _find(self) -> tuple[int, int] | None:
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return None
        check_private(found, self.path)
        return found.st_dev, found.st_ino

    def _create_private(self) -> None:
        # Never opened when it is there: closing a second descriptor drops the locks of SQLite's.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        try:
            os.close(os.open(self.path, flags, 0o600))
            os.chmod(self.path, 0o600)  # a umask may have removed bits
        except FileExistsError:
            pass

    def version(self, connection: sqlite3.Connection) -> int:
        """Return the version of the tables, 0 before there are any.

        Raises:
            StateSchemaError: A newer ultramon wrote the journal.
        """
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise StateSchemaError(
                self.path,
                f"journal version {version} was written by a newer ultramon, "
                f"this one knows {SCHEMA_VERSION}",
                "upgrade ultramon",
            )
        return version

    def acquire(self, timeout_seconds: float) -> None:
        """Keep the other threads of this process away until `lock` is released.

        Raises:
            StateWriteError: One of them holds it beyond the timeout.
        """
        if not self.lock.acquire(timeout=timeout_seconds):
            raise StateWriteError(self.path, "is locked by another thread")

    def transaction(self, timeout_seconds: float, kind: str = "IMMEDIATE") -> Transaction:
        """Return a transaction as a ``with`` block.

        Args:
            timeout_seconds: How long to wait for another writer, and for a thread of this process.
            kind: ``IMMEDIATE`` to write; ``DEFERRED`` to read, which brings no older journal up to
                date.
        """
        return Transaction(self, timeout_seconds, kind)

    def begin(self, timeout_seconds: float, kind: str) -> JournalConnection:
        """Begin a transaction, for `Transaction`, which ends it."""
        to_write = kind == "IMMEDIATE"
        connection = self._open(timeout_seconds, to_write=to_write)
        # A writer waits in `execute_with_retry`, not in SQLite.
        milliseconds = 0 if to_write else int(timeout_seconds * 1000)
        if milliseconds != connection.busy_milliseconds:
            connection.execute(f"PRAGMA busy_timeout = {milliseconds}")
            connection.busy_milliseconds = milliseconds
        if to_write:
            execute_with_retry(connection, "BEGIN IMMEDIATE", timeout_seconds)
            # After the lock is held: a repair waits for the writers that began without its mark.
            if os.path.lexists(f"{self.path}.repair"):
                self._refuse_during_repair(connection)
        else:
            connection.execute("BEGIN DEFERRED")
        return connection

    def _refuse_during_repair(self, connection: JournalConnection) -> None:
        from ultramon.backends.local.repair import being_repaired

        if being_repaired(f"{self.path}.repair"):
            connection.execute("ROLLBACK")
            raise StateWriteError(self.path, "is being repaired")

    def read(self, since_version: int, read: Callable[[JournalConnection], Found]) -> Found | None:
        """Read in a transaction, without bringing an older journal up to date.

        Args:
            since_version: The first version of the journal that has these tables.
            read: What to read.

        Returns:
            None where there is no journal, or an older one.
        """
        if not self.exists():
            return None
        with self.transaction(TOOL_TIMEOUT_SECONDS, "DEFERRED") as connection:
            return None if self.version(connection) < since_version else read(connection)

    def select(self, since_version: int, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none where there is no journal, or an older one."""
        return self.read(since_version, lambda db: db.execute(query, arguments).fetchall()) or []

    def change(
        self,
        change: Callable[[JournalConnection], Found],
        timeout_seconds: float = TOOL_TIMEOUT_SECONDS,
    ) -> Found | None:
        """Change what is stored, in a transaction; None where there is no journal."""
        if not self.exists():
            return None
        with self.transaction(timeout_seconds) as connection:
            return change(connection)

    def execute(
        self, statement: str, *arguments: object, within: float = TOOL_TIMEOUT_SECONDS
    ) -> int:
        """Return how many rows a statement changed; ``within`` seconds or not at all."""
        return self.change(lambda rows: rows.execute(statement, arguments).rowcount, within) or 0

    def set_aside(self, error: StateCorruptError) -> str:
        """Set a journal aside after an error, unless it can be read; return both as a text.

        What can be read of a damaged one is stored in the journal that takes its place.

        Raises:
            StateWriteError: The file system refused, or a writer holds the journal.
        """
        with self.lock:
            return f"{error}; {self._set_aside()}"

    def _set_aside(self) -> str:
        self.close()
        try:
            found = self._find()
        except StateCorruptError:
            return self._move_away()
        if self._is_sound():
            return "it can be read again"
        if found is not None and self._size() > MAX_AUTOMATIC_REPAIR_BYTES:
            return "it is too large to be repaired in passing"
        return self._replace()

    def _replace(self) -> str:
        """Replace a damaged file; return what was done, in words."""
        return self.repair(AGENT_TIMEOUT_SECONDS).words()

    def repair(self, timeout_seconds: float) -> Repair:
        """Store what can be read in place of what is there; the damaged file is kept.

        Raises:
            StateWriteError: It is locked, or the system refused; the journal is as it was.
            StateCorruptError: It is no file of this user.
        """
        from ultramon.backends.local.repair import repair

        self.acquire(timeout_seconds)
        try:
            self.close()
            self._find()
            return repair(self.path, f"{self.path}.repair", timeout_seconds)
        finally:
            self.lock.release()

    def _move_away(self) -> str:
        """Set aside what is no file of this user, or a file that no other one replaces.

        Returns:
            What was done, in words: another process may have done it already.
        """
        kept = f"{self.path}.corrupt-{random_hex(4)}"
        try:
            found = os.lstat(self.path)
            if self._identity not in (None, (found.st_dev, found.st_ino)):
                return "another process has set it aside"
            os.rename(self.path, kept)
            for suffix in ("-wal", "-shm"):
                try:
                    os.rename(self.path + suffix, kept + suffix)
                except FileNotFoundError:
                    continue
        except FileNotFoundError:
            return "another process has set it aside"
        except OSError as error:
            raise StateWriteError(self.path, f"cannot be set aside: {error.strerror}") from error
        return f"set aside as {kept}"

    def _size(self) -> int:
        try:
            return os.lstat(self.path).st_size
        except OSError:
            return 0

    def _is_sound(self) -> bool:
        """Return whether no damage is found: SQLite reports one failed read as "malformed"."""
        try:
            with self.transaction(0.0, "DEFERRED") as connection:
                checked = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                return bool(checked == "ok") and self.find_bad_row(connection) is None
        except StateCorruptError:
            return False
        except StateError:
            return True  # busy, or gone
        finally:
            self.close()

    def find_bad_row(self, connection: JournalConnection) -> str | None:
        """Return a row that cannot be read as what it is, described; None where there is none."""
        from ultramon.backends.local.row_shapes import bad_rows

        return next(bad_rows(connection), None)

    def append(
        self,
        events: Sequence[dict[str, Any]],
        timeout_seconds: float,
        record: StateRecord | None = None,
        *,
        known: Sequence[StateRecord] = (),
    ) -> None:
        """Store events durably, each once per key, together with the notices they lead to.

        Args:
            events: With ``agentId``, ``run``, ``generation``, ``epoch``, ``type``, ``occurredAt``.
                One whose key is there already changes nothing.
            timeout_seconds: How long to wait for another writer.
            record: The state that they led to, as its owner stores it; None for events without
                one. Without events the journal is opened only if the state `is_due`.
            known: Without a record: states of the agents that the events are about.

        Raises:
            StateWriteError: Busy beyond the timeout, or the disk refused; nothing was stored.
            StateCorruptError: The journal is not a readable database.
        """
        if events or (record is not None and self.is_due(record)):
            self._append(lambda _: events, timeout_seconds, record, known)

    def append_following(self, agent_id: str, follow: Follow, record: StateRecord | None) -> None:
        """Store events that follow from those of an agent; see `Backend.append_following`.

        Args:
            agent_id: The agent.
            follow: As there.
            record: Its state, None without one.
        """
        waiting = (record.pending if record is not None else None) or []

        def read_and_follow(connection: JournalConnection) -> list[dict[str, Any]]:
            query = "SELECT payload FROM events WHERE agent_id = ? ORDER BY id"
            rows = connection.execute(query, (agent_id,))
            stored = [event for (payload,) in rows if (event := read_event(payload))]
            keys = set(map(event_key, stored))
            new = [event for event in waiting if event_key(event) not in keys]
            return new + follow(stored + new)

        known = () if record is None else (record,)
        self._append(read_and_follow, TOOL_TIMEOUT_SECONDS, None, known)

    def _append(
        self,
        events_in: Callable[[JournalConnection], Sequence[dict[str, Any]]],
        timeout_seconds: float,
        record: StateRecord | None,
        known: Sequence[StateRecord],
    ) -> None:
        # Held until the marks are right: no thread with more patience may come in between.
        self.acquire(timeout_seconds)
        try:
            with self.transaction(timeout_seconds) as connection:
                events = events_in(connection)
                new = [event for event in events if insert_event(connection, event)]
                rows = JournalRows(connection)
                if record is None:
                    route_noted(rows, new, known)
                    ended = {event["agentId"] for event in new if event["type"] in ENDS}
                    marks = {agent_id: rows.mark(rows.registration(agent_id)) for agent_id in ended}
                else:
                    registration = route(rows, record, new, record.last_heartbeat)
                    marks = {record.agent_id: rows.mark(registration)}
            self._sync_marks(marks, record)
        finally:
            self.lock.release()

    def _sync_marks(self, marks: dict[str, Mark | None], record: StateRecord | None) -> None:
        try:
            for agent_id, mark in marks.items():
                if mark is not None if record is None else self.is_due(record):
                    self.sync_mark(agent_id, mark)
        except StateError:
            return  # the next save tries again

    def sync_mark(self, agent_id: str, mark: Mark | None) -> None:
        """Bring an agent's mark in line with the database, however many writers change both.

        Called after each commit that changes it; repeated until it reads back what it wrote.

        Args:
            agent_id: The agent.
            mark: As `JournalRows.mark` gave it before the commit.

        Raises:
            StateError: The journal or the file system refused.
        """
        written: object = ...
        while mark != written:
            written = mark
            self.write_mark(agent_id, mark)
            with self.transaction(TOOL_TIMEOUT_SECONDS, "DEFERRED") as connection:
                rows = JournalRows(connection)
                mark = rows.mark(rows.registration(agent_id))

    def is_due(self, record: StateRecord) -> bool:
        """Return whether a state may lead to a notice; cheap, and without the database."""
        return is_due(self._directory, record)

    def write_mark(self, agent_id: str, mark: Mark | None) -> None:
        """Have every writer of an agent's state check whether it is due. See `level_marks`.

        Raises:
            StateError: The file system refused.
        """
        write_mark(self._directory, agent_id, mark)

    def tail(
        self, after: str | None, limit: int | None, wanted: Mapping[str, str] | None = None
    ) -> tuple[list[dict[str, Any]], str, list[str]]:
        """Read events in commit order.

        Args:
            after: A cursor that this method returned, or None for the beginning.
            limit: At most so many events; None = all.
            wanted: Only events with these values in these columns; None = any.

        Returns:
            The events, the cursor behind the last one, and the cursor behind each. Writers of a
            SQLite file commit one after the other, so that no event can appear behind a cursor
            later.
        """
        position = position_of(after)
        wanted = wanted or {}
        conditions = "".join(f" AND {column} = ?" for column in wanted)
        query = f"SELECT id, payload FROM events WHERE id > ?{conditions} ORDER BY id LIMIT ?"
        most = -1 if limit is None else limit
        # The first writer may have made the file and not its tables yet.
        rows = self.select(1, query, position, *wanted.values(), most)
        if rows:
            position = rows[-1][0]
        events, cursors = [], []
        for number, payload in rows:
            event = read_event(payload)
            if event is not None:
                events.append(event)
                cursors.append(str(number))
        return events, str(position), cursors

    def mentions(self, agent_ids: Sequence[str]) -> set[str]:
        """Return which agents have events, those without a state too."""
        places = ", ".join("?" * len(agent_ids))
        query = f"SELECT DISTINCT agent_id FROM events WHERE agent_id IN ({places})"
        return {agent_id for (agent_id,) in self.select(1, query, *agent_ids)}

    def prune(self, before: float, agents: Sequence[str] = ()) -> int:
        """Delete events and dead messages older than a time, and what belongs to deleted agents.

        Args:
            before: Epoch seconds.
            agents: Their messages go, whatever their age.

        Returns:
            How many events were deleted.
        """

        def prune(connection: JournalConnection) -> int:
            # All times are written in one form, which sorts as text.
            done = connection.execute(
                "DELETE FROM events WHERE occurred_at < ?", (format_time(before),)
            )
            forget(connection, before, agents)
            return done.rowcount

        deleted = self.change(prune) or 0
        for agent_id in agents:
            self.write_mark(agent_id, None)
        return deleted


class Transaction:
    """Gives the block a connection; commits at its end, rolls back when it raises.

    Args:
        journal: Of which file.
        timeout_seconds: How long to wait for another writer, and for a thread of this process.
        kind: As for `Journal.transaction`.

    Raises:
        StateWriteError: Busy beyond the timeout, or the system refused.
        StateCorruptError: It is not a readable database.
    """

    __slots__ = ("_connection", "_journal", "_kind", "_timeout_seconds")

    def __init__(self, journal: Journal, timeout_seconds: float, kind: str) -> None:
        self._journal = journal
        self._timeout_seconds = timeout_seconds
        self._kind = kind

    def __enter__(self) -> JournalConnection:
        try:
            import sqlite3  # noqa: F401 - to recognise this failure
        except (ImportError, OSError) as error:  # e.g. no descriptor left to load it through
            raise StateWriteError(
                self._journal.path, f"SQLite cannot be loaded: {error}"
            ) from error
        self._journal.acquire(self._timeout_seconds)
        try:
            self._connection = self._journal.begin(self._timeout_seconds, self._kind)
        except BaseException as error:
            self._journal.lock.release()
            self._translate(error)
            raise
        return self._connection

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if error is None:
                self._commit()
            else:
                self._judge_rows(error)
                self._roll_back()
                self._translate(error)
        finally:
            self._journal.lock.release()

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except BaseException as refusal:
            self._roll_back()
            self._translate(refusal)
            raise

    def _roll_back(self) -> None:
        import sqlite3

        try:
            self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass

    def _judge_rows(self, error: BaseException) -> None:
        """Raise `StateCorruptError` for an error that a value of another type may have caused.

        Every value of every row may be damaged; to check each where it is used would cost more
        than to look for a damaged row once something failed.
        """
        if not isinstance(error, _ERRORS_OF_VALUES) or isinstance(error, UltramonError):
            return
        import sqlite3

        try:
            problem = self._journal.find_bad_row(self._connection)
        # Python decodes what SQLite says of a damaged schema, of which it quotes the bytes.
        except (sqlite3.Error, UnicodeDecodeError) as damage:
            problem = str(damage)
        if problem is not None:
            self._roll_back()
            raise StateCorruptError(self._journal.path, problem, self._journal.cure) from error

    def _translate(self, error: BaseException) -> None:
        """Raise the exception that an error of SQLite means; others pass."""
        import sqlite3

        if isinstance(error, sqlite3.DatabaseError):
            text = str(error)
            if "not a database" in text or "malformed" in text:
                raise StateCorruptError(self._journal.path, text, self._journal.cure) from error
            raise StateWriteError(self._journal.path, text) from error
        if isinstance(error, OSError) and not isinstance(error, StateWriteError):
            raise StateWriteError(
                self._journal.path, f"cannot be opened: {error.strerror}"
            ) from error
