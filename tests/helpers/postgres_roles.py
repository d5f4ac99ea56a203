"""Users of a PostgreSQL store who have one of its roles."""

from __future__ import annotations

import re
import secrets

import psycopg
import pytest

from ultramon.backends.postgres.admin.setup import migrate
from ultramon.backends.postgres.backend import PostgresBackend


@pytest.fixture
def server(postgres_store):
    """Ask the store as the superuser: of its own, or of the URL of another user."""
    schema = re.search(r"schema=(\w+)", postgres_store)[1]

    def ask(statement, url=postgres_store):
        with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
            cursor = connection.execute(statement.replace("ultramon.", f"{schema}."))
            return cursor.fetchall() if cursor.description else cursor.rowcount

    return ask


@pytest.fixture
def login(postgres_store, server):
    """Make users who have one of the roles; return the URL of a store as such a user."""
    backend = PostgresBackend(postgres_store)
    migrate(backend.database, create_roles=True)
    backend.close()
    names = []

    def make(role):
        names.append(f"user_{secrets.token_hex(4)}")
        server(f"CREATE ROLE {names[-1]} LOGIN IN ROLE {role}")
        return postgres_store.replace("//ultramon@", f"//{names[-1]}@")

    yield make
    for name in names:
        server(f"DROP ROLE {name}")
