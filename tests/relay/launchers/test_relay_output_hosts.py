"""What a context of Gemini CLI or Qwen Code said at its end, read from recorded outputs.

Recorded with 0.61.0 and 0.24.4 against a stand-in API; lines about tools and commands that the
client offers are left out.
"""

import json
from datetime import UTC, datetime

import pytest
from helpers import DATA
from hypothesis import given
from hypothesis import strategies as st

from ultramon.relay.launchers import gemini, qwen
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
    RefusedCall,
    SpentTokens,
)

READERS = {"gemini-0.61.0": gemini.read_outcome, "qwen-0.24.4": qwen.read_outcome}
EACH = pytest.mark.parametrize("client", READERS)
SESSION = "00000000-0000-4000-8000-000000000001"
QWEN_RESET = datetime(2026, 11, 23, 20, 15, tzinfo=UTC).timestamp()


def recorded(client, name):
    return (DATA / "stream_json" / client / f"{name}.jsonl").read_bytes().splitlines()


def outcome_of(client, name, exit_code, lines=None):
    return READERS[client](recorded(client, name)[:lines], exit_code)


@EACH
def test_a_plain_run(client):
    """The last words are those behind the last tool; cached tokens are part of the input."""
    outcome = outcome_of(client, "plain", 0)
    assert (outcome.end, outcome.session_id) == (COMPLETED, SESSION)
    assert outcome.last_text == "All done.\nIn two lines."
    assert outcome.spent == SpentTokens(input_tokens=50_000, output_tokens=10)
    assert (outcome.error, outcome.limit, outcome.skipped_lines) == (None, None, 0)


@EACH
def test_an_exit_after_the_result_is_a_failure(client):
    """Whatever was printed."""
    outcome = outcome_of(client, "plain", 9)
    assert (outcome.end, outcome.error) == (FAILED, "exit 9 after its result")


@EACH
@pytest.mark.parametrize("exit_code", [-9, -15, 129, 130, 143])
def test_a_signal_after_the_result_takes_nothing_back(client, exit_code):
    """The turn was over."""
    outcome = outcome_of(client, "plain", exit_code)
    assert (outcome.end, outcome.error) == (COMPLETED, None)


@EACH
def test_an_output_without_a_result_was_cut_off(client):
    """The session is known all the same."""
    outcome = outcome_of(client, "plain", None, lines=3)
    assert (outcome.end, outcome.session_id) == (CUT_OFF, SESSION)
    assert outcome_of(client, "plain", 55, lines=0).session_id is None


@pytest.mark.parametrize(
    ("client", "name", "exit_code", "end", "limit", "words"),
    [
        ("gemini-0.61.0", "overflow", 144, OVERFLOWED, None, "exceeds the maximum number"),
        ("gemini-0.61.0", "quota", 173, LIMITED, ProviderLimit(USAGE), "your daily quota"),
        ("gemini-0.61.0", "key", 147, FAILED, None, "bad key"),
        ("qwen-0.24.4", "overflow", 1, OVERFLOWED, None, "maximum context length"),
        ("qwen-0.24.4", "quota", 1, LIMITED, ProviderLimit(USAGE, QWEN_RESET), "Quota exhausted"),
        ("qwen-0.24.4", "key", 1, FAILED, None, "bad key"),
    ],
)  # fmt: skip
def test_what_ended_a_session(client, name, exit_code, end, limit, words):
    """In the client's words, and when a limit ends where it says so."""
    outcome = outcome_of(client, name, exit_code)
    assert (outcome.end, outcome.limit) == (end, limit)
    assert words in outcome.error


@pytest.mark.parametrize("status", [500, 503, 529, 429])
@EACH
def test_a_provider_that_has_no_room(client, status):
    """Waiting helps."""
    message = f"[API Error: {status} no room]"
    error = {"type": "result", "status": "error", "is_error": True, "error": {"message": message}}
    line = json.dumps(error | {"subtype": "error_during_execution"}).encode()
    outcome = READERS[client]([line], status - 256 if client.startswith("gemini") else 1)
    kind = RATE if status == 429 else OVERLOADED
    assert (outcome.end, outcome.limit) == (LIMITED, ProviderLimit(kind))


@EACH
def test_a_call_that_nobody_could_allow(client):
    """Qwen Code lists it; Gemini CLI says that there is no such tool."""
    outcome = outcome_of(client, "denied", 0)
    assert (outcome.end, outcome.refused_count) == (COMPLETED, 1)
    assert outcome.refused == (RefusedCall("run_shell_command", "echo hi"),)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["type", "status", "subtype", "error", "stats", "usage", "message", "role", "content",
     "tool_name", "tool_id", "parameters", "session_id", "is_error", "permission_denials"]
)  # fmt: skip
TYPES = st.sampled_from(["init", "result", "message", "tool_use", "tool_result", "assistant"])
ENTRIES = st.dictionaries(KEYS, VALUES, max_size=5).flatmap(
    lambda entry: TYPES.map(lambda kind: {**entry, "type": kind})
)


@given(st.lists(ENTRIES | VALUES, max_size=5), st.none() | st.integers(-64, 255))
@EACH
def test_no_output_breaks_the_reader(client, entries, exit_code):
    """Whatever a client prints, there is an outcome."""
    lines = [json.dumps(entry).encode() for entry in entries] + [b"\xff{", b"[" * 10_000]
    outcome = READERS[client](lines, exit_code)
    assert outcome.skipped_lines >= 2
    assert outcome.spent.input_tokens >= 0
