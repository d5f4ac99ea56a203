"""A gauge whose memory is a stored state says what the gauge of a monitor says in memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultramon import ContextConfig
from ultramon.context.gauge import Gauge
from ultramon.context.ladder import CLAUDE_CODE_LADDER, Ladder, Rung
from ultramon.context.limits import LARGE_WINDOW_TOKENS
from ultramon.context.stored_gauge import NEAR_RATIO, StoredGauge
from ultramon.state.record import StateRecord, decode_state, encode_state
from ultramon.testing.clock import START, FakeClock

MODEL = "claude-sonnet-4-5"
FIELDS = (
    "epoch", "epoch_started_at", "measured_at", "estimated_tokens", "tokens_source", "anchor",
    "context_limit", "context_window", "limit_source", "limit_suspect", "limit_candidates",
    "usage_ratio", "threshold_status", "action", "ladder", "ladder_status", "announced", "forecast",
    "by_source", "cumulative_chars",
)  # fmt: skip
LADDERS = (
    CLAUDE_CODE_LADDER,
    Ladder.default(),
    Ladder((Rung("half", 0.5), Rung("near", None, 10_000, "force_return")), rearm_margin=None),
    Ladder((Rung("odd", 0.02, 150_000, "none"), Rung("top", 1.0))),
)


class Stored:
    """A hosted agent that lives in the bytes of a state file between two calls."""

    def __init__(self, ladder, cap, model=MODEL, after=START):
        record = StateRecord(
            "agent", run="run", session_id="agent", host="host", model=model, generation=1,
            epoch=1, epoch_started_at=START, announced={"epoch": 1, "rungs": {}}, by_source={},
            tokens_source="estimated", limit_source="unknown", action="none",
            extra={"memory": {"readingsAfter": after}},
        )  # fmt: skip
        self.ladder, self.cap = ladder, cap
        self.data = encode_state(record, "path")
        self.events = []
        self.call(lambda gauge: gauge.resolve_limit(), START)

    @property
    def record(self):
        return decode_state(self.data, "path")

    def gauge(self, now=START):
        record = self.record
        return record, StoredGauge(record, record.extra["memory"], self.ladder, self.cap, now)

    def call(self, change, now):
        record, gauge = self.gauge(now)
        result = change(gauge)
        self.events += gauge.events
        record.seq += 1
        self.data = encode_state(record, "path")
        return result

    def set_model(self, model, now):
        record, gauge = self.gauge(now)
        record.model = model
        record.extra["memory"].pop("highestTokens", None)
        gauge.resolve_limit()
        self.data = encode_state(record, "path")

    def take(self, tokens, now=START + 1, output=0, at=None):
        at = now if at is None else at
        return self.call(lambda gauge: gauge.take(tokens, output, at), now)


steps = st.lists(
    st.tuples(
        st.sampled_from(["drift"] * 20 + ["report"] * 3 + ["compaction", "model"]),
        st.integers(1, 260_000),
        st.integers(0, 9_000),
        st.integers(1, 300),
        st.sampled_from([0.0, 0.0, 0.0, 0.25, 7.25, 400.25]),
    ),
    max_size=50,
)


@settings(max_examples=150)
@given(steps, st.sampled_from(LADDERS), st.sampled_from([None, 1, 90_000, 200_000, 10**9]))
def test_it_agrees_with_the_gauge_of_a_monitor(taken, ladder, cap):
    """Reading for reading: level, ratio, epoch, limit, what was announced, and the forecast."""
    clock = FakeClock()
    config = ContextConfig(model=MODEL, context_limit_tokens=cap, ladder=ladder)
    gauge, stored = Gauge(config, clock), Stored(ladder, cap)
    crossings = last = 0
    for number, (kind, tokens, output, seconds, lag) in enumerate(taken):
        clock.advance(seconds)
        now = clock.now()
        at = now - lag - number / 1000 if lag else now  # no two replies at one time
        if kind == "drift":  # most calls add a little; some drop an old result
            last = max(1, last + tokens % 12_000 - 5_000)
        elif kind == "report":
            last = tokens
        if kind in ("report", "drift"):
            gauge.report(last, output, None, at)
            stored.take(last, now, output, at)
        elif kind == "compaction":
            gauge.start_epoch("compaction", None)
            stored.call(lambda one: one.begin_epoch("compaction"), now)
        else:
            model = MODEL if tokens % 2 else "claude-opus-4-6"
            gauge.set_model(model)
            stored.set_model(model, now)
        change = gauge.decide()
        crossings += change is not None and change.rising
        expected = StateRecord("agent")
        gauge.fill(expected)
        record = stored.record
        for name in FIELDS:
            if name != "usage_ratio" or record.measured_at is not None:
                assert getattr(record, name) == getattr(expected, name), (name, kind)
    rungs = sum(event["type"] == "context_threshold_reached" for event in stored.events)
    models = any(kind == "model" for kind, *_ in taken)
    assert models or rungs == crossings
    assert len({event["eventId"] for event in stored.events}) == len(stored.events)


def test_an_unmeasured_agent_has_no_ratio():
    """Nobody knows what is in a window before the first reply."""
    record = Stored(CLAUDE_CODE_LADDER, None).record
    assert (record.usage_ratio, record.threshold_status, record.context_limit) == (
        None, "normal", 200_000,
    )  # fmt: skip


@pytest.mark.parametrize("tokens", [0, -1, -(10**9)])
def test_nothing_is_no_reading(tokens):
    """Zeros stand where a host has no numbers."""
    stored = Stored(CLAUDE_CODE_LADDER, None)
    assert stored.take(tokens) is False
    assert stored.record.measured_at is None


@pytest.mark.parametrize(
    ("at", "taken"),
    [(None, False), (START - 1, False), (START, True), (START + 5, True), (START + 99, True)],
)
def test_a_reading_counts_from_the_beginning_of_the_window_on(at, taken):
    """One without a time is not taken, one from the future counts as now."""
    stored = Stored(CLAUDE_CODE_LADDER, None)
    assert stored.call(lambda gauge: gauge.take(5, 0, at), START + 10) is taken
    assert stored.record.measured_at == (min(at, START + 10) if taken else None)


def test_a_clock_that_was_set_back_does_not_stop_the_readings():
    """What is known bears a time that is yet to come; the next reading is taken all the same."""
    stored = Stored(CLAUDE_CODE_LADDER, None)
    assert stored.take(50_000, START + 10_000)
    assert stored.take(60_000, START + 100)
    assert (stored.record.estimated_tokens, stored.record.measured_at) == (60_000, START + 100)


def test_the_same_reading_again_changes_nothing():
    """Parallel hooks all read the same record."""
    stored = Stored(CLAUDE_CODE_LADDER, None)
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

    stored = Stored(CLAUDE_CODE_LADDER, None)
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
        ([150_000], False),  # above the last
        ([1_000, 40_000], False),
        ([1_000, 60_000], True),  # another step or two of this length
        ([60_000, 1_000], False),
    ],
)
def test_near_is_what_the_next_call_may_reach(readings, near):
    """A tenth of the limit, or twice the longest of the last steps."""
    assert NEAR_RATIO == 0.10
    stored = Stored(CLAUDE_CODE_LADDER, None)
    for number, tokens in enumerate(readings):
        stored.take(tokens, START + number)
    _, gauge = stored.gauge()
    assert gauge.is_near(readings[-1]) is near


def test_where_no_limit_is_known_nothing_is_near():
    """Nor is there a rung ahead."""
    stored = Stored(CLAUDE_CODE_LADDER, None, model=None)
    stored.take(900_000)
    _, gauge = stored.gauge()
    assert not gauge.is_near(900_000)
    assert gauge.describe_pace() == ""
    assert stored.record.threshold_status is None


def test_a_wrong_window_is_not_believed_until_another_is_told():
    """More was reported than it holds: tokens only, then levels again."""
    stored = Stored(CLAUDE_CODE_LADDER, None)
    stored.take(150_000, START + 1)
    stored.take(201_000, START + 2)
    record = stored.record
    assert (record.context_limit, record.threshold_status, record.action) == (None, None, "none")
    assert (record.limit_suspect, record.usage_ratio, record.forecast) == (True, None, None)
    record, gauge = stored.gauge(START + 3)
    record.extra["memory"]["windowTokens"] = LARGE_WINDOW_TOKENS
    gauge.resolve_limit()
    assert (record.context_limit, record.threshold_status) == (LARGE_WINDOW_TOKENS, "normal")
    assert gauge.events == []
