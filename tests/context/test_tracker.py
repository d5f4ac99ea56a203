"""The tracker: anchor, delta, calibration; never negative, never lower by adding."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ultramon.context.tracker import ContextTracker, create_context_tracker
from ultramon.state.record import StateRecord

any_text = st.text(st.characters(), max_size=200)
counts = st.integers(0, 2_000_000)


def tracker(*texts):
    """A tracker of the plain four-characters-a-token family, with texts in it."""
    made = create_context_tracker("chars/4")
    for text in texts:
        made.add(text)
    return made


def saved(made):
    """The state a monitor would have saved of a tracker, through real JSON."""
    record = StateRecord("a")
    record.anchor = json.loads(json.dumps(made.to_json()))
    record.estimated_tokens = made.tokens
    record.cumulative_chars = made.cumulative_chars
    record.by_source = {name: round(tokens) for name, tokens in made.by_source.items()}
    record.measured_at = made.anchor_at
    return record


def reported_growth(estimated_tokens, real_tokens, calibration=1.0):
    """A tracker that was reported, added so much by its own estimate, and was reported again."""
    made = tracker()
    made.calibration = calibration
    made.report(100_000)
    made.add("x" * (4 * estimated_tokens))
    made.report(100_000 + real_tokens)
    return made


class Trackers(RuleBasedStateMachine):
    """Any use of a tracker."""

    def __init__(self):
        super().__init__()
        self.tracker = tracker()

    @rule(text=any_text, source=st.none() | any_text)
    def add(self, text, source):
        before = self.tracker.tokens
        foreseen = self.tracker.tokens_with(len(text) / 4)
        self.tracker.add(text, source)
        assert self.tracker.tokens >= before
        assert self.tracker.tokens == foreseen

    @rule(tokens=counts, output_tokens=st.integers(0, 100_000))
    def report(self, tokens, output_tokens):
        self.tracker.report(tokens, output_tokens, 1.0)
        assert self.tracker.tokens == tokens
        assert self.tracker.source == "reported"

    @rule(tokens_after=st.none() | counts)
    def compact(self, tokens_after):
        self.tracker.start_epoch(tokens_after, 2.0)
        assert self.tracker.tokens == (tokens_after or 0)
        assert self.tracker.source == "estimated"
        assert self.tracker.is_lower_bound == (tokens_after is None)

    @rule()
    def restart(self):
        before = self.tracker
        self.tracker = tracker()
        self.tracker.restore(saved(before))
        assert self.tracker.tokens == before.tokens
        assert self.tracker.source == before.source

    @invariant()
    def stays_in_range(self):
        assert self.tracker.tokens >= 0
        assert 0.5 <= self.tracker.calibration <= 2.0
        assert len(self.tracker.by_source) <= 33
        assert all(len(name) <= 100 for name in self.tracker.by_source)
        assert all(tokens >= 0 for tokens in self.tracker.by_source.values())
        json.dumps(self.tracker.explain())


TestTrackers = Trackers.TestCase


@given(any_text, st.sampled_from(["o200k_base", "cl100k_base", "claude_v3", "claude_v47"]))
def test_any_text_counts_in_every_family(text, family):
    """Half characters and control characters are counted, never refused."""
    made = create_context_tracker(family)
    made.add(text)
    assert 0 <= made.tokens <= 12 * len(text)
    assert made.cumulative_chars == len(text)


@pytest.mark.parametrize(
    ("texts", "tokens"),
    [
        (["a"] * 4, 1),
        (["ab", "cd"], 1),
        (["hello"], 2),
        ([""], 0),
        (["x" * 1000], 250),
        (["abc"] * 40, 30),
        (["a"] * 1_000_000, 250_000),
    ],
)
def test_texts_are_summed_before_they_are_rounded(texts, tokens):
    """Rounding every piece up would double the count of a stream of small pieces."""
    assert tracker(*texts).tokens == tokens


def test_a_report_replaces_what_was_estimated():
    """The provider's number is the anchor; only what comes later is estimated."""
    made = tracker("x" * 4000)
    assert made.source == "estimated"
    assert not made.report(30_000, 0, 5.0)
    assert (made.tokens, made.source, made.anchor_at) == (30_000, "reported", 5.0)
    made.add("x" * 400)
    assert (made.tokens, made.source) == (30_100, "anchored")


def test_the_reply_joins_the_window_with_what_follows():
    """Until the next request the reply is not part of what the provider counted."""
    made = tracker()
    made.report(10_000, 800)
    assert made.tokens == 10_000
    assert made.tokens_with(0) == 10_800
    made.add("")
    assert (made.tokens, made.by_source["reply"]) == (10_800, 800)
    made.report(10_900, 100)
    assert made.calibration == 1.0


def test_the_calibration_is_learned_half_way_and_clamped():
    """Twice the estimate teaches 1.5 at once; ten times teaches no more than the clamp."""
    assert reported_growth(1_000, 2_000).calibration == pytest.approx(1.5)
    assert reported_growth(1_000, 10_000).calibration == pytest.approx(1.5)
    assert reported_growth(1_000, 100).calibration == pytest.approx(0.75)


def test_the_calibration_scales_what_is_estimated():
    """After learning 1.5, a thousand estimated tokens count as fifteen hundred."""
    made = reported_growth(1_000, 2_000)
    made.add("x" * 4_000)
    assert made.tokens == 103_500


