"""Registrations in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS
from ultramon.backends.local.route_rows import JournalRows
from ultramon.backends.local.schema import QUEUE_VERSION
from ultramon.backends.sql_parts import SqlRegistry

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from ultramon.backends.local.journal import Journal
    from ultramon.notices.message import Cancelled
    from ultramon.notices.registration import StoredRegistration

    Answer = TypeVar("Answer")


class JournalRegistry(SqlRegistry):
    """The registrations in the journal, and the marks of their agents beside it.

    Args:
        journal: Where the registrations are.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def register(self, registration: StoredRegistration) -> Cancelled:
        self._journal.make_directory()
        # Before the commit: without its mark a registration would miss every crossing.
        self._journal.write_mark(registration.agent_id, (registration.ladder, None))
        return super().register(registration)

    def unregister(self, agent_id: str) -> Cancelled | None:
        return super().unregister(agent_id) if self._journal.exists() else None

    def _read(self, read: Callable[[JournalRows], Answer]) -> Answer | None:
        return self._journal.read(QUEUE_VERSION, lambda rows: read(JournalRows(rows)))

    def _change(self, agent_id: str, rule: Callable[[JournalRows], Answer]) -> Answer:
        """Apply a rule in a transaction, and bring the agent's mark in line after it."""
        self._journal.make_directory()
        with self._journal.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            rows = JournalRows(connection)
            answer = rule(rows)
            mark = rows.mark(rows.registration(agent_id))
        self._journal.sync_mark(agent_id, mark)
        return answer
