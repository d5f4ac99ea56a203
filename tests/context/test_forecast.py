"""The forecast: turns and seconds before each rung, at the recent pace."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultramon.context.forecast import (
    CLOCK_TURNS,
    HISTORY_TURNS,
    Growth,
    TurnHistory,
    describe_compaction,
    forecast,
    turns_within,
)
from ultramon.context.forecast_tables import (
    DISTANCES,
    HOLDS_AT_DISTANCE,
    HOLDS_FOR_HOST,
    TOKENS_PER_TURN,
)
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


def test_turns_that_still_end_below_a_rung_are_a_range():
    """Ends, middle and seconds of each rung and of the limit; farther is never earlier."""
    found = forecast(steady(30, growth=3_000), 100_000, 200_000, LADDER)
    pace = 3_000
    assert found["tokensPerTurn"] == pace
    assert found["secondsPerTurn"] == 30.0
    ahead = [found["rungs"]["warning"], found["rungs"]["critical"], found["limit"]]
    for place, one in enumerate(ahead):
        assert 0 <= one["turnsLow"] <= one["turns"]
        assert one["turnsHigh"] is None or one["turns"] <= one["turnsHigh"]
        assert one["seconds"] == one["turns"] * 30.0
        for nearer in ahead[:place]:
            assert one["turnsLow"] >= nearer["turnsLow"]
            assert one["turns"] >= nearer["turns"]
    assert ahead[0]["turnsLow"] < 40_000 / pace - 1 < ahead[0]["turns"] * 2
    assert forecast(steady(30), 200_000, 200_000, LADDER)["limit"] is None


def test_a_high_end_is_told_where_measurements_bear_it_out():
    """At some distances and for some hosts a range did not keep its goals: the low end alone."""
    made = steady(30, growth=3_000)
    for host, holds in HOLDS_FOR_HOST.items():
        for distance, is_borne_out in zip(DISTANCES, HOLDS_AT_DISTANCE, strict=False):
            tokens = round((0.7 - distance) * 200_000) + 1_000  # just within that distance
            ahead = forecast(made, tokens, 200_000, LADDER, host=host)["rungs"]["warning"]
            assert (ahead["turnsHigh"] is not None) == (holds and is_borne_out), (host, distance)
    unknown = forecast(made, 132_000, 200_000, LADDER, host="no-such-host")
    assert unknown == forecast(made, 132_000, 200_000, LADDER)


@pytest.mark.parametrize(("host", "weight"), [("claude-code", 8), ("codex", 8), ("sdk", 2)])
def test_other_sessions_count_as_some_steps(host, weight):
    """An epoch whose steps scatter is not taken at its word; a long one is."""
    prior = TOKENS_PER_TURN.get(host, TOKENS_PER_TURN[""])
    for steps in (2, HISTORY_TURNS):
        made = history((0, 0.0))
        tokens = 0
        for step in range(1, steps + 1):
            tokens += 39_000 if step % 2 else 1_000
            made.record(tokens, float(step), reported=True)
        pace = made.tokens_per_turn(host)
        assert pace == (steps * 20_000 + weight * prior) / (steps + weight)


def test_steps_that_are_alike_need_no_other_sessions():
    """An agent that reads 20,000 tokens a turn is not promised the turns of smaller steps."""
    found = forecast(steady(4, growth=20_000), 80_000, 200_000, LADDER, host="claude-code")
    assert found["tokensPerTurn"] == 20_000.0
    # Three turns end below 85 %, the fourth reaches it.
    assert found["rungs"]["critical"]["turnsLow"] <= 4
    assert Growth(3, 30.0, 300.0).weigh(1_000.0) == 10.0
    few, many = Growth(2, 20.0, 201.0), Growth(2, 20.0, 220.0)
    assert 10.0 < few.weigh(1_000.0) < many.weigh(1_000.0) < 1_000.0


@pytest.mark.parametrize(
    ("expected", "turns"),
    [
        (1.0, (0, 0, 1)),
        (2.0, (1, 2, 4)),
        (3.0, (1, 4, 7)),
        (4.0, (2, 6, 10)),
        (8.0, (5, 13, 21)),
    ],
)
def test_between_the_entries_of_a_table_lie_lines(expected, turns):
    """And above the last one a proportion; ends are rounded outwards."""
    table = ((0.0, 0.0, 1.0), (1.0, 2.0, 4.0), (2.0, 6.0, 10.0))
    assert turns_within(expected, table) == turns


def test_a_likely_compaction_is_one_more_rung_in_its_place():
    """Between 140,000 and 170,000; it goes when it is reached, and a ladder's own name wins."""
    found = forecast(steady(10), 100_000, 200_000, LADDER, (155_000, 3))
    assert [*found["rungs"]] == ["warning", "compaction", "critical"]
    likely = found["rungs"]["compaction"]
    assert (likely["tokens"], likely["seen"]) == (155_000, 3)
    turns = [rung["turns"] for rung in found["rungs"].values()]
    assert turns == sorted(turns)
    assert describe_compaction(found) == (155_000, "likely compaction near 155,000, seen 3 times")
    reached = forecast(steady(10), 155_000, 200_000, LADDER, (155_000, 3))
    assert [*reached["rungs"]] == ["critical"]
    assert describe_compaction(reached) is None
    own = Ladder([Rung("compaction", 0.9)]).resolve(200_000)
    named = forecast(steady(10), 100_000, 200_000, own, (155_000, 3))
    assert named["rungs"].keys() == {"compaction"}
    assert not named["rungs"]["compaction"].keys() & {"tokens", "seen"}
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


