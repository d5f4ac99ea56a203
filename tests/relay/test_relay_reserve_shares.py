"""What is left of a cap is parted among the contexts that run."""

from hypothesis import given
from hypothesis import strategies as st

from ultramon.relay.runs.reserve_shares import share_out

AMOUNTS = st.integers(0, 10_000)


def test_each_may_spend_as_much_more_as_the_others():
    assert share_out(100, [100, 0], [0, 0]) == [50, 50]
    assert share_out(100, [50, 50], [40, 0]) == [70, 30]
    assert share_out(100, [70, 30], [70, 30]) == [70, 30]
    assert share_out(90, [30, 30, 30], [30, 0, 0]) == [50, 20, 20]
    assert share_out(0, [], []) == []


@given(st.integers(0, 30_000), st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=6))
def test_together_they_may_spend_what_is_left_and_no_more(left, contexts):
    """Beside what is spent already: a reply may have passed the cap."""
    reserves, spent = [one[0] for one in contexts], [one[1] for one in contexts]
    found = share_out(left, reserves, spent)
    assert sum(found) <= max(left, sum(spent))
    assert all(reserve >= used for reserve, used in zip(found, spent, strict=True))
    # Parted once more, nothing changes.
    assert share_out(left, found, spent) == found
