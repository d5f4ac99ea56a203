"""The gauge of a monitor: text and readings in, levels out; epochs, suspect limits, restarts."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultramon.context.config import ContextConfig
from ultramon.context.gauge import is_lower_bound
from ultramon.context.ladder import Ladder, Rung
from ultramon.context.monitor_gauge import Fit, MonitorGauge
from ultramon.errors import ConfigurationError
from ultramon.state.record import decode_state, encode_state
from ultramon.testing import FakeClock

LIMIT = 100_000


def gauge(clock=None, **settings):
    """A gauge of the plain four-characters-a-token family with a limit of 100,000 tokens."""
    given = {"context_limit_tokens": LIMIT, "tokenizer_family": "chars/4", **settings}
    return MonitorGauge(ContextConfig(**given), clock or FakeClock())


def report(made, tokens, output_tokens=0, window_tokens=None, at=None):
    """A report and the decision after it, as a monitor does it; returns what happened."""
    made.report(tokens, output_tokens, window_tokens, at)
    return made.decide()


def epoch_start(reason, before, after):
    """What a decision returns of an epoch that began."""
    details = {"reason": reason, "tokensBefore": before, "tokensAfter": after}
    return ("context_epoch_started", details)


def moved(made):
    """Decide; return the former level, the new one and the kind of the change, None without one."""
    facts = [(kind, fact) for kind, fact in made.decide() if "level" in fact]
    return [(fact["previousLevel"], fact["level"], kind) for kind, fact in facts] or None


def saved(made):
    """The state of a gauge, through the bytes of a real state file."""
    return decode_state(encode_state(made.snapshot(), "x"), "x")


def restarted(made, **settings):
    """A gauge in another process that continues from the saved state."""
    again = gauge(**settings)
    again.restore(saved(made))
    return again


def test_the_level_follows_the_ratio():
    """Up at once, with the action and message of the rung."""
    made = gauge()
    report(made, 10_000)
    assert (made.level, made.usage_ratio) == ("normal", 0.1)
    report(made, 70_000)
    assert (made.level, made.usage_ratio) == ("warning", 0.7)
    assert made.action.should_prepare
    report(made, 95_000)
    assert made.action.should_return
    assert made.announced == {"warning": 1, "critical": 1}


def test_a_decision_tells_the_change_only_once():
    """Deciding again on the same reading changes nothing."""
    made = gauge()
    made.report(95_000, 0, None, None)
    assert moved(made) == [("normal", "critical", "context_threshold_reached")]
    assert made.decide() == []
    assert made.changed_action().changed
    assert not made.action.changed


@given(st.lists(st.integers(0, 12_000), max_size=40))
def test_adding_says_when_a_decision_is_due(lengths):
    """Whenever the level would change, add() returns True: no crossing is slept through."""
    made, careful = gauge(), gauge()
    for length in lengths:
        text = "x" * (4 * length)
        due = made.add(text, None)
        careful.add(text, None)
        assert careful.decide() == [] or due
        if due:
            made.decide()
        assert made.level == careful.level


def test_an_unknown_limit_has_no_level_and_asks_nothing():
    """A model nobody knows: tokens are counted, nothing is guessed."""
    made = gauge(context_limit_tokens=None, model="nobody-knows-this-one")
    assert made.add("x" * 4_000_000, None)
    assert not made.add("x", None)
    made.decide()
    assert (made.level, made.usage_ratio, made.tokens) == (None, None, 1_000_001)
    assert made.action.action == "none"
    assert made.fits(10**9) == Fit(True, None, 0)
    report(made, 900_000, window_tokens=1_000_000)
    assert (made.level, made.record.limit_source) == ("critical", "observed")


def test_what_would_fit_is_said_before_it_goes_in():
    """Level after, tokens over, and no as soon as a rung would ask to return."""
    made = gauge()
    report(made, 60_000, output_tokens=1_000)
    assert made.fits(8_000) == Fit(True, "normal", 0)
    assert made.fits(9_000) == Fit(True, "warning", 0)
    assert made.fits(24_000) == Fit(False, "critical", 0)
    assert made.fits(40_000) == Fit(False, "critical", 1_000)
    assert made.fits("x" * 36_000).level_after == "warning"
    assert (made.tokens, made.level) == (60_000, "normal")


def test_a_report_of_nothing_is_no_reading():
    """But a window that comes with it is believed."""
    made = gauge(context_limit_tokens=None, model="nobody-knows-this-one")
    made.add("x" * 40, None)
    assert report(made, 0, window_tokens=200_000) == []
    assert (made.tokens, saved(made).tokens_source) == (10, "estimated")
    assert made.record.context_limit == 200_000


def test_a_fall_between_reports_starts_an_epoch():
    """Level, pace and announcements go, and the rungs can fire again."""
    made = gauge()
    report(made, 90_000)
    assert report(made, 30_000) == [epoch_start("fall", 90_000, 30_000)]
    assert (made.record.epoch, made.level, made.announced) == (2, "normal", {})
    report(made, 90_000)
    assert (made.level, made.announced) == ("critical", {"critical": 1})


def test_a_fall_of_thirty_percent_is_none():
    """A smaller fall stays in its epoch, and the level falls by the margin."""
    made = gauge()
    report(made, 90_000)
    assert [kind for kind, _ in report(made, 63_000)] == ["context_relaxed"]
    assert (made.record.epoch, made.level) == (1, "normal")


def test_a_compaction_that_does_not_say_what_is_left_leaves_no_ratio():
    """Until the next reading the ratio is unknown, not zero."""
    made = gauge()
    report(made, 90_000)
    made.begin_epoch("compaction", None)
    assert made.decide() == [epoch_start("compaction", 90_000, None)]
    assert (made.usage_ratio, made.level, made.record.measured_at) == (None, None, None)
    report(made, 20_000)
    assert made.usage_ratio == 0.2


def test_text_after_such_a_compaction_is_a_lower_bound():
    """No ratio, no normal and no pace, also after a restart, until a report says how much it is."""
    made = gauge()
    report(made, 50_000)
    made.begin_epoch("compaction", None)
    for _ in range(5):
        made.add("x" * 4_000, None)
        made.decide()
    for one in (made, restarted(made)):
        state = saved(one)
        assert is_lower_bound(state)
        assert (state.estimated_tokens, state.usage_ratio, state.threshold_status) == (
            5_000, None, None,
        )  # fmt: skip
        assert state.forecast is None
        assert one.action.level == "unknown"
        assert one.fits(1_000) == Fit(True, None, 0)
        assert one.fits(80_000).level_after == "critical"
        assert "at least 5,000 of 100,000 tokens, estimated" in one.note()
    report(made, 9_000)
    assert (made.level, made.usage_ratio) == ("normal", 0.09)
    assert not is_lower_bound(saved(made))


def test_a_lower_bound_reaches_a_rung_and_only_a_known_ratio_relaxes_it():
    """What was reached stays: more text, a restart and no reading change nothing about it."""
    made = gauge()
    report(made, 50_000)
    made.begin_epoch("compaction", None)
    assert made.add("x" * 4 * 72_000, None)
    assert moved(made) == [("normal", "warning", "context_threshold_reached")]
    assert (made.usage_ratio, made.announced) == (None, {"warning": 1})
    made.add("x" * 400, None)
    again = restarted(made)
    for one in (made, again):
        assert one.decide() == []
        assert (one.level, one.action.action) == ("warning", "prepare_handoff")
    again.report(20_000, 0, None, None)
    assert moved(again) == [("warning", "normal", "context_relaxed")]


def test_an_emptied_window_is_known_to_be_empty():
    """A clear says so; nobody else who has not read it can."""
    made = gauge()
    report(made, 90_000)
    made.begin_epoch("clear", 0)
    made.decide()
    assert (made.level, made.usage_ratio) == ("normal", 0.0)


def test_a_stale_report_changes_nothing():
    """Older than the epoch or than the last reading: late news from before a compaction."""
    clock = FakeClock()
    made = gauge(clock)
    clock.advance(100)
    report(made, 50_000, at=clock.now() - 10)
    report(made, 99_000, at=clock.now() - 10)
    report(made, 99_000, window_tokens=400_000, at=clock.now() - 50)
    assert made.tokens == 50_000
    made.begin_epoch("clear", 0)
    report(made, 99_000, at=clock.now() - 5)
    assert (made.tokens, made.level) == (0, "normal")
    clock.advance(1)
    report(made, 30_000, at=clock.now())
    assert made.tokens == 30_000


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -1.0, 1e300, 1_767_225_700_000.0])
def test_an_impossible_time_counts_as_now(at):
    """Milliseconds for seconds, or not a number: the reading counts and can be saved."""
    clock = FakeClock()
    made = gauge(clock)
    clock.advance(1)
    report(made, 50_000, at=at)
    assert (made.tokens, made.record.measured_at) == (50_000, clock.now())
    clock.advance(1)
    report(made, 60_000, at=clock.now())
    assert saved(made).estimated_tokens == 60_000


@pytest.mark.parametrize("jump", [-3_600, 3_600, -30 * 86_400, 400_000_000])
def test_a_clock_that_jumps_does_not_blind_the_gauge(jump):
    """Reports stamped by the new time are readings, whichever way it jumped."""
    clock = FakeClock()
    made = gauge(clock)
    clock.advance(10)
    report(made, 50_000, at=clock.now())
    clock.jump(jump)
    clock.advance(10)
    report(made, 75_000, at=clock.now())
    assert (made.tokens, made.level) == (75_000, "warning")


def test_more_reported_tokens_than_the_window_holds_make_it_suspect():
    """The table's window is not believed any more: no level rather than critical for ever."""
    made = gauge(context_limit_tokens=None, model="claude-sonnet-4-5")
    window = made.record.context_window
    made.add("x" * (4 * window + 400), None)
    assert not made.record.limit_suspect
    report(made, window + 1)
    assert made.record.limit_suspect
    assert (made.level, made.usage_ratio, made.action.action) == (None, None, "none")
    report(made, window + 1, window_tokens=10 * window)
    assert made.usage_ratio == pytest.approx(0.1, abs=0.01)


