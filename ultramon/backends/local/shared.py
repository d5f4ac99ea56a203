"""What the parts of a backend that keeps a `Journal` have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ultramon.backends.local.journal import Journal

Found = TypeVar("Found")


class JournalPart:
    """Tables of a journal that the threads of a process share.

    Args:
        journal: Where they are.
        guard: Gives the lock that keeps the threads of this process apart.
        prepare: Makes the place of the journal, before anything is written there.
    """

    def __init__(
        self,
        journal: Journal,
        guard: Callable[[], AbstractContextManager[object]],
        prepare: Callable[[], object],
    ) -> None:
        self._journal = journal
        self._guard = guard
        self._prepare = prepare

    def _read(
        self, since_version: int, read: Callable[[sqlite3.Connection], Found]
    ) -> Found | None:
        """Read in a transaction, without bringing an older journal up to date.

        Args:
            since_version: The first version of the journal that has these tables.
            read: What to read.

        Returns:
            None where there is no journal, or an older one.
        """
        journal = self._journal
        with self._guard():
            if not journal.exists():
                return None
            with journal.transaction(TOOL_TIMEOUT_SECONDS, "DEFERRED") as connection:
                return None if journal.version(connection) < since_version else read(connection)

    def _change(
        self,
        change: Callable[[sqlite3.Connection], Found],
        timeout_seconds: float = TOOL_TIMEOUT_SECONDS,
    ) -> Found | None:
        """Change what is stored, in a transaction; None where there is no journal."""
        with self._guard():
            if not self._journal.exists():
                return None
            with self._journal.transaction(timeout_seconds) as connection:
                return change(connection)

    def _execute(
        self, statement: str, *arguments: object, within: float = TOOL_TIMEOUT_SECONDS
    ) -> int:
        """Return how many rows a statement changed; ``within`` seconds or not at all."""
        return self._change(lambda rows: rows.execute(statement, arguments).rowcount, within) or 0
