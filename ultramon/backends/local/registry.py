"""Registrations in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS
from ultramon.backends.local.route_rows import JournalRows
from ultramon.backends.local.schema import QUEUE_VERSION
from ultramon.notices import router

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from ultramon.backends.local.journal import Journal
    from ultramon.notices.message import Cancelled
    from ultramon.notices.registration import StoredRegistration
    from ultramon.state.record import StateRecord

    Answer = TypeVar("Answer")


class JournalRegistry:
    """See `ultramon.backends.registry.Registry`.

    Args:
        journal: Where they are.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def register(self, registration: StoredRegistration) -> Cancelled:
        """See `Registry.register`."""
        agent_id = registration.agent_id
        self._journal.make_directory()
        # Before the commit: without its mark a registration would miss every crossing.
        self._journal.write_mark(agent_id, (registration.ladder, None))
        return self._apply(agent_id, lambda rows: router.register(rows, registration))

    def unregister(self, agent_id: str) -> Cancelled | None:
        """See `Registry.unregister`."""
        if not self._journal.exists():
            return None
        return self._apply(agent_id, lambda rows: router.unregister(rows, agent_id))

    def registrations(self, agent_id: str | None = None) -> list[StoredRegistration]:
        """See `Registry.registrations`."""
        found = self._journal.read(
            QUEUE_VERSION, lambda rows: JournalRows(rows).registrations(agent_id)
        )
        return found or []

    def announcement(self, agent_id: str, audience: str) -> tuple[int, str] | None:
        """See `Registry.announcement`."""
        return self._journal.read(
            QUEUE_VERSION, lambda rows: JournalRows(rows).announcement(agent_id, audience)
        )

    def cancel_notices(
        self, record: StateRecord, *, requester: str | None, now: float
    ) -> Cancelled:
        """See `Registry.cancel_notices`."""
        self._journal.make_directory()
        return self._apply(
            record.agent_id, lambda rows: router.cancel_notices(rows, record, requester, now)
        )

    def _apply(self, agent_id: str, rule: Callable[[JournalRows], Answer]) -> Answer:
        """Apply a rule of the router in a transaction, and bring the agent's mark in line."""
        with self._journal.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            rows = JournalRows(connection)
            answer = rule(rows)
            mark = rows.mark(rows.registration(agent_id))
        self._journal.sync_mark(agent_id, mark)
        return answer