def test_a_disproved_window_never_leads_back_to_normal():
    """At 215,000 of an assumed 200,000 the level is unknown, and the one reached waits."""
    made = gauge(context_limit_tokens=None, model=None)
    for tokens in (150_000, 175_000):
        report(made, tokens)
    assert made.level == "critical"
    report(made, 215_000)
    assert made.decide() == []
    assert (made.level, made.action.level, made.action.action) == (None, "unknown", "none")
    made.add("x", None)
    assert made.action.level == "unknown"


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(
    ("window_tokens", "change", "announced"),
    [
        (
            1_000_000,
            [("critical", "normal", "context_relaxed")],
            {"warning": 1, "critical": 1},
        ),
        (250_000, None, {"warning": 1, "critical": 1}),
    ],
)
def test_a_limit_that_comes_back_announces_nothing_twice(
    is_restarted, window_tokens, change, announced
):
    """What was announced is the level to start from: one that still holds is no news."""
    settings = {"context_limit_tokens": None, "model": None}
    made = gauge(**settings)
    for tokens in (150_000, 175_000, 215_000):
        report(made, tokens)
    made = restarted(made, **settings) if is_restarted else made
    made.report(216_000, 0, window_tokens, None)
    assert moved(made) == change
    assert made.announced == announced


def test_a_disproved_window_lets_the_next_source_answer():
    """Reported were more tokens than the provider once stated: the table of models is asked."""
    made = gauge(context_limit_tokens=None, model="claude-sonnet-4-5")
    report(made, 50_000, window_tokens=100_000)
    report(made, 150_000)
    assert (made.record.limit_source, made.record.limit_suspect, made.level) == (
        "model",
        True,
        "warning",
    )


