"""Fixtures that the tests of the fleet share."""

from functools import partial

import pytest

from ultramon.testing import FakeClock


@pytest.fixture
def clock(ultramon_clock):
    return ultramon_clock


@pytest.fixture
def make(make):
    """A factory of agents that live as long as the test, held or not."""
    kept = []

    def keep(*args, **given):
        kept.append(make(*args, **given))
        return kept[-1]

    return keep


@pytest.fixture
def fleet_on(ultramon_fleet, store):
    """A factory of fleets on each kind of backend."""
    return partial(ultramon_fleet, backend=store)


@pytest.fixture
def agent_clock():
    """The clock of agents that hang while nobody moves it."""
    return FakeClock()


def names(events):
    return [event.name for event in events]
