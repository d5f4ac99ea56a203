"""What agents of the bench do wrong is decided by the seed alone."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultramon.testing.bench.faults import (
    CONFLICT_RATIO,
    FAULTS,
    OF_AN_ATTEMPT,
    draw_attempt,
    draw_context,
    kept_in_mind,
)

ITEMS = [f"item-{number:03}" for number in range(1, 41)]
SEEDS = range(40)


def attempts(faults, ratio=0.1):
    return {
        (seed, item): draw_attempt(seed, item, 1, faults, ratio) for seed in SEEDS for item in ITEMS
    }


def test_the_same_seed_item_and_attempt_meet_the_same_fault():
    assert attempts(FAULTS) == attempts(FAULTS)
    drawn = {draw_attempt(1, "item-001", number, FAULTS, 0.5) for number in range(1, 30)}
    assert len(drawn) > 3


@pytest.mark.parametrize("left_out", OF_AN_ATTEMPT)
def test_without_one_fault_the_others_stay_where_they_are(left_out):
    everything = attempts(FAULTS)
    rest = attempts([name for name in FAULTS if name != left_out])
    for place, attempt in everything.items():
        if attempt.fault != left_out:
            assert rest[place] == attempt
        else:
            assert rest[place].fault != left_out


def test_each_fault_comes_about_as_often_as_it_should():
    found = Counter(attempt.fault for attempt in attempts(FAULTS).values())
    assert set(found) == {None, *OF_AN_ATTEMPT}
    total = found.total()
    # An earlier one of the draws hides a later one.
    for place, name in enumerate(OF_AN_ATTEMPT):
        assert found[name] / total == pytest.approx(0.1 * 0.9**place, rel=0.25)
    overwrites = sum(attempt.overwrites for attempt in attempts(FAULTS).values())
    assert overwrites / total == pytest.approx(CONFLICT_RATIO, rel=0.15)


def test_without_faults_an_agent_is_reliable():
    for attempt in attempts(()).values():
        assert (attempt.fault, attempt.overwrites) == (None, False)
    for seed in SEEDS:
        assert draw_context(seed, 1, ()) == (False, False, False)


def test_an_item_costs_the_same_in_each_attempt():
    """A repeated attempt is not cheaper or dearer by luck."""
    costs = {draw_attempt(3, "item-007", number, FAULTS).tokens for number in range(1, 9)}
    assert len(costs) == 1
    assert 1_500 <= sum(costs.pop()) < 5_100


@given(st.integers(0, 10_000), st.integers(1, 50), st.lists(st.sampled_from(ITEMS), unique=True))
def test_a_compaction_that_forgets_keeps_less_and_in_order(seed, number, items):
    kept = kept_in_mind(seed, number, items)
    assert kept == [item for item in items if item in kept]
    assert len(kept) < len(items) or not items
