"""Epochs, overflow, suspect limits and what would fit. Real monitors, fake clock."""

import pytest

from ultramon import Level
from ultramon.errors import InvalidUsageError
from ultramon.testing import fill

LIMIT = {"context_limit_tokens": 100_000, "tokenizer_family": "chars/4"}


def events_of(store, *kinds):
    return [event for event in store.events().events if event["type"] in kinds]


def test_a_compaction_begins_an_epoch(make, store):
    """One step: the epoch rises, level and reading drop, what was announced may be said again."""
    monitor = make("scout-1", **LIMIT)
    fill(monitor, 0.9)
    assert monitor.get_state().announced.model_dump() == {"epoch": 1, "rungs": {"critical": 1}}
    action = monitor.record_compaction(20_000)
    assert (action.level, action.changed) == (Level.NORMAL, True)
    state = monitor.get_state()
    assert (state.epoch, state.estimated_tokens, state.usage_ratio) == (2, 20_000, 0.2)
    assert (state.announced.model_dump(), state.forecast) == ({"epoch": 2, "rungs": {}}, None)
    (event,) = events_of(store, "context_epoch_started")
    assert (event["reason"], event["tokensBefore"], event["tokensAfter"]) == (
        "compaction",
        90_000,
        20_000,
    )
    fill(monitor, 0.9)
    assert [event["epoch"] for event in events_of(store, "context_threshold_reached")] == [1, 2]


def test_after_a_compaction_nothing_is_known_until_told(make):
    """A compaction that does not say what it left gives a null ratio until the next report."""
    monitor = make("scout-1", **LIMIT)
    fill(monitor, 0.9)
    monitor.record_compaction()
    state = monitor.get_state()
    assert (state.usage_ratio, state.threshold_status, state.measured_at) == (None, None, None)
    monitor.track_content("x" * 40)
    assert monitor.get_state().usage_ratio is None
    assert fill(monitor, 0.2).level == Level.NORMAL
    assert monitor.get_state().usage_ratio == 0.2


def test_a_compaction_that_left_much_is_announced(make, store):
    """A window that is still critical after a compaction is critical in the new epoch."""
    monitor = make("scout-1", **LIMIT)
    fill(monitor, 0.95)
    assert monitor.record_compaction(90_000).level == Level.CRITICAL
    kinds = [(event["type"], event["epoch"]) for event in store.events().events]
    assert kinds == [
        ("agent_started", 1),
        ("context_threshold_reached", 1),
        ("context_epoch_started", 2),
        ("context_threshold_reached", 2),
    ]


def test_clear_empties_the_window(make, store):
    """After a clear the window is known to be empty."""
    monitor = make("scout-1", **LIMIT)
    fill(monitor, 0.9)
    assert monitor.clear().level == Level.NORMAL
    state = monitor.get_state()
    assert (state.epoch, state.usage_ratio) == (2, 0.0)
    assert [event["reason"] for event in events_of(store, "context_epoch_started")] == ["clear"]


def test_the_handoff_survives_an_epoch(make):
    """What an agent left for a successor stays in its state after a clear."""
    monitor = make("scout-1", **LIMIT)
    record = monitor.hand_off(notes="look at b.py")
    monitor.clear()
    assert monitor.get_state().handoff["handoffId"] == record.handoff_id


@pytest.mark.parametrize(("tokens", "epoch"), [(70_000, 1), (69_999, 2)])
def test_a_deep_fall_of_reports_begins_an_epoch(make, store, tokens, epoch):
    """A report more than 30 % below the last one shows that the window was compacted."""
    monitor = make("scout-1", **LIMIT)
    monitor.report_usage(input_tokens=100_000)
    monitor.report_usage(input_tokens=tokens)
    state = monitor.get_state()
    assert (state.epoch, state.estimated_tokens) == (epoch, tokens)
    reasons = [event["reason"] for event in events_of(store, "context_epoch_started")]
    assert reasons == ["fall"] * (epoch - 1)


def test_an_estimate_against_a_report_is_no_fall(make):
    """A first report far below what was estimated corrects the estimate in the same epoch."""
    monitor = make("scout-1", **LIMIT)
    monitor.track_content("x" * 360_000)
    monitor.report_usage(input_tokens=10_000)
    state = monitor.get_state()
    assert (state.epoch, state.estimated_tokens, state.threshold_status) == (1, 10_000, "normal")


def test_a_rung_fires_again_only_below_its_rearm_ratio(make, store):
    """Swinging around a threshold is one announcement; a real fall re-arms and is counted."""
    monitor = make("scout-1", **LIMIT)
    for ratio in (0.7, 0.69, 0.71, 0.65, 0.72, 0.64, 0.7):
        fill(monitor, ratio)
    kinds = [(event["type"], event["n"]) for event in events_of(store, "context_relaxed")]
    assert kinds == [("context_relaxed", 0)]
    crossings = events_of(store, "context_threshold_reached")
    assert [(event["usageRatio"], event["n"]) for event in crossings] == [(0.7, 0), (0.7, 1)]
    assert monitor.get_state().announced.rungs == {"warning": 2}


