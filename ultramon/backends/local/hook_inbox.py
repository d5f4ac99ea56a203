"""What a hook picks up for its agent: claimed in one transaction, ended in another once it is told.

Only what ultramon itself wrote is claimed. Messages of others are counted, and wait for whoever
asks for them.
"""

from __future__ import annotations

from ultramon.backends.local.inbox_flags import is_raised, postpone
from ultramon.backends.local.journal import AGENT_TIMEOUT_SECONDS, Journal
from ultramon.backends.local.message_rows import (
    IS_NOTICE,
    claim_ready,
    end_claimed,
    priorities,
    refuse,
)
from ultramon.notices.message_rules import DELIVERIES, LEASE_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence
    from typing import Any

_NEW = f"NOT {IS_NOTICE} AND id > CASE priority WHEN 0 THEN ? WHEN 1 THEN ? ELSE ? END"


class HookInbox:
    """One recipient's messages in the hands of one hook call.

    A kill at any point repeats what was claimed, after the lease, and loses nothing: the flag
    stays, or is put off to that time.

    Args:
        directory: The state directory.
        recipient: Whose messages.
        deliveries: Modes that may be told now.
        at_calls: Modes that some later tool call may tell; others wait for a prompt.
        told: By mode, the id of the newest message of others that the recipient was told of.

    Attributes:
        notices: What was claimed, as `COLUMNS`.
        senders: Who else has sent something that waits, and how much since the last time.
        told: As given, with these.
    """

    def __init__(
        self,
        directory: str,
        recipient: str,
        deliveries: Sequence[str],
        at_calls: Sequence[str],
        told: dict[str, int],
    ) -> None:
        self._directory = directory
        self._recipient = recipient
        self._deliveries = deliveries
        self._at_calls = at_calls
        self.journal = Journal(directory)
        self.notices: list[tuple[Any, ...]] = []
        self.senders: dict[str | None, int] = {}
        self.told = told

    def take(self, limit: int, now: float, *, also_later: bool) -> None:
        """Claim what may be told now, unless a parallel call was faster.

        Args:
            limit: At most so many notices.
            now: Epoch seconds.
            also_later: As for `is_raised`.

        Raises:
            StateError: The journal is busy, or refused; nothing was claimed, the flag stays.
        """
        with self.journal.transaction(AGENT_TIMEOUT_SECONDS) as connection:
            if not is_raised(self._directory, self._recipient, also_later=also_later):
                return
            self.notices = claim_ready(
                connection,
                self._recipient,
                now,
                limit=limit,
                deliveries=self._deliveries,
                lease_seconds=LEASE_SECONDS,
                only=IS_NOTICE,
            )
            self._count_others(connection, now)
            self._settle(connection, now + LEASE_SECONDS if self.senders else None)

    def _count_others(self, connection: sqlite3.Connection, now: float) -> None:
        (newest,) = connection.execute(
            "SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages'"
        ).fetchone()
        # In a journal that was begun anew the ids are small again.
        self.told = {mode: told for mode, told in self.told.items() if told <= newest}
        rows = connection.execute(
            "SELECT sender, priority, count(*), max(id) FROM messages WHERE recipient = ?"
            f" AND state = 0 AND available_at <= ? AND priority IN ({priorities(self._deliveries)})"
            f" AND {_NEW} GROUP BY sender, priority ORDER BY min(id)",
            (self._recipient, now, *self._marks()),
        ).fetchall()
        for sender, priority, count, last in rows:
            mode = DELIVERIES[priority]
            self.senders[sender] = self.senders.get(sender, 0) + count
            self.told[mode] = max(last, self.told.get(mode, 0))

    def _marks(self) -> list[int]:
        return [self.told.get(mode, 0) for mode in DELIVERIES]

    def _settle(self, connection: sqlite3.Connection, until: float | None = None) -> None:
        """Lower the flag when nothing waits, else put it off to when a look is worth it.

        Never in a transaction that ends messages: one that is rolled back would leave them
        without a flag.
        """
        times = connection.execute(
            "SELECT min(CASE WHEN priority IN"
            f" ({priorities(self._at_calls)}) THEN available_at ELSE expires_at END) FROM messages"
            f" WHERE recipient = ? AND state = 0 AND ({IS_NOTICE} OR {_NEW})"
            " UNION ALL SELECT min(claimed_until) FROM messages"
            " WHERE state IN (1, 3) AND state = 1 AND recipient = ?",
            (self._recipient, *self._marks(), self._recipient),
        ).fetchall()
        known = [time for (time,) in (*times, (until,)) if time is not None]
        postpone(self._directory, self._recipient, min(known, default=None))

    def acknowledge(self, refused: Sequence[tuple[int, str]], now: float) -> None:
        """End what was told, and bury what cannot be.

        Args:
            refused: Ids of notices that were not told, and why.
            now: Epoch seconds.

        Raises:
            StateError: The journal is busy, or refused; what was told comes again.
        """
        reasons = dict(refused)
        if self.notices:
            with self.journal.transaction(AGENT_TIMEOUT_SECONDS) as connection:
                for row in self.notices:
                    message_id, token = row[0], row[8]
                    if message_id in reasons:
                        refuse(connection, message_id, token, reasons[message_id], now)
                    else:
                        end_claimed(connection, message_id, token)
        if self.notices or self.senders:
            with self.journal.transaction(AGENT_TIMEOUT_SECONDS) as connection:
                self._settle(connection)
