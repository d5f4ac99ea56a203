"""The credentials of every backend that keeps a `Journal`."""

from __future__ import annotations

from functools import cached_property

from ultramon.backends.credentials import Credential
from ultramon.backends.journal_part import JournalPart
from ultramon.core.credentials import CredentialTable


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
