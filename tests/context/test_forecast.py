"""The forecast: turns and seconds before each rung, at the recent pace."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ultramon.context.forecast import HISTORY_TURNS, TurnHistory, describe_compaction, forecast
from ultramon.context.ladder import DEFAULT_LADDER, Ladder, Rung

LADDER = DEFAULT_LADDER.resolve(200_000)


def history(*turns, reported=True):
    """A history of (tokens, at) readings."""
    made = TurnHistory()
    for tokens, at in turns:
        made.record(tokens, at, reported=reported)
    return made


def steady(turns, growth=10_000, seconds=30.0):
    """So many readings, each so many tokens and seconds after the one before."""
    return history(*((growth * turn, seconds * turn) for turn in range(1, turns + 1)))


def test_turns_that_still_end_below_a_rung_are_counted():
    """From 100,000 at 10,000 a turn, three turns end below 140,000 and six below 170,000."""
    assert forecast(steady(10), 100_000, 200_000, LADDER) == {
        "tokensPerTurn": 10_000,
        "secondsPerTurn": 30.0,
        "rungs": {
            "warning": {"turns": 3, "seconds": 90.0},
            "critical": {"turns": 6, "seconds": 180.0},
        },
    }


def test_a_likely_compaction_is_one_more_rung_in_its_place():
    """Between 140,000 and 170,000; it goes when it is reached, and a ladder's own name wins."""
    found = forecast(steady(10), 100_000, 200_000, LADDER, (155_000, 3))
    assert [*found["rungs"]] == ["warning", "compaction", "critical"]
    assert found["rungs"]["compaction"] == {
        "turns": 5, "seconds": 150.0, "tokens": 155_000, "seen": 3,
    }  # fmt: skip
    assert describe_compaction(found) == (155_000, "likely compaction near 155,000, seen 3 times")
    reached = forecast(steady(10), 155_000, 200_000, LADDER, (155_000, 3))
    assert [*reached["rungs"]] == ["critical"]
    assert describe_compaction(reached) is None
    own = Ladder([Rung("compaction", 0.9)]).resolve(200_000)
    named = forecast(steady(10), 100_000, 200_000, own, (155_000, 3))
    assert named["rungs"] == {"compaction": {"turns": 7, "seconds": 210.0}}
    assert describe_compaction(named) is None


def test_a_rung_that_is_reached_has_no_forecast():
    """Only what lies ahead is foretold; at the rung itself it no longer does."""
    ahead = forecast(steady(10), 140_000, 200_000, LADDER)
    assert list(ahead["rungs"]) == ["critical"]
    assert forecast(steady(10), 190_000, 200_000, LADDER)["rungs"] == {}


def test_before_two_turns_nothing_is_foretold():
    """One growth is no pace, and no limit is no distance."""
    for made in (history(), steady(1), steady(2)):
        assert forecast(made, 10_000, 200_000, LADDER) is None
    assert forecast(steady(3), 30_000, 200_000, LADDER) is not None
    assert forecast(steady(3), 30_000, None, LADDER) is None


def test_one_large_read_is_no_pace():
    """The median of the turns ignores a single leap."""
    made = steady(8)
    made.record(180_000, 270.0, reported=True)
    assert made.tokens_per_turn == 10_000


def test_only_the_last_eight_turns_count():
    """An agent that slowed down is judged by how it is now."""
    made = steady(20)
    for turn in range(1, HISTORY_TURNS + 1):
        made.record(200_000 + 100 * turn, 600.0 + turn, reported=True)
    assert made.tokens_per_turn == 100
    assert made.seconds_per_turn == 1.0


def test_reports_replace_what_was_estimated_and_not_the_other_way_round():
    """The first report ends counting tracked texts as turns in this epoch."""
    made = history((10, 1.0), (20, 2.0), (30, 3.0), reported=False)
    assert made.tokens_per_turn == 10
    made.record(1_000, 4.0, reported=True)
    assert made.tokens_per_turn is None
    made.record(9_999, 5.0, reported=False)
    made.record(2_000, 6.0, reported=True)
    made.record(3_000, 8.0, reported=True)
    assert (made.tokens_per_turn, made.seconds_per_turn) == (1_000, 2.0)


def test_a_fall_is_no_turn():
    """Shrinking is not a pace; growth goes on from the lower number."""
    made = history((50_000, 1.0), (40_000, 2.0), (45_000, 3.0), (50_000, 4.0))
    assert made.tokens_per_turn == 5_000


def test_a_cleared_history_knows_nothing():
    """A new epoch has no pace of its own yet."""
    made = steady(5)
    made.clear()
    assert made.tokens_per_turn is None
    made.record(100, 1.0, reported=False)
    made.record(200, 2.0, reported=False)
    made.record(300, 3.0, reported=False)
    assert made.tokens_per_turn == 100


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.floats(-1e9, 1e10), st.booleans()), max_size=30),
    st.integers(0, 10**9),
    st.integers(1, 10**9),
)
def test_any_readings_give_a_forecast_that_can_be_stored(readings, tokens, limit):
    """Clocks that go back and counts that fall never make a negative number of turns."""
    made = TurnHistory()
    for count, at, reported in readings:
        made.record(count, at, reported=reported)
    ahead = forecast(made, tokens, limit, DEFAULT_LADDER.resolve(limit))
    if ahead is not None:
        json.dumps(ahead, allow_nan=False)
        assert ahead["tokensPerTurn"] > 0
        assert ahead["secondsPerTurn"] >= 0
        turns = [rung["turns"] for rung in ahead["rungs"].values()]
        assert turns == sorted(turns)
        assert all(count >= 0 for count in turns)
