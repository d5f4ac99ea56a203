"""The credentials of every backend that keeps a `Journal`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.backends.credentials import Credential
from ultramon.core.credentials import CredentialTable

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ultramon.core.journal import Journal


class JournalCredentials:
    """See `ultramon.backends.credentials.Credentials`.

    Args:
        journal: Where the credentials are.
        guard: Gives the lock that keeps the threads of this process apart.
        prepare: Makes the place of the journal, before anything is written there.
    """

    def __init__(
        self,
        journal: Journal,
        guard: Callable[[], AbstractContextManager[object]],
        prepare: Callable[[], object],
    ) -> None:
        self._table = CredentialTable(journal)
        self._guard = guard
        self._prepare = prepare

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
