"""A transaction of the journal as a ``with`` block; its failures are ultramon's exceptions."""

from __future__ import annotations

from ultramon.errors import StateCorruptError, StateWriteError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.backends.local.connection import JournalConnection
    from ultramon.backends.local.journal import Journal


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

    def _translate(self, error: BaseException) -> None:
        """Raise the exception that an error of SQLite means; others pass."""
        import sqlite3

        if isinstance(error, sqlite3.DatabaseError):
            text = str(error)
            if "not a database" in text or "malformed" in text:
                raise StateCorruptError(
                    self._journal.path,
                    text,
                    "it is set aside at the next start; see `ultramon status`",
                ) from error
            raise StateWriteError(self._journal.path, text) from error
        if isinstance(error, OSError) and not isinstance(error, StateWriteError):
            raise StateWriteError(
                self._journal.path, f"cannot be opened: {error.strerror}"
            ) from error
