"""The conformance suite of backends: every sentence of `ultramon.backends.base`, as tests.

    class TestMine(BackendContract):
        @pytest.fixture
        def backend(self, tmp_path):
            return MyBackend(tmp_path / "store")

        @pytest.fixture
        def reopen(self):
            return lambda backend: MyBackend(backend.path)

`docs/backends.md` says more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ultramon.testing.contract_events import EventContract
from ultramon.testing.contract_fleet import FleetContract
from ultramon.testing.contract_states import StateContract

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend


class BackendContract(StateContract, EventContract, FleetContract):
    """Inherit in a test class and give the fixture `backend`, and `reopen` for a durable store."""

    @pytest.fixture
    def backend(self) -> Backend:
        """Give an empty backend that no other test uses."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `backend`")

    @pytest.fixture
    def reopen(self) -> Callable[[Backend], Backend] | None:
        """Give a function that opens the store of a backend as another process would.

        None = the store ends with the object; tests of durability are skipped.
        """
        return None

    @pytest.fixture
    def damage(self) -> Callable[[Backend, str], None] | None:
        """Give a function that makes the stored state of an agent unreadable.

        None = tests of unreadable states are skipped.
        """
        return None