def test_a_window_smaller_than_the_reserved_output_is_not_meant():
    """What was known before stays in force."""
    made = gauge(context_limit_tokens=None, model="claude-sonnet-4-5", reserved_output_tokens=8_000)
    before = made.record.context_limit
    report(made, 1_000, window_tokens=4_000)
    assert made.record.context_limit == before
    with pytest.raises(ConfigurationError, match="reserved_output_tokens"):
        gauge(context_limit_tokens=None, model="claude-sonnet-4-5", reserved_output_tokens=10**7)


def test_another_model_brings_its_own_window():
    """What was observed of the former one is forgotten."""
    made = gauge(context_limit_tokens=None, model="nobody-knows-this-one")
    report(made, 50_000, window_tokens=60_000)
    assert made.level == "warning"
    made.set_model("claude-sonnet-4-5")
    made.decide()
    assert (made.level, made.record.limit_source) == ("normal", "model")


def test_a_refusal_fills_the_window():
    """What the provider counted, or at least everything up to the limit, is in the window."""
    made = gauge(context_limit_tokens=None, model="nobody-knows-this-one")
    made.overflow(130_000, 128_000)
    made.decide()
    assert (made.tokens, made.level) == (130_000, "critical")
    assert made.record.context_limit == 128_000
    plain = gauge()
    plain.overflow(None, None)
    assert plain.tokens == LIMIT


