"""What tests of sharing share."""

import pytest
from helpers.postgres_roles import login, server  # noqa: F401
from helpers.sharing import Machine

from ultramon.backends.postgres.admin.roles import MACHINE


@pytest.fixture
def machine(tmp_path, login):
    """A machine that shares, as a database user of its own."""
    made = Machine(tmp_path / "machine", login(MACHINE))
    yield made
    made.end()
