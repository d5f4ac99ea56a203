"""Registrations in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS
from ultramon.backends.local.route_rows import JournalRows
from ultramon.backends.local.schema import QUEUE_VERSION
from ultramon.backends.local.shared import JournalPart
from ultramon.notices import router

if TYPE_CHECKING:
    from ultramon.notices.message import Cancelled
    from ultramon.notices.rules import StoredRegistration
    from ultramon.state.record import StateRecord


class JournalRegistry(JournalPart):
    """See `ultramon.backends.registry.Registry`."""

    def register(self, registration: StoredRegistration) -> Cancelled:
        """See `Registry.register`."""
        agent_id = registration.agent_id
        self._prepare()
        with self._guard():
            # Before the commit: without its mark a registration would miss every crossing.
            self._journal.write_mark(agent_id, registration.ladder, None)
            with self._journal.transaction(TOOL_TIMEOUT_SECONDS) as connection:
                rows = JournalRows(connection)
                cancelled = router.register(rows, registration)
                mark = rows.mark(registration)
            self._journal.sync_mark(agent_id, mark)
        return cancelled

    def unregister(self, agent_id: str) -> Cancelled | None:
        """See `Registry.unregister`."""
        with self._guard():
            if not self._journal.exists():
                return None
            with self._journal.transaction(TOOL_TIMEOUT_SECONDS) as connection:
                cancelled = router.unregister(JournalRows(connection), agent_id)
            self._journal.sync_mark(agent_id, None)
        return cancelled

    def registrations(self, agent_id: str | None = None) -> list[StoredRegistration]:
        """See `Registry.registrations`."""
        found = self._read(QUEUE_VERSION, lambda rows: JournalRows(rows).registrations(agent_id))
        return found or []

    def announcement(self, agent_id: str, audience: str) -> tuple[int, str] | None:
        """See `Registry.announcement`."""
        return self._read(
            QUEUE_VERSION, lambda rows: JournalRows(rows).announcement(agent_id, audience)
        )

    def cancel_notices(
        self, record: StateRecord, *, requester: str | None, now: float
    ) -> Cancelled:
        """See `Registry.cancel_notices`."""
        self._prepare()
        with self._guard():
            with self._journal.transaction(TOOL_TIMEOUT_SECONDS) as connection:
                rows = JournalRows(connection)
                cancelled = router.cancel_notices(rows, record, requester, now)
                mark = rows.mark(rows.registration(record.agent_id))
            self._journal.sync_mark(record.agent_id, mark)
        return cancelled