@pytest.mark.parametrize("estimated_tokens", [0, 1, 499])
def test_small_growth_teaches_nothing_and_lets_the_calibration_fade(estimated_tokens):
    """Below 500 tokens the noise is larger than the signal: the calibration drifts back to 1."""
    assert reported_growth(estimated_tokens, 10_000, 2.0).calibration == pytest.approx(1.9)
    assert reported_growth(estimated_tokens, 10_000, 0.5).calibration == pytest.approx(0.55)
    assert reported_growth(500, 1_000, 1.0).calibration == pytest.approx(1.5)


def test_without_news_the_calibration_returns_to_one():
    """A hundred reports without tracked text leave no trace of what was learned."""
    made = reported_growth(1_000, 2_000)
    for _ in range(100):
        made.report(102_000)
    assert made.calibration == pytest.approx(1.0, abs=1e-4)


def test_a_window_that_shrank_teaches_nothing():
    """When old content left the window, the estimate of new content is not to blame."""
    assert reported_growth(10_000, -20_000).calibration == 1.0


@pytest.mark.parametrize(
    ("tokens", "last", "fell"),
    [(70_000, 100_000, False), (69_999, 100_000, True), (100_000, 100_000, False),
     (200_000, 100_000, False), (0, 1, True), (0, 0, False), (1, 1, False)],
)  # fmt: skip
def test_only_a_fall_of_more_than_thirty_percent_is_a_compaction(tokens, last, fell):
    """From report to report, 30 % may go without an epoch ending: clients drop old results."""
    made = tracker()
    made.report(last)
    assert made.has_fallen(tokens) is fell
    assert made.report(tokens) is fell


def test_an_estimate_never_makes_a_report_look_like_a_fall():
    """A wrong estimate, or what a compaction left, is no report that usage could fall from."""
    assert not tracker("x" * 400_000).report(10)
    made = tracker()
    made.report(50_000)
    made.add("x" * 4_000_000)
    assert not made.report(51_000)
    made.start_epoch(100_000, 1.0)
    assert not made.report(10_000)


def test_what_is_given_to_stand_in_every_window_is_not_calibrated():
    """It is counted, not estimated: a window that was emptied holds just so much."""
    made = ContextTracker("chars/4", {"system": 10_000, "tools": 5_000})
    assert made.tokens == 15_000
    made.report(16_000)
    made.add("x" * 40_000)
    made.report(36_000)
    assert made.calibration == pytest.approx(1.5)
    made.start_epoch()
    assert made.tokens == 15_000
    made.add("x" * 4_000)
    assert made.tokens == 16_500
    second = ContextTracker("chars/4", {"system": 10_000, "tools": 5_000})
    second.restore(saved(made))
    assert second.tokens == made.tokens


def test_an_epoch_keeps_the_calibration_and_nothing_else():
    """How texts tokenize does not change when a window is emptied."""
    made = reported_growth(1_000, 2_000)
    made.add("more", "tool:read")
    made.start_epoch()
    assert made.calibration == pytest.approx(1.5)
    assert (made.tokens, made.cumulative_chars, made.by_source) == (0, 0, {})
    assert made.to_json() is None
    assert made.is_lower_bound
    assert not made.report(10)
    assert not made.is_lower_bound


def test_the_sources_are_bounded_in_number_and_length():
    """32 names are kept apart, the rest is one; a name cannot outgrow the state file."""
    made = tracker()
    for number in range(100):
        made.add("x" * 40, f"tool:{number}")
    made.add("x" * 40, "tool:0")
    assert len(made.by_source) == 33
    assert made.by_source["other"] == 68 * 10
    assert made.by_source["tool:0"] == 20
    long = tracker()
    long.add("x", "y" * 1_000_000)
    assert list(long.by_source) == ["y" * 100]


def test_text_without_a_source_is_untagged():
    """None and an empty name are the same nothing."""
    made = tracker("abcd")
    made.add("abcd", "")
    assert made.by_source == {"untagged": 2.0}


def test_a_restored_tracker_goes_on_where_it_stood():
    """After a restart the same report and the same text lead to the same tokens."""
    first = reported_growth(1_000, 2_000)
    first.report(120_000, 700, 9.0)
    first.add("x" * 4_000, "tool:read")
    second = tracker()
    second.restore(saved(first))
    for made in (first, second):
        made.add("y" * 8_000)
    assert second.tokens == first.tokens
    assert second.cumulative_chars == first.cumulative_chars == 16_000
    assert second.report(10_000) is first.report(10_000) is True


def test_a_tracker_of_a_state_without_readings_is_empty():
    """An agent that was lost before its first text restores to nothing."""
    made = tracker("before")
    made.restore(saved(tracker()))
    assert (made.tokens, made.source, made.is_lower_bound) == (0, "estimated", False)


def test_the_tracker_needs_only_the_fields_it_reads():
    """Anything with the four fields of a reading can be restored from."""
    reading = SimpleNamespace(
        anchor=None, estimated_tokens=250, cumulative_chars=1000, by_source=None, measured_at=None
    )
    made = ContextTracker("chars/4")
    made.restore(reading)
    assert made.tokens == 250
