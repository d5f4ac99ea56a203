"""What tests of whole relays share."""

import pytest
from helpers.relayed import RelayedProject, end_contexts


@pytest.fixture
def project(tmp_path):
    """A project under git; what the contexts of its run `job` leave is ended."""
    made = RelayedProject(tmp_path)
    yield made
    end_contexts(made.state)
