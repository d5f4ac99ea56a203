"""Ladders and `next_level`: when a rung fires, when it can fire again, what is refused."""

import json
import math

import pytest
from helpers import DATA, ROOT
from hypothesis import assume, given
from hypothesis import strategies as st

from ultramon.alerts.config import AlertConfig
from ultramon.context.ladder import (
    ACTIONS,
    CLAUDE_CODE_LADDER,
    DEFAULT_LADDER,
    LADDERS,
    Ladder,
    ResolvedLadder,
    Rung,
    next_level,
)
from ultramon.errors import ConfigurationError

CASES = json.loads((DATA / "ultraplan.json").read_text(encoding="utf-8"))
NOT_RATIOS = [math.nan, math.inf, -math.inf, 0, 0.0, -0.1, 1.01, True, False, "0.7", None, [0.7]]

limits = st.integers(1, 10_000_000)
usage_ratios = st.floats(0.0, 2.0)


margins_or_none = st.none() | st.floats(0.0, 0.99)


@st.composite
def ladders(draw, margins=margins_or_none):
    """Any ladder that can be made: ratio arms, tokens-left arms, or both, up to five rungs."""
    count = draw(st.integers(1, 5))
    round_percent = draw(st.booleans())
    if round_percent:
        ratios = [whole / 100 for whole in draw(distinct(st.integers(1, 100), count))]
    else:
        ratios = draw(distinct(st.floats(0.001, 1.0), count))
    lefts = draw(distinct(st.integers(1, 2_000_000), count))[::-1]
    rungs = []
    for index in range(count):
        arms = draw(st.sampled_from(["ratio", "tokens_left", "both"]))
        ratio = None if arms == "tokens_left" else ratios[index]
        rearms = st.none() | st.floats(0.0005, ratio if ratio and ratio > 0.0005 else 1.0)
        rungs.append(
            Rung(
                f"rung-{index}",
                ratio,
                None if arms == "ratio" else lefts[index],
                draw(st.sampled_from(ACTIONS)),
                draw(rearms) if ratio is None or ratio > 0.0005 else None,
            )
        )
    return Ladder(rungs, rearm_margin=draw(margins), round_percent=round_percent)


def distinct(values, count):
    """Lists of that many rising values."""
    return st.lists(values, min_size=count, max_size=count, unique=True).map(sorted)


def walk(ladder, usage_ratios):
    """Return the levels that were risen to, as a monitor would announce them."""
    level, rises = None, []
    for usage_ratio in usage_ratios:
        following = next_level(level, usage_ratio, ladder)
        if ladder.rank(following) > ladder.rank(level):
            rises.append(following)
        level = following
    return rises


@pytest.mark.parametrize("case", CASES["sequences"], ids=lambda case: case["about"])
def test_a_sequence_of_readings_fires_what_the_design_says(case):
    """Each upward crossing fires once; what may fire again is decided by the margin."""
    margin = case.get("rearm_margin", 0.05)
    ladder = Ladder.default(rearm_margin=margin).resolve(None)
    assert walk(ladder, case["usage_ratios"]) == case["rises"]


@given(ladders(), st.none() | limits, st.lists(usage_ratios, max_size=40))
def test_no_sequence_of_readings_spams(ladder, limit, readings):
    """A rung is crossed upwards at most once more often than usage fell below its re-arm ratio."""
    resolved = ladder.resolve(limit)
    crossings = [0] * len(resolved.rungs)
    falls = [0] * len(resolved.rungs)
    level, last = None, 0.0
    for usage_ratio in readings:
        following = next_level(level, usage_ratio, resolved)
        before, after = resolved.rank(level), resolved.rank(following)
        for index, rung in enumerate(resolved.rungs):
            crossings[index] += before <= index < after
            if rung.rearm_ratio is not None:
                falls[index] += last >= rung.rearm_ratio > usage_ratio
        level, last = following, usage_ratio
    for crossed, fell in zip(crossings, falls, strict=True):
        assert crossed <= fell + 1


