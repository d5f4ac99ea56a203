"""The benchmark of long jobs, on a small one: its scripted agent works through a whole relay."""

import importlib
from pathlib import Path

import pytest

from real_client.item_agent import NO_FILE

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytestmark = pytest.mark.real_client


@pytest.fixture
def relay(monkeypatch):
    """Run the relay's arm of the benchmark on another plan; return its column."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    arms = importlib.import_module("relay_arms")
    return lambda *plan, **more: arms.run_arm(arms.RELAY, arms.Plan(*plan, **more))


def test_a_scripted_agent_works_through_a_relay(relay):
    """What it only claims is found by the check, and done by a second context with the rules."""
    facts = relay(3, {"part 02": NO_FILE})
    shown = {
        "items verified at the end": "3 of 3",
        "claimed at the end, but false": "0",
        "false claims found and done": "1 of 1",
        "repeated": "0",
        "lost": "0",
        "contexts": "2",
        "compactions": "0",
        "rules word for word after a reset": "1 of 1",
    }
    assert {name: facts[name] for name in shown} == shown


@pytest.mark.parametrize(
    ("count", "more"), [(2, {"task_words": "Write the note for "}), (1, {"lists_one": False})]
)
def test_an_agent_that_keeps_its_list_its_own_way_is_understood(relay, count, more):
    """Subjects in its own words, and no list for a single item: one context is enough."""
    facts = relay(count, **more)
    assert (facts["contexts"], facts["repeated"]) == ("1", "0")
