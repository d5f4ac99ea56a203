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

from ultramon.backends.toolkit import missing_members
from ultramon.testing.contract.claims import ClaimContract
from ultramon.testing.contract.clocks import LeaseClockContract
from ultramon.testing.contract.events import EventContract
from ultramon.testing.contract.fleet import FleetContract
from ultramon.testing.contract.history import HistoryContract
from ultramon.testing.contract.states import StateContract
from ultramon.testing.contract.store import StoreContract

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend


class BackendContract(
    StateContract,
    HistoryContract,
    EventContract,
    ClaimContract,
    FleetContract,
    LeaseClockContract,
    StoreContract,
):
    """Inherit in a test class and give the fixture `backend`, and `reopen` for a durable store."""

    @pytest.fixture
    def damage(self) -> Callable[[Backend, str], None] | None:
        """Give a function that makes the stored state of an agent unreadable.

        None = tests of unreadable states are skipped.
        """
        return None

    @pytest.fixture(autouse=True)
    def _skip_where_members_are_missing(self, request: pytest.FixtureRequest) -> None:
        """Skip what cannot be tested: one test names all that a backend lacks."""
        name = request.function.__name__
        if "backend" in request.fixturenames and name != "test_it_has_every_member_of_the_port":
            lacking = missing_members(request.getfixturevalue("backend"))
            if lacking:
                pytest.skip(f"the backend lacks {', '.join(lacking)}")

    def test_it_has_every_member_of_the_port(self, backend: Backend) -> None:
        """Every attribute and method of `ultramon.backends.base.Backend`."""
        lacking = missing_members(backend)
        assert not lacking, f"the backend lacks {', '.join(lacking)}"
