"""The PostgreSQL backend passes the same suites as every other one, over a real server."""

import pytest

from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.testing import BackendContract, CredentialsContract, QueueContract, RegistryContract


class TestPostgresBackend(BackendContract, QueueContract, RegistryContract, CredentialsContract):
    @pytest.fixture
    def backend(self, postgres_store):
        backend = PostgresBackend(postgres_store)
        backend.given = postgres_store
        # A disk that is busy for 50 ms must not make an id 0 of the queue's suite.
        backend.queue.patience_seconds = 30.0
        yield backend
        backend.close()

    @pytest.fixture
    def reopen(self):
        opened = []

        def open_again(backend):
            opened.append(PostgresBackend(backend.given))
            opened[-1].queue.patience_seconds = 30.0
            return opened[-1]

        yield open_again
        for backend in opened:
            backend.close()

    @pytest.fixture
    def damage(self):
        def tear(backend, agent_id):
            with backend.database.transaction() as connection:
                connection.execute(
                    "UPDATE ultramon.agents SET document = 'torn',"
                    " changed = pg_current_xact_id() WHERE agent_id = %s",
                    (agent_id,),
                )

        return tear