def test_a_refusal_that_tells_nothing_is_no_reading_of_nothing():
    """Without a number and a limit it stays unknown; zero tokens would be a statement."""
    made = gauge(context_limit_tokens=None, model="nobody-knows-this-one")
    made.overflow(None, None)
    assert (made.tokens, made.record.measured_at) == (0, None)


def test_a_restart_announces_nothing_again():
    """Level, epoch and announcements come back; the next reading is no news."""
    made = gauge()
    report(made, 90_000)
    report(made, 20_000)
    report(made, 75_000)
    again = restarted(made)
    assert (again.record.epoch, again.level, again.announced) == (2, "warning", {"warning": 1})
    assert again.decide() == []
    report(again, 76_000)
    assert again.announced == {"warning": 1}
    assert saved(again).to_json().keys() == saved(made).to_json().keys()


def test_a_restart_keeps_the_window_that_was_observed():
    """Without it 300,000 of a million would read as critical until the next report."""
    settings = {"context_limit_tokens": None, "model": None}
    made = gauge(**settings)
    report(made, 300_000, window_tokens=1_000_000)
    again = restarted(made, **settings)
    assert (again.record.limit_source, again.usage_ratio) == ("observed", 0.3)
    assert again.decide() == []


def test_a_restart_does_not_believe_a_refuted_window_again():
    """Also in a later epoch, where few tokens are left in the window."""
    settings = {"context_limit_tokens": None, "model": "claude-sonnet-4-5"}
    made = gauge(**settings)
    report(made, 10**7)
    made.begin_epoch("compaction", 1_000)
    assert made.record.limit_suspect
    again = restarted(made, **settings)
    assert again.record.limit_suspect
    assert again.usage_ratio is None


def test_an_ended_agent_that_starts_again_has_a_new_epoch():
    """Readings of its former life are stale."""
    made = gauge()
    report(made, 90_000)
    again = gauge()
    again.begin_after(saved(made))
    assert (again.record.epoch, again.tokens, again.level, again.usage_ratio) == (2, 0, None, None)


def test_a_note_has_the_numbers_of_the_moment():
    """Tokens, limit, origin, the turns before the rung ahead or the limit, and the tasks."""
    clock = FakeClock()
    made = MonitorGauge(ContextConfig(context_limit_tokens=LIMIT), clock, lambda: (7, 20))
    for tokens in (10_000, 20_000, 30_000, 40_000):
        clock.advance(30)
        report(made, tokens)
    at = f"reported {datetime.fromtimestamp(clock.now(), UTC):%H:%M}Z"
    note = made.note()
    assert f"40,000 of {LIMIT:,} tokens (40 %), {at}" in note
    assert "about 1 to 12 turns remain before 70 %" in note
    assert "7 of 20 items" in note
    ahead = made.forecast()["rungs"]["critical"]
    assert (ahead["turnsLow"], ahead["turns"], ahead["turnsHigh"]) == (1, 8, None)
    assert ahead["seconds"] == ahead["turns"] * 30.0
    report(made, 90_000)
    assert f"90,000 of {LIMIT:,} tokens (90 %)" in made.action.note
    assert "about 0 to 4 turns remain before the limit" in made.action.note


def test_a_ladder_of_ones_own_decides_by_its_names():
    """A dropped rung is no level any more, and the state says that the ladder is invalid."""
    ladder = Ladder([Rung("half", 0.5), Rung("last", None, 200_000, "force_return")], base="calm")
    made = gauge(ladder=ladder)
    report(made, 1_000)
    assert made.level == "calm"
    report(made, 99_000)
    assert made.level == "half"
    assert saved(made).ladder_status == "invalid"
    assert saved(made).ladder == json.loads(json.dumps(ladder.to_json()))
