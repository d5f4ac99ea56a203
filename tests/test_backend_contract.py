"""Every backend that ultramon ships passes the conformance suite that it ships."""

import pytest

from ultramon.backends.local import LocalBackend
from ultramon.backends.memory import MemoryBackend
from ultramon.testing import BackendContract


class TestMemoryBackend(BackendContract):
    @pytest.fixture
    def backend(self):
        return MemoryBackend()


class TestLocalBackend(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path):
        backend = LocalBackend(str(tmp_path / "store"))
        yield backend
        backend.close()

    @pytest.fixture
    def reopen(self):
        return lambda backend: LocalBackend(backend.directory.path)