@given(ladders(margins=st.floats(0.0, 0.99)), st.none() | limits, st.data())
def test_no_rung_is_silenced_for_ever(ladder, limit, data):
    """From any level, a fall to an empty window re-arms every rung there is."""
    resolved = ladder.resolve(limit)
    start = data.draw(st.sampled_from(resolved.names))
    emptied = next_level(start, 0.0, resolved)
    assert emptied == resolved.names[0]
    rises = walk(resolved, [0.0, *(rung.ratio for rung in resolved.rungs)])
    assert rises == [rung.name for rung in resolved.rungs]


@given(ladders(margins=st.none()), st.none() | limits, st.lists(usage_ratios, max_size=30))
def test_without_a_margin_only_an_epoch_rearms(ladder, limit, readings):
    """With rearm_margin None a level never falls, unless its rung brings a re-arm ratio."""
    resolved = ladder.resolve(limit)
    assume(all(rung.rearm_ratio is None for rung in resolved.rungs))
    rises = walk(resolved, readings)
    assert rises == sorted(set(rises), key=resolved.rank)


@given(ladders(), st.none() | limits, st.data(), usage_ratios, usage_ratios)
def test_more_usage_never_means_a_lower_level(ladder, limit, data, one, other):
    """From one and the same level, the higher reading leads at least as high."""
    resolved = ladder.resolve(limit)
    previous = data.draw(st.none() | st.sampled_from(resolved.names))
    low, high = sorted((one, other))
    assert resolved.rank(next_level(previous, low, resolved)) <= resolved.rank(
        next_level(previous, high, resolved)
    )


@given(ladders(), st.none() | limits)
def test_a_resolved_ladder_rises_within_zero_and_one(ladder, limit):
    """Whatever the limit, the ratios rise strictly in (0, 1] and what was dropped is named."""
    resolved = ladder.resolve(limit)
    ratios = [rung.ratio for rung in resolved.rungs]
    assert ratios == sorted(set(ratios))
    assert all(0.0 < ratio <= 1.0 for ratio in ratios)
    assert all(rung.rearm_ratio is None or rung.rearm_ratio > 0 for rung in resolved.rungs)
    assert all(
        rung.rearm_ratio is None or rung.rearm_ratio <= rung.ratio for rung in resolved.rungs
    )
    assert len(set(resolved.dropped)) == len(resolved.dropped)
    assert resolved.status == ("invalid" if resolved.dropped else "ok")
    with_tokens = {rung.name for rung in ladder.rungs if rung.tokens_left is not None}
    assert set(resolved.dropped) <= with_tokens
    missing = {rung.name for rung in ladder.rungs} - {rung.name for rung in resolved.rungs}
    if limit is not None:
        assert missing <= set(resolved.dropped)
    assert {rung.name for rung in ladder.rungs if rung.ratio is not None}.isdisjoint(missing)


@given(ladders())
def test_a_ladder_survives_its_state_file(ladder):
    """to_json and from_json are inverse, through real JSON."""
    again = Ladder.from_json(json.loads(json.dumps(ladder.to_json())))
    assert again == ladder
    assert hash(again) == hash(ladder)


@pytest.mark.parametrize(
    ("limit", "tokens_left", "fires_at_tokens"),
    [(200_000, 20_000, 140_000), (200_000, 80_000, 120_000), (1_000_000, 20_000, 700_000)],
)
def test_the_stricter_arm_decides(limit, tokens_left, fires_at_tokens):
    """A rung with both arms is reached at the earlier one, inclusive."""
    ladder = Ladder([Rung("warning", 0.70, tokens_left)]).resolve(limit)
    assert next_level(None, fires_at_tokens / limit, ladder) == "warning"
    assert next_level(None, (fires_at_tokens - 1) / limit, ladder) == "normal"


def test_tokens_left_that_no_limit_can_hold_are_dropped_and_named():
    """A tokens-left arm at or below zero goes; the ratio arm of the same rung stays."""
    ladder = Ladder([Rung("early", None, 60_000), Rung("late", 0.85, 50_000)])
    resolved = ladder.resolve(50_000)
    assert resolved.dropped == ("early", "late")
    assert [(rung.name, rung.ratio) for rung in resolved.rungs] == [("late", 0.85)]


