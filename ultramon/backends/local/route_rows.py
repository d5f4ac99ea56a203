"""The rows that the rules of routing read and write, in the journal."""

from __future__ import annotations

from ultramon.backends.local.message_rows import delete_messages_from, insert_message
from ultramon.backends.sql_rows import SqlRows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.backends.local.connection import JournalConnection
    from ultramon.backends.local.level_marks import Mark
    from ultramon.notices.message import Cancelled, Draft
    from ultramon.notices.registration import StoredRegistration


class JournalRows(SqlRows):
    """The rows of routing in a transaction of the journal.

    Args:
        connection: Within that transaction.
    """

    def __init__(self, connection: JournalConnection) -> None:
        super().__init__(connection)
        self._connection = connection

    def _insert(self, draft: Draft, now: float) -> object:
        return insert_message(self._connection, draft, now)

    def mark(self, registration: StoredRegistration | None) -> Mark | None:
        """Return the mark of a registered agent, see `level_marks`; None without a registration."""
        if registration is None:
            return None
        ladder = registration.ladder if registration.is_enforced else {}
        return ladder, self.announcement(registration.agent_id, registration.notify_id)

    def cancel(self, sender: str, category: str) -> Cancelled:
        return delete_messages_from(self._connection, sender, category)
