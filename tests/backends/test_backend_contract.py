"""Every backend that ultramon ships passes the conformance suites that it ships."""

from pathlib import Path

import pytest

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.memory import MemoryBackend
from ultramon.testing import BackendContract, CredentialsContract, QueueContract, RegistryContract


class TestMemoryBackend(BackendContract, CredentialsContract, QueueContract, RegistryContract):
    @pytest.fixture
    def backend(self):
        return MemoryBackend()

    @pytest.fixture
    def damage(self):
        return lambda backend, agent_id: backend.directory.states.update({agent_id: b"torn"})


class TestLocalBackend(BackendContract, CredentialsContract, QueueContract, RegistryContract):
    @pytest.fixture
    def backend(self, tmp_path):
        backend = LocalBackend(str(tmp_path / "store"))
        yield backend
        backend.close()

    @pytest.fixture
    def reopen(self):
        return lambda backend: LocalBackend(backend.directory.path)

    @pytest.fixture
    def damage(self):
        def tear(backend, agent_id):
            Path(backend.directory.file(agent_id)).write_bytes(b"torn")

        return tear