def test_without_a_margin_only_an_epoch_rearms(make, store):
    """With rearm_margin=None a level never falls within an epoch."""
    monitor = make("scout-1", **LIMIT, rearm_margin=None)
    for ratio in (0.7, 0.5, 0.7):
        fill(monitor, ratio)
    assert len(events_of(store, "context_threshold_reached")) == 1
    monitor.clear()
    fill(monitor, 0.7)
    assert len(events_of(store, "context_threshold_reached")) == 2


def test_a_report_above_the_window_makes_the_limit_suspect(make, store):
    """A table's window that cannot be right is not believed: unknown, not critical for ever."""
    monitor = make("scout-1")
    monitor.report_usage(input_tokens=150_000)
    action = monitor.report_usage(input_tokens=250_000)
    assert (action.level, action.action) == (Level.UNKNOWN, "none")
    state = monitor.get_state()
    assert (state.limit_suspect, state.context_limit, state.usage_ratio) == (True, None, None)
    assert (state.threshold_status, state.limit_source) == (None, "unknown")
    assert [event["level"] for event in events_of(store, "context_threshold_reached")] == [
        "warning"
    ]


def test_a_suspect_limit_heals(make):
    """As soon as the provider says better, ratio and level are back."""
    monitor = make("scout-1")
    monitor.report_usage(input_tokens=250_000)
    monitor.report_usage(input_tokens=260_000, context_window_tokens=1_000_000)
    state = monitor.get_state()
    assert (state.limit_suspect, state.context_limit, state.usage_ratio) == (
        False,
        1_000_000,
        0.26,
    )
    assert state.threshold_status == "normal"


def test_a_configured_window_is_never_suspect(make):
    """What the user said holds, however much is reported."""
    monitor = make("scout-1", context_window_tokens=200_000)
    assert monitor.report_usage(input_tokens=250_000).level == Level.CRITICAL
    assert monitor.get_state().limit_suspect is False
    assert monitor.get_state().usage_ratio == 1.25


def test_an_estimate_never_makes_a_limit_suspect(make):
    """Only a provider's count can prove a window wrong."""
    monitor = make("scout-1", tokenizer_family="chars/4")
    assert monitor.track_content("x" * 1_000_000).level == Level.CRITICAL
    assert monitor.get_state().limit_suspect is False


def test_an_overflow_is_a_full_window(make):
    """A refused prompt makes the agent critical; the size the provider names is believed."""
    monitor = make("scout-1", model="nobody-knows-this-one")
    refusal = RuntimeError("prompt is too long: 210000 tokens > 200000 maximum")
    assert monitor.report_overflow(refusal) is True
    state = monitor.get_state()
    assert (state.context_limit, state.limit_source) == (200_000, "observed")
    assert (state.estimated_tokens, state.threshold_status) == (210_000, "critical")
    assert monitor.hand_off().reason == "context_overflow"
    monitor.clear()
    assert monitor.hand_off().reason == "task_complete"


def test_an_overflow_without_numbers_fills_the_known_limit(make):
    """A refusal that names no size counts as full."""
    monitor = make("scout-1", **LIMIT)
    assert monitor.report_overflow("Error: input is too long for requested model") is True
    assert monitor.get_state().usage_ratio == 1.0


def test_another_error_is_no_overflow(make):
    """A rate limit in tokens changes nothing."""
    monitor = make("scout-1", **LIMIT)
    before = monitor.get_state()
    assert monitor.report_overflow("rate limit: 40000 tokens per minute") is False
    assert monitor.get_state() == before


@pytest.mark.parametrize(
    ("more", "fit"),
    [
        (0, (True, "normal", 0)),
        (19_999, (True, "normal", 0)),
        (20_000, (True, "warning", 0)),
        (34_999, (True, "warning", 0)),
        (35_000, (False, "critical", 0)),
        (60_000, (False, "critical", 10_000)),
        ("x" * 80_000, (True, "warning", 0)),
    ],
)
def test_fits_says_what_would_happen(make, more, fit):
    """Asked before a large text goes in, it names the level after it and changes nothing."""
    monitor = make("scout-1", **LIMIT)
    fill(monitor, 0.5)
    before = monitor.get_state()
    assert monitor.fits(more) == fit
    assert monitor.get_state() == before


def test_fits_counts_the_reply(make):
    """The last reply is in the window of the next request, so it counts."""
    monitor = make("scout-1", **LIMIT)
    monitor.report_usage(input_tokens=50_000, output_tokens=20_000)
    assert monitor.fits(0).level_after == "warning"


def test_with_an_unknown_limit_everything_fits(make):
    """Nothing is refused on a guess."""
    monitor = make("scout-1", model="nobody-knows-this-one")
    assert monitor.fits(10_000_000) == (True, None, 0)


@pytest.mark.parametrize("more", [-1, True, 1.5])
def test_fits_refuses_what_is_no_number_of_tokens(make, more):
    """An impossible number of tokens is refused by name."""
    with pytest.raises(InvalidUsageError, match="text_or_tokens"):
        make("scout-1", **LIMIT).fits(more)


@pytest.mark.parametrize("tokens", [-1, True, 1.5, "3"])
def test_a_compaction_refuses_what_is_no_number_of_tokens(make, tokens):
    """A refused compaction begins no epoch."""
    monitor = make("scout-1", **LIMIT)
    with pytest.raises(InvalidUsageError, match="tokens_after"):
        monitor.record_compaction(tokens)
    assert monitor.get_state().epoch == 1
