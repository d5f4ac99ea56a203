"""The queue as a hook reads it: claimed in one transaction, ended in another after the answer.

Only ultramon's own notices are claimed. Messages of other senders are counted, and wait for
`ultramon queue messages` or an `Inbox`.
"""

from __future__ import annotations

from ultramon.backends.local.inbox_flags import is_raised, postpone
from ultramon.backends.local.journal import AGENT_TIMEOUT_SECONDS, Journal
from ultramon.backends.local.journal_clock import skew_in
from ultramon.backends.local.message_rows import (
    claim_ready,
    end_claimed,
    put_back,
    refuse,
)
from ultramon.backends.sql_rows import IS_NOTICE, priorities
from ultramon.notices.message_rules import DELIVERIES, LEASE_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from ultramon.backends.local.connection import JournalConnection
    from ultramon.notices.message import Message

_NEW = f"NOT {IS_NOTICE} AND id > CASE priority WHEN 0 THEN ? WHEN 1 THEN ? ELSE ? END"


class HookInbox:
    """One recipient's messages during one hook call.

    A kill at any point repeats what was claimed, after the lease, and loses nothing: the flag
    stays, or is postponed to that time.

    Args:
        directory: The state directory.
        recipient: Whose messages.
        deliveries: Modes that may be delivered now.
        at_calls: Modes that some later tool call may deliver; others wait for a prompt.
        notified: By mode, the id of the newest message of another sender that the recipient was
            notified of.

    Attributes:
        notices: The claimed notices.
        senders: How many messages wait by sender, as far as the recipient was not notified of them.
        notified: As given, with these.
    """

    def __init__(
        self,
        directory: str,
        recipient: str,
        deliveries: Sequence[str],
        at_calls: Sequence[str],
        notified: dict[str, int],
    ) -> None:
        self._directory = directory
        self._recipient = recipient
        self._deliveries = deliveries
        self._at_calls = at_calls
        self.journal = Journal(directory)
        self.notices: list[Message] = []
        self.senders: dict[str | None, int] = {}
        self.notified = notified

    def claim(self, limit: int, now: float, *, also_later: bool) -> None:
        """Claim what may be delivered now, unless a parallel call was faster.

        Args:
            limit: At most so many notices.
            now: Epoch seconds.
            also_later: As for `is_raised`.

        Raises:
            StateError: The journal is busy, or refused; nothing was claimed, the flag stays.
        """
        with self.journal.transaction(AGENT_TIMEOUT_SECONDS) as connection:
            # Again, within the transaction: a parallel call may have claimed them meanwhile.
            if not is_raised(self._directory, self._recipient, also_later=also_later):
                return
            self.notices = claim_ready(
                connection,
                self._recipient,
                now,
                limit=limit,
                deliveries=self._deliveries,
                only=IS_NOTICE,
            )
            at = now + skew_in(connection)
            self._count_others(connection, at)
            self._reset_flag(connection, at + LEASE_SECONDS if self.senders else None)

    def _count_others(self, connection: sqlite3.Connection, at: float) -> None:
        (newest,) = connection.execute(
            "SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages'"
        ).fetchone()
        # In a journal that was begun anew the ids are small again.
        self.notified = {mode: last for mode, last in self.notified.items() if last <= newest}
        rows = connection.execute(
            "SELECT sender, priority, count(*), max(id) FROM messages WHERE recipient = ?"
            f" AND state = 0 AND available_at <= ? AND priority IN ({priorities(self._deliveries)})"
            f" AND {_NEW} GROUP BY sender, priority ORDER BY min(id)",
            (self._recipient, at, *self._marks()),
        ).fetchall()
        for sender, priority, count, last in rows:
            mode = DELIVERIES[priority]
            self.senders[sender] = self.senders.get(sender, 0) + count
            self.notified[mode] = max(last, self.notified.get(mode, 0))

    def _marks(self) -> list[int]:
        return [self.notified.get(mode, 0) for mode in DELIVERIES]

    def _reset_flag(self, connection: JournalConnection, until: float | None = None) -> None:
        """Lower the flag when nothing waits, else postpone it to when the next message is due.

        At ``until`` by the clock of the journal, if that is earlier.

        Never in a transaction that ends messages: one that is rolled back would leave them
        without a flag.
        """
        # `state IN (1, 3)` is the condition of the index: SQLite uses one that is partial only
        # where the query repeats its condition.
        times = connection.execute(
            "SELECT min(CASE WHEN priority IN"
            f" ({priorities(self._at_calls)}) THEN available_at ELSE expires_at END) FROM messages"
            f" WHERE recipient = ? AND state = 0 AND ({IS_NOTICE} OR {_NEW})"
            " UNION ALL SELECT min(claimed_until) FROM messages"
            " WHERE state IN (1, 3) AND state = 1 AND recipient = ?",
            (self._recipient, *self._marks(), self._recipient),
        ).fetchall()
        known = [time for (time,) in (*times, (until,)) if time is not None]
        due = min(known) - skew_in(connection) if known else None
        postpone(self._directory, self._recipient, due)

    def acknowledge(self, refused: Mapping[int, str], now: float) -> None:
        """End the delivered notices, and mark dead those that cannot be.

        Args:
            refused: By id, why a notice could not be delivered.
            now: Epoch seconds.

        Raises:
            StateError: The journal is busy, or refused; what was delivered comes again.
        """
        if self.notices:
            with self.journal.transaction(AGENT_TIMEOUT_SECONDS) as connection:
                for notice in self.notices:
                    reason = refused.get(notice.id)
                    if reason is None:
                        end_claimed(connection, notice.id, notice.claim_token)
                    else:
                        refuse(connection, notice.id, notice.claim_token, reason, now)
        if self.notices or self.senders:
            with self.journal.transaction(AGENT_TIMEOUT_SECONDS) as connection:
                self._reset_flag(connection)

    def put_back(self, now: float) -> None:
        """Leave the claimed notices to the next call: the client did not get these.

        Raises:
            StateError: The journal is busy, or refused; they come again after the lease.
        """
        with self.journal.transaction(AGENT_TIMEOUT_SECONDS) as connection:
            for notice in self.notices:
                put_back(connection, notice.id, notice.claim_token, now)
        with self.journal.transaction(AGENT_TIMEOUT_SECONDS) as connection:
            self._reset_flag(connection)