def test_a_tokens_left_arm_that_breaks_the_order_is_dropped():
    """A higher rung that would come before a lower one loses its tokens-left arm only."""
    ladder = Ladder([Rung("low", 0.70), Rung("high", 0.85, 100_000)])
    resolved = ladder.resolve(200_000)
    assert resolved.dropped == ("high",)
    assert [rung.ratio for rung in resolved.rungs] == [0.70, 0.85]


def test_tokens_left_rungs_rearm_after_five_percent_of_the_limit():
    """The margin counts as a ratio of the limit for tokens-left rungs too."""
    resolved = Ladder([Rung("low", None, 20_000)]).resolve(200_000)
    assert walk(resolved, [0.9, 0.86, 0.9]) == ["low"]
    assert walk(resolved, [0.9, 0.84, 0.9]) == ["low", "low"]


def test_an_unknown_limit_leaves_the_ratio_arms():
    """Without a limit tokens-left arms are not judged, and nothing is called invalid."""
    resolved = Ladder([Rung("low", 0.70, 20_000), Rung("high", None, 10_000)]).resolve(None)
    assert resolved.status == "ok"
    assert [rung.name for rung in resolved.rungs] == ["low"]


def test_an_unknown_usage_has_no_level():
    """No reading, no level: never a guess."""
    assert next_level("critical", None, DEFAULT_LADDER.resolve(None)) is None


def test_a_level_of_another_ladder_counts_as_the_base():
    """A name that the ladder does not have is no height to fall from."""
    assert next_level("somewhere", 0.1, DEFAULT_LADDER.resolve(None)) == "normal"


def test_a_rounded_percent_decides_like_the_host_shows_it():
    """With round_percent 69.5 % reads as 70 and fires, 69.49 % does not."""
    resolved = Ladder([Rung("warning", 0.70)], round_percent=True).resolve(None)
    assert next_level(None, 0.695, resolved) == "warning"
    assert next_level(None, 0.6949, resolved) == "normal"


@pytest.mark.parametrize("ratios", [(0.701, 0.704), (0.004, 0.5), (0.705, 0.9)])
def test_rounded_percents_need_whole_percents(ratios):
    """Two rungs within one percent, or one below half a percent, are refused."""
    rungs = [Rung(f"rung-{index}", ratio) for index, ratio in enumerate(ratios)]
    with pytest.raises(ConfigurationError, match="whole percents"):
        Ladder(rungs, round_percent=True)


@given(st.integers(1, 100))
def test_every_whole_percent_is_a_whole_percent(percent):
    """Binary fractions such as 0.07 do not count as being between two percents."""
    resolved = Ladder([Rung("only", percent / 100)], round_percent=True).resolve(None)
    assert resolved.rungs[0].ratio == pytest.approx((percent - 0.5) / 100)


@pytest.mark.parametrize(
    ("rung", "where"),
    [
        (Rung("low", 0.7), "70%+"),
        (Rung("low", 0.075), "7.5%+"),
        (Rung("low", None, 20_000), "20,000 tokens left"),
        (Rung("low", 0.7, 20_000), "70%+ or 20,000 tokens left"),
    ],
)
def test_a_rung_says_where_it_lies(rung, where):
    """The text names every arm, because either may have been the one that was reached."""
    assert rung.message() == f"Context low ({where})"


@pytest.mark.parametrize("value", [value for value in NOT_RATIOS if value is not None], ids=repr)
@pytest.mark.parametrize("argument", ["ratio", "rearm_ratio"])
def test_a_ratio_out_of_range_is_refused(argument, value):
    """NaN, infinity, zero, negatives, more than one, booleans and texts are no ratios."""
    with pytest.raises(ConfigurationError, match=f"low {argument}") as caught:
        Rung("low", **{"ratio": 0.5, argument: value})
    assert caught.value.value is value
    assert caught.value.allowed == "a finite ratio, 0 < ratio <= 1"


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "20000", math.nan, 10**10, 10**400], ids=str)
def test_tokens_left_out_of_range_are_refused(value):
    """Only a whole number of tokens that a window could hold is a tokens-left arm."""
    with pytest.raises(ConfigurationError, match="low tokens_left"):
        Rung("low", None, value)


