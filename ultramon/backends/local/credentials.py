"""Who may speak for an agent, as rows of the journal: the hashes of tokens, never a token.

The verbs of `ultramon.backends.credentials`, each a transaction of its own. Not thread-safe.
"""

from __future__ import annotations

from functools import cached_property

from ultramon.backends.credentials import Credential
from ultramon.backends.local.schema import CREDENTIALS_VERSION
from ultramon.backends.local.shared import JournalPart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.backends.local.journal import Journal

_TIMEOUT_SECONDS = 5.0
_RENEW_TIMEOUT_SECONDS = 0.05
_COLUMNS = "token_hash, agent_id, generation, minted_by, minted_at, expires_at"


class CredentialTable:
    """The table of credentials.

    Args:
        journal: Where it is.
    """

    __slots__ = ("_journal",)

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def mint(
        self,
        token_hash: str,
        agent_id: str,
        generation: int,
        *,
        minted_by: str | None,
        now: float,
        expires_at: float,
    ) -> None:
        """Store a credential; those that expired, or belong to the agent's past, go."""
        with self._journal.transaction(_TIMEOUT_SECONDS) as connection:
            connection.execute("DELETE FROM credentials WHERE expires_at <= ?", (now,))
            connection.execute(
                "DELETE FROM credentials WHERE agent_id = ? AND generation < ?",
                (agent_id, generation),
            )
            connection.execute(
                f"INSERT INTO credentials ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
                (token_hash, agent_id, generation, minted_by, now, expires_at),
            )

    def find(self, token_hash: str) -> tuple[Any, ...] | None:
        """Return a credential as it is stored, expired or not."""
        journal = self._journal
        if not journal.exists():
            return None
        with journal.transaction(_TIMEOUT_SECONDS, "DEFERRED") as connection:
            if journal.version(connection) < CREDENTIALS_VERSION:
                return None
            row: tuple[Any, ...] | None = connection.execute(
                f"SELECT {_COLUMNS} FROM credentials WHERE token_hash = ?", (token_hash,)
            ).fetchone()
        return row

    def renew(self, token_hash: str, expires_at: float) -> bool:
        """Let a credential live longer; False when it is gone."""
        if not self._journal.exists():
            return False
        with self._journal.transaction(_RENEW_TIMEOUT_SECONDS) as connection:
            done = connection.execute(
                "UPDATE credentials SET expires_at = max(expires_at, ?) WHERE token_hash = ?",
                (expires_at, token_hash),
            )
        return done.rowcount == 1

    def revoke(self, agent_id: str) -> int:
        """Delete every credential of an agent; return how many there were."""
        if not self._journal.exists():
            return 0
        with self._journal.transaction(_TIMEOUT_SECONDS) as connection:
            done = connection.execute("DELETE FROM credentials WHERE agent_id = ?", (agent_id,))
        return done.rowcount


class JournalCredentials(JournalPart):
    """See `ultramon.backends.credentials.Credentials`."""

    @cached_property
    def _table(self) -> CredentialTable:
        return CredentialTable(self._journal)

    def mint(
        self,
        token_hash: str,
        agent_id: str,
        generation: int,
        *,
        minted_by: str | None,
        now: float,
        expires_at: float,
    ) -> None:
        """See `Credentials.mint`."""
        self._prepare()
        with self._guard():
            self._table.mint(
                token_hash,
                agent_id,
                generation,
                minted_by=minted_by,
                now=now,
                expires_at=expires_at,
            )

    def find(self, token_hash: str) -> Credential | None:
        """See `Credentials.find`."""
        with self._guard():
            row = self._table.find(token_hash)
        return None if row is None else Credential(*row)

    def renew(self, token_hash: str, expires_at: float) -> bool:
        """See `Credentials.renew`."""
        with self._guard():
            return self._table.renew(token_hash, expires_at)

    def revoke(self, agent_id: str) -> int:
        """See `Credentials.revoke`."""
        with self._guard():
            return self._table.revoke(agent_id)
