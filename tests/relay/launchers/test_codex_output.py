"""How a context of Codex ended, read from recorded outputs and rollouts of the real client.

Recorded with 0.169.0 against a stand-in API: of each run what it printed, and of its rollout the
lines about usage and turns.
"""

import json
import os
import time
from datetime import datetime

import pytest
from helpers import DATA
from hypothesis import given
from hypothesis import strategies as st

from ultramon.hosts.codex.last_reading import read_last_reading
from ultramon.hosts.transcripts.records import OVERFLOW
from ultramon.relay.launchers.codex import read_outcome
from ultramon.relay.launchers.outcome import (
    COMPLETED,
    CUT_OFF,
    FAILED,
    LIMITED,
    OVERFLOWED,
    OVERLOADED,
    RATE,
    USAGE,
    ProviderLimit,
    SpentTokens,
)

RECORDED = DATA / "exec_json" / "codex-0.169.0"


def outcome_of(name, exit_code, lines=None):
    recorded = (RECORDED / f"{name}.jsonl").read_bytes().splitlines()
    rollout = RECORDED / f"{name}.rollout.jsonl"
    return read_outcome(
        recorded[:lines], exit_code, lambda _: read_last_reading(str(rollout), is_subagent=False)
    )


@pytest.fixture
def in_utc(monkeypatch):
    """The time zone in which the client wrote."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("name", "exit_code", "end", "reason"),
    [
        ("completed", 0, COMPLETED, ""),
        ("usage_limit_without_time", 1, LIMITED, "usage_limit_exceeded"),
        ("rate_limited", 1, LIMITED, "response_too_many_failed_attempts"),
        ("overloaded", 1, LIMITED, "server_overloaded"),
        ("unauthorized", 1, FAILED, "http_connection_failed"),
        ("too_long", 1, OVERFLOWED, OVERFLOW),
    ],
)
def test_every_recorded_end_is_known(name, exit_code, end, reason):
    """The rollout has the kind of an error, and the thread can be resumed after each of them."""
    outcome = outcome_of(name, exit_code)
    assert (outcome.end, outcome.reason, outcome.exit_code) == (end, reason, exit_code)
    assert outcome.session_id
    assert (outcome.error is None) == (end == COMPLETED)
    assert outcome.skipped_lines == 0


def test_the_last_message_is_what_a_successor_reads():
    """What the thread paid is the client's own sum."""
    outcome = outcome_of("completed", 0)
    assert outcome.last_text == "All is written."
    assert outcome.spent == SpentTokens(input_tokens=61_000, output_tokens=10)
    assert outcome.is_session_sum


def test_a_usage_limit_says_when_it_ends(in_utc):
    """The client prints minutes, so the minute has to be over; some limits have no time."""
    dated = outcome_of("usage_limit_another_day", 1).limit
    assert dated == ProviderLimit(USAGE, 1795700040.0)  # asked for 1795700000
    timed = outcome_of("usage_limit_today", 1).limit
    assert timed.kind == USAGE
    assert datetime.fromtimestamp(timed.ends_at).date() == datetime.now().date()
    assert outcome_of("usage_limit_without_time", 1).limit == ProviderLimit(USAGE)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("rate_limited", RATE), ("overloaded", OVERLOADED), ("server_error", OVERLOADED)],
)
def test_other_limits_have_no_time(name, kind):
    """The run waits a growing pause for these."""
    assert outcome_of(name, 1).limit == ProviderLimit(kind)


def test_an_output_without_a_result_is_of_a_client_that_was_killed():
    """What it printed before, as that it tries again, is no result."""
    outcome = outcome_of("completed", -9, lines=4)
    assert (outcome.end, outcome.exit_code, outcome.error) == (CUT_OFF, -9, None)
    assert outcome_of("completed", 1).end == FAILED


def test_without_a_rollout_the_words_are_all_there_is():
    """A client that cannot write its rollout has failed for the relay."""
    recorded = (RECORDED / "usage_limit_today.jsonl").read_bytes().splitlines()
    outcome = read_outcome(recorded, 1)
    assert (outcome.end, outcome.limit) == (FAILED, None)
    assert "hit your usage limit" in outcome.error


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "item", "text", "usage", "error", "message", "thread_id"]),
            inner,
        )
    ),
    max_leaves=8,
)
_KINDS = ("thread.started", "turn.completed", "turn.failed", "item.completed", "error")


@given(
    st.lists(
        st.tuples(st.sampled_from(_KINDS), st.dictionaries(st.sampled_from(
            ["item", "usage", "error", "message", "thread_id"]), _VALUES)), max_size=6,
    ),
    st.sampled_from([0, 1, -9, None]),
)  # fmt: skip
def test_no_output_raises(entries, exit_code):
    """Whatever a client prints, the end of its context is one of the known ones."""
    lines = [json.dumps({**entry, "type": kind}).encode() for kind, entry in entries]
    outcome = read_outcome([*lines, b"{", os.urandom(8)], exit_code)
    assert outcome.end in (COMPLETED, CUT_OFF, FAILED)
