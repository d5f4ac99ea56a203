"""The gauge of an agent that is known from its stored state alone, as hooks see it."""

import pytest
from helpers.stored_gauge import Stored

from ultramon.context.gauge import NEAR_RATIO, Gauge
from ultramon.context.ladder import CLAUDE_CODE_LADDER as DEFAULT_LADDER
from ultramon.context.ladder import Ladder
from ultramon.context.limits import LARGE_WINDOW_TOKENS
from ultramon.context.tracker import ContextTracker
from ultramon.hosts.calls.memory import HookMemory
from ultramon.state.record import StateRecord
from ultramon.testing.clock import START


def test_an_unmeasured_agent_has_neither_ratio_nor_level():
    """Nobody knows what is in a window before the first reply."""
    record = Stored(DEFAULT_LADDER, None).record
    assert (record.usage_ratio, record.threshold_status, record.context_limit) == (
        None, None, 200_000,
    )  # fmt: skip


@pytest.mark.parametrize("tokens", [0, -1, -(10**9)])
def test_nothing_is_no_reading(tokens):
    """Zeros stand where a host has no numbers."""
    stored = Stored(DEFAULT_LADDER, None)
    assert stored.take(tokens) is False
    assert stored.record.measured_at is None


@pytest.mark.parametrize(
    ("at", "taken"),
    [(None, True), (START - 1, False), (START, True), (START + 5, True), (START + 99, True)],
)
def test_a_reading_counts_from_the_beginning_of_the_window_on(at, taken):
    """One without a time and one from the future count as now."""
    stored = Stored(DEFAULT_LADDER, None)
    assert stored.call(lambda gauge: gauge.take(5, 0, at), START + 10) is taken
    assert stored.record.measured_at == (min(at or START + 10, START + 10) if taken else None)


def test_a_clock_that_was_set_back_does_not_stop_the_readings():
    """What is known bears a time that is yet to come; the next reading is taken all the same."""
    stored = Stored(DEFAULT_LADDER, None)
    assert stored.take(50_000, START + 10_000)
    assert stored.take(60_000, START + 100)
    assert (stored.record.estimated_tokens, stored.record.measured_at) == (60_000, START + 100)


def test_the_same_reading_again_changes_nothing():
    """Parallel hooks all read the same record."""
    stored = Stored(DEFAULT_LADDER, None)
    for now in (1, 2, 3):
        stored.take(140_000 + now, START + now)
    before, events = stored.record, list(stored.events)
    for now in (4, 5):
        assert stored.call(lambda gauge: gauge.take(140_003, 0, START + 3), START + now)
    assert stored.events == events
    after = stored.record
    assert (after.forecast, after.announced) == (before.forecast, before.announced)
    assert after.extra == before.extra


def test_an_event_is_the_same_event_when_its_state_was_not_stored():
    """A hook killed between journal and state makes it again under the same key."""
    from ultramon.state.event_keys import event_key

    stored = Stored(DEFAULT_LADDER, None)
    data = stored.data
    stored.take(140_000)
    stored.data = data
    stored.take(141_000)
    first, second = stored.events
    assert event_key(first) == event_key(second)
    assert first["eventId"] != second["eventId"]


@pytest.mark.parametrize(
    ("readings", "near"),
    [
        ([10_000], False),
        ([108_000], False),
        ([109_000], True),  # a tenth of the limit before 64.5 %
        ([128_999], True),
        ([140_000], True),  # in the first rung, near the next
        ([150_000], True),  # above the last, where the reading itself is what matters
        ([150_000, 110_000], True),  # below the first rung again, and near it
        ([150_000, 20_000], False),
        ([1_000, 40_000], False),
        ([1_000, 60_000], True),  # another step or two of this length
        ([60_000, 1_000], False),
    ],
)
def test_near_is_what_the_next_call_may_reach(readings, near):
    """A tenth of the limit, or twice the longest of the last steps."""
    assert NEAR_RATIO == 0.10
    stored = Stored(DEFAULT_LADDER, None)
    for number, tokens in enumerate(readings):
        stored.take(tokens, START + number)
    _, gauge = stored.gauge()
    assert gauge.is_near(readings[-1]) is near


def test_where_no_limit_is_known_nothing_is_near():
    """Nor is there a rung ahead."""
    stored = Stored(DEFAULT_LADDER, None, model=None)
    stored.take(900_000)
    _, gauge = stored.gauge()
    assert not gauge.is_near(900_000)
    assert gauge.describe_pace() == ""
    assert stored.record.threshold_status is None


def test_a_wrong_window_is_not_believed_until_another_is_told():
    """More was reported than it holds: tokens only, then a known ratio relaxes the level."""
    stored = Stored(DEFAULT_LADDER, None)
    stored.take(150_000, START + 1)
    stored.take(201_000, START + 2)
    record = stored.record
    assert (record.context_limit, record.threshold_status, record.action) == (None, None, "none")
    assert (record.limit_suspect, record.usage_ratio, record.forecast) == (True, None, None)
    record, gauge = stored.gauge(START + 3)
    record.extra["memory"]["windowTokens"] = LARGE_WINDOW_TOKENS
    gauge.resolve_limit()
    assert (record.context_limit, record.threshold_status) == (LARGE_WINDOW_TOKENS, "normal")
    (relaxed,) = gauge.events
    assert (relaxed["type"], relaxed["previousLevel"]) == ("context_relaxed", "critical")


def test_a_limit_that_comes_back_announces_nothing_twice():
    """Stored is null meanwhile: what was announced is the level to continue from."""
    stored = Stored(DEFAULT_LADDER, None)
    for number, tokens in enumerate((150_000, 175_000, 215_000)):
        stored.take(tokens, START + number)
    assert stored.record.threshold_status is None
    (reached,) = stored.events
    assert (reached["level"], reached["contextLimit"]) == ("critical", 200_000)
    record, gauge = stored.gauge(START + 9)
    record.extra["memory"]["windowTokens"] = 250_000
    gauge.resolve_limit()
    assert (record.threshold_status, record.action) == ("critical", "force_return")
    assert gauge.events == []
    assert record.announced["rungs"] == {"critical": 1}


def test_a_fall_is_just_a_number_where_compactions_are_announced():
    """The level relaxes, and the epoch stays."""
    record = StateRecord("agent", epoch=1, announced={"epoch": 1, "rungs": {}})
    memory = {"windowTokens": 200_000}
    made = Gauge(
        record, Ladder.default(), ContextTracker(), lambda: START, memory=HookMemory.of(memory),
        falls_begin_epochs=False, takes_repeats=True,
    )  # fmt: skip
    made.resolve_limit()
    for tokens in (150_000, 20_000):
        made.take(tokens)
    assert (record.epoch, record.threshold_status) == (1, "normal")
    assert [event["type"] for event in made.events] == [
        "context_threshold_reached", "context_relaxed",
    ]  # fmt: skip


@pytest.mark.parametrize(("takes_repeats", "tokens"), [(True, 60_000), (False, 50_000)])
def test_a_repeat_is_taken_from_hooks_only(takes_repeats, tokens):
    """Hooks that run in parallel read one record; a monitor's caller reports a response once."""
    record = StateRecord("agent", epoch=1, announced={"epoch": 1, "rungs": {}})
    made = Gauge(
        record, DEFAULT_LADDER, ContextTracker(), lambda: START + 9, memory=HookMemory(),
        takes_repeats=takes_repeats,
    )  # fmt: skip
    made.take(50_000, at=START)
    assert made.take(60_000, at=START) is takes_repeats
    assert record.estimated_tokens == tokens