@pytest.mark.parametrize("name", ["", "UPPER", "with space", "x" * 33, "\x1b[31m", "ü", None, 7])
def test_a_name_out_of_range_is_refused(name):
    """Level names go into files, labels and terminals: plain lower-case words only."""
    with pytest.raises(ConfigurationError, match="rung name"):
        Rung(name, 0.7)
    with pytest.raises(ConfigurationError, match="ladder base"):
        Ladder([Rung("low", 0.7)], base=name)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Rung("low"), "rung low"),
        (lambda: Rung("low", 0.7, action="explode"), "low action"),
        (lambda: Rung("low", 0.7, rearm_ratio=0.71), "low rearm_ratio"),
        (lambda: Ladder([]), "ladder"),
        (lambda: Ladder([Rung("low", 0.7), Rung("low", 0.8)]), "ladder"),
        (lambda: Ladder([Rung("normal", 0.7)]), "ladder"),
        (lambda: Ladder([Rung("a", 0.7), Rung("b", 0.7)]), "ladder ratios"),
        (lambda: Ladder([Rung("a", 0.7), Rung("x", None, 9), Rung("b", 0.6)]), "ladder ratios"),
        (lambda: Ladder([Rung("a", None, 9), Rung("b", None, 9)]), "ladder tokens_left"),
        (lambda: Ladder([Rung("a", 0.7)], rearm_margin=1), "rearm_margin"),
        (lambda: Ladder([Rung("a", 0.7)], rearm_margin=-0.01), "rearm_margin"),
        (lambda: Ladder([Rung("a", 0.7)], rearm_margin=True), "rearm_margin"),
        (lambda: Ladder([Rung("a", 0.7)], rearm_margin=math.nan), "rearm_margin"),
        (lambda: Ladder.default(0.9, 0.8), "ladder ratios"),
    ],
)
def test_a_ladder_that_makes_no_sense_is_refused(make, name):
    """The error names the part that is wrong."""
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert caught.value.name == name


@pytest.mark.parametrize("stored", [{}, [], None, {"rungs": [{}]}, {"rungs": 3}, "ladder"])
def test_a_stored_ladder_that_is_none_is_refused(stored):
    """What is no ladder raises the one exception of configured values."""
    with pytest.raises(ConfigurationError, match="as ultramon wrote it"):
        Ladder.from_json(stored)


def test_the_level_above_the_top_rung_does_not_exist():
    """next_ratio is the ratio of the rung above a level, None at the top."""
    resolved = DEFAULT_LADDER.resolve(None)
    assert isinstance(resolved, ResolvedLadder)
    assert [resolved.next_ratio(name) for name in resolved.names] == [0.70, 0.85, None]


def test_the_three_ladders_are_what_the_concepts_say():
    """One table shows side by side what each default calls critical, and code reads the same."""
    page = ROOT / "docs" / "concepts.md"
    rows = [line.split("|") for line in page.read_text(encoding="utf-8").splitlines()]
    shown = {row[1].strip(" `"): list(map(str.strip, row[3:7])) for row in rows if len(row) > 7}
    for name, ratios in LADDERS.items():
        levels = ["warning", "caution", "critical", "emergency"]
        assert shown[name] == [
            f"{ratios[it] * 100:.0f} %" if it in ratios else "–" for it in levels
        ]
    for name, ladder in (("sdk", DEFAULT_LADDER), ("claude-code", CLAUDE_CODE_LADDER)):
        assert {rung.name: rung.ratio for rung in ladder.rungs} == LADDERS[name]
    alerts = AlertConfig().ladder
    assert {rung.name: rung.ratio for rung in alerts.rungs} == LADDERS["alerts"]