def test_every_step_of_the_last_64_counts():
    """Those without growth too; what came before them is forgotten."""
    made = steady(3, growth=90_000)
    for turn in range(HISTORY_TURNS):
        made.record(270_000 + 100 * (turn // 2), 600.0 + turn, reported=True)
    assert (made.growth.steps, made.growth.tokens) == (HISTORY_TURNS, 3_100)
    assert len(made.turns) == HISTORY_TURNS + 1
    read_again = TurnHistory([list(turn) for turn in made.turns])
    assert read_again.tokens_per_turn() == made.tokens_per_turn()
    assert (read_again.growth.steps, read_again.growth.tokens) == (
        made.growth.steps,
        made.growth.tokens,
    )


def test_a_pause_is_no_pace():
    """The length of a turn is the median of the last eight that grew."""
    made = steady(20)
    for turn in range(1, CLOCK_TURNS):
        made.record(200_000 + 100 * turn, 600.0 + turn, reported=True)
    made.record(300_000, 90_000.0, reported=True)
    assert made.seconds_per_turn == 1.0


def test_reports_replace_what_was_estimated_and_not_the_other_way_round():
    """The first report ends counting tracked texts as turns in this epoch."""
    made = history((10, 1.0), (20, 2.0), (30, 3.0), reported=False)
    assert (made.growth.steps, made.growth.tokens) == (2, 20)
    made.record(1_000, 4.0, reported=True)
    assert made.tokens_per_turn() is None
    made.record(9_999, 5.0, reported=False)
    made.record(2_000, 6.0, reported=True)
    made.record(3_000, 8.0, reported=True)
    assert (made.growth.steps, made.growth.tokens, made.seconds_per_turn) == (2, 2_000, 2.0)


def test_a_fall_is_no_turn():
    """Shrinking is not a pace; growth continues from the lower number."""
    made = history((50_000, 1.0), (40_000, 2.0), (45_000, 3.0), (50_000, 4.0))
    assert (made.growth.steps, made.growth.tokens) == (3, 10_000)


def test_a_cleared_history_knows_nothing():
    """A new epoch has no pace of its own yet."""
    made = steady(5)
    made.clear()
    assert made.tokens_per_turn() is None
    made.record(100, 1.0, reported=False)
    made.record(200, 2.0, reported=False)
    made.record(300, 3.0, reported=False)
    assert (made.growth.steps, made.growth.tokens) == (2, 200)


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
        for rung in ahead["rungs"].values():
            assert 0 <= rung["turnsLow"] <= rung["turns"]
            assert rung["turnsHigh"] is None or rung["turns"] <= rung["turnsHigh"]
