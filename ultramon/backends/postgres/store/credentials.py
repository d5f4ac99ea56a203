"""Credentials in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.backends.credentials import Credential
from ultramon.backends.local.credentials import COLUMNS

if TYPE_CHECKING:
    from ultramon.backends.postgres.connection.database import Database


class PostgresCredentials:
    """See `ultramon.backends.credentials.Credentials`.

    Args:
        database: Where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def mint(self, credential: Credential) -> None:
        """See `Credentials.mint`."""
        to_server = self._database.to_server
        with self._database.transaction() as connection:
            connection.execute(
                "DELETE FROM ultramon.credentials WHERE expires_at <= %s"
                " OR agent_id = %s AND generation < %s",
                (to_server(credential.minted_at), credential.agent_id, credential.generation),
            )
            connection.execute(
                f"INSERT INTO ultramon.credentials ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)",
                # `minted_at` as it was passed: it is compared with the start of the agent's life.
                (*credential[:5], to_server(credential.expires_at)),
            )

    def find(self, token_hash: str) -> Credential | None:
        """See `Credentials.find`."""
        query = f"SELECT {COLUMNS} FROM ultramon.credentials WHERE token_hash = %s"
        rows = self._database.select(query, token_hash)
        if not rows:
            return None
        *columns, expires_at = rows[0]
        return Credential._make((*columns, self._database.from_server(expires_at)))

    def renew(self, token_hash: str, expires_at: float) -> bool:
        """See `Credentials.renew`."""
        statement = (
            "UPDATE ultramon.credentials SET expires_at = greatest(expires_at, %s)"
            " WHERE token_hash = %s"
        )
        at = self._database.to_server(expires_at)
        return self._database.change(statement, at, token_hash) == 1

    def revoke(self, agent_id: str) -> int:
        """See `Credentials.revoke`."""
        return self._database.change(
            "DELETE FROM ultramon.credentials WHERE agent_id = %s", agent_id
        )
