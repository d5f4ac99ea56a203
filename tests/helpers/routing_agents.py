"""Agents of the tests of routing."""

import pytest

from ultramon import ContextConfig, create_context_monitor
from ultramon.testing import FakeClock
from ultramon.testing.contract.states import start

AGENT = "scout"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def backend(store):
    return store


def put(backend, agent_id=AGENT, **fields):
    """Store the first state of an agent."""
    return start(backend, agent_id, **fields)


def make(backend, clock, agent_id=AGENT, **options):
    """Make a monitor."""
    return create_context_monitor(
        agent_id,
        ContextConfig(context_window_tokens=200_000, on_error="raise"),
        backend=backend,
        clock=clock,
        **options,
    )
