"""Credentials in the journal: the hashes of tokens, never a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.backends.credentials import Credential
from ultramon.backends.local.event_rows import has_kinds
from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS
from ultramon.backends.local.schema import CREDENTIALS_VERSION

if TYPE_CHECKING:
    from ultramon.backends.local.journal import Journal

_RENEW_TIMEOUT_SECONDS = 0.05
_KINDS = (str, str, int, (str, type(None)), (int, float), (int, float))
_INSERT = "INSERT INTO credentials VALUES (?, ?, ?, ?, ?, ?)"
COLUMNS = "token_hash, agent_id, generation, minted_by, minted_at, expires_at"


class JournalCredentials:
    """The credentials in the journal, as `ultramon.backends.credentials.Credentials` states.

    Args:
        journal: Where they are.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def mint(self, credential: Credential) -> None:
        self._journal.make_directory()
        with self._journal.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            connection.execute(
                "DELETE FROM credentials WHERE expires_at <= ? OR agent_id = ? AND generation < ?",
                (credential.minted_at, credential.agent_id, credential.generation),
            )
            connection.execute(_INSERT, credential)

    def rotate(self, credential: Credential) -> int:
        self._journal.make_directory()
        with self._journal.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            of_agent = "DELETE FROM credentials WHERE agent_id = ?"
            replaced: int = connection.execute(of_agent, (credential.agent_id,)).rowcount
            connection.execute(_INSERT, credential)
        return replaced

    def find(self, token_hash: str) -> Credential | None:
        query = f"SELECT {COLUMNS} FROM credentials WHERE token_hash = ?"
        rows = self._journal.select(CREDENTIALS_VERSION, query, token_hash)
        if not rows or not has_kinds(rows[0], _KINDS):
            return None  # a damaged one proves nothing
        return Credential(*rows[0])

    def renew(self, token_hash: str, expires_at: float) -> bool:
        statement = "UPDATE credentials SET expires_at = max(expires_at, ?) WHERE token_hash = ?"
        return (
            self._journal.execute(statement, expires_at, token_hash, within=_RENEW_TIMEOUT_SECONDS)
            == 1
        )

    def revoke(self, agent_id: str) -> int:
        return self._journal.execute("DELETE FROM credentials WHERE agent_id = ?", agent_id)
