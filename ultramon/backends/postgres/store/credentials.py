"""Credentials in PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultramon.backends.credentials import Credential
from ultramon.backends.local.credentials import COLUMNS

if TYPE_CHECKING:
    from psycopg import Connection

    from ultramon.backends.postgres.connection.database import Database


@dataclass(frozen=True, slots=True)
class PostgresCredentials:
    """The rows of credentials, as `ultramon.backends.credentials.Credentials` states.

    Attributes:
        database: Where they are.
    """

    database: Database

    def mint(self, credential: Credential) -> None:
        to_server = self.database.to_server
        with self.database.transaction() as connection:
            connection.execute(
                "DELETE FROM ultramon.credentials WHERE expires_at <= %s"
                " OR agent_id = %s AND generation < %s",
                (to_server(credential.minted_at), credential.agent_id, credential.generation),
            )
            self._insert(connection, credential)

    def rotate(self, credential: Credential) -> int:
        with self.database.transaction() as connection:
            replaced: int = connection.execute(
                "DELETE FROM ultramon.credentials WHERE agent_id = %s", (credential.agent_id,)
            ).rowcount
            self._insert(connection, credential)
        return replaced

    def _insert(self, connection: Connection[Any], credential: Credential) -> None:
        connection.execute(
            f"INSERT INTO ultramon.credentials ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)",
            # `minted_at` as it was passed: it is compared with the start of the agent's life.
            (*credential[:5], self.database.to_server(credential.expires_at)),
        )

    def find(self, token_hash: str) -> Credential | None:
        query = f"SELECT {COLUMNS} FROM ultramon.credentials WHERE token_hash = %s"
        rows = self.database.select(query, token_hash)
        if not rows:
            return None
        *columns, expires_at = rows[0]
        return Credential._make((*columns, self.database.from_server(expires_at)))

    def renew(self, token_hash: str, expires_at: float) -> bool:
        statement = (
            "UPDATE ultramon.credentials SET expires_at = greatest(expires_at, %s)"
            " WHERE token_hash = %s"
        )
        at = self.database.to_server(expires_at)
        return self.database.change(statement, at, token_hash) == 1

    def revoke(self, agent_id: str) -> int:
        return self.database.change(
            "DELETE FROM ultramon.credentials WHERE agent_id = %s", agent_id
        )
