"""What a context said at its end, read from recorded outputs of the real client and from anything.

The recordings are of Claude Code 2.1.330 against a stand-in API. Its messages about the limits of
a subscription cannot be recorded there: those here are as its SDK describes them.
"""

import json

import pytest
from helpers import DATA
from hypothesis import example, given
from hypothesis import strategies as st

from ultramon.relay.launchers.claude_code import MAX_REFUSED, read_outcome
from ultramon.relay.launchers.outcome import (
    COMPLETED,
    CUT_OFF,
    FAILED,
    LIMITED,
    OVERFLOWED,
    OVERLOADED,
    RATE,
    STOPPED,
    USAGE,
    ProviderLimit,
    RefusedCall,
    SpentTokens,
)

RECORDED = DATA / "stream_json" / "claude-code-2.1.330"
SESSION = "00000000-0000-4000-8000-000000000001"


def recorded(name):
    return (RECORDED / f"{name}.jsonl").read_bytes().splitlines()


@pytest.mark.parametrize(
    ("name", "exit_code", "end", "reason", "error"),
    [
        ("completed", 0, COMPLETED, "completed", None),
        ("denied", 0, COMPLETED, "completed", None),
        ("hook_stopped", 0, STOPPED, "hook_stopped", None),
        ("rate_limited_for_a_moment", 0, COMPLETED, "completed", None),
        ("rate_limited", 1, LIMITED, "api_error", "API Error: Request rejected (429)"),
        ("overloaded", 1, LIMITED, "api_error", "API Error: 529 Overloaded"),
        ("prompt_too_long", 1, OVERFLOWED, "prompt_too_long", "Prompt is too long"),
        ("unauthorized", 1, FAILED, "api_error", "Invalid API key"),
        ("no_credit", 1, FAILED, "api_error", "Credit balance is too low"),
        ("max_turns", 1, FAILED, "max_turns", "Reached maximum number of turns (1)"),
        ("killed", -9, CUT_OFF, "", None),
    ],
)
def test_every_recorded_end_is_known(name, exit_code, end, reason, error):
    """The session can be resumed after each of them, and only two are ends as they should be."""
    outcome = read_outcome(recorded(name), exit_code)
    assert (outcome.end, outcome.reason, outcome.exit_code) == (end, reason, exit_code)
    assert (outcome.error or "").startswith(error or "")
    assert (outcome.error is None) == (error is None)
    assert outcome.ended_well == (end in (COMPLETED, STOPPED))
    assert outcome.session_id == SESSION
    assert outcome.skipped_lines == 0


def test_what_a_context_cost_is_known():
    """Of all its requests together; after a kill nothing says."""
    outcome = read_outcome(recorded("completed"), 0)
    assert outcome.spent == SpentTokens(24, 2000, 38_976, 80)
    assert outcome.cost_usd == pytest.approx(0.0068216)
    assert outcome.last_text == "Done."
    assert read_outcome(recorded("killed"), -9).cost_usd is None


@pytest.mark.parametrize("exit_code", [-9, -15, -2, -11, 129, 130, 137, 143])
def test_a_signal_after_the_result_takes_nothing_back(exit_code):
    """The turn was over, whatever then ended the process; a failure of its own is one."""
    for name, end in (("completed", COMPLETED), ("hook_stopped", STOPPED)):
        outcome = read_outcome(recorded(name), exit_code)
        assert (outcome.end, outcome.error, outcome.ended_well) == (end, None, True)
    assert read_outcome(recorded("completed"), 1).error == "exit 1 after its result"


@pytest.mark.parametrize("reason", ["aborted_tools", "aborted_streaming"])
def test_an_interrupted_turn_is_cut_off(reason):
    """The client says so in its result, and exits with 0."""
    fields = {"terminal_reason": reason, "subtype": "error_during_execution", "is_error": True}
    assert read_outcome([*recorded("completed")[:-1], result(**fields)], 0).end == CUT_OFF


def test_refused_calls_are_told_once_each():
    """The client tells of them at once and in its result, which says what was asked for."""
    outcome = read_outcome(recorded("denied"), 0)
    assert outcome.refused == (RefusedCall("Bash", "touch made"),)
    cut = read_outcome(recorded("denied")[:-1], -9)
    assert (cut.end, cut.refused) == (CUT_OFF, (RefusedCall("Bash", ""),))


def test_many_refused_calls_are_counted():
    """A hundred of them are kept."""
    denials = [{"tool_name": "Bash", "tool_input": {"command": "x" * 900}} for _ in range(300)]
    outcome = read_outcome([result(permission_denials=denials)], 0)
    assert (len(outcome.refused), outcome.refused_count) == (MAX_REFUSED, 300)
    assert len(outcome.refused[0].request) == 200


def test_limits_of_the_api_end_at_an_unknown_time():
    """The client says which limit; of a key it does not say until when."""
    assert read_outcome(recorded("rate_limited"), 1).limit == ProviderLimit(RATE)
    assert read_outcome(recorded("overloaded"), 1).limit == ProviderLimit(OVERLOADED)
    passed = read_outcome(recorded("rate_limited_for_a_moment"), 0)
    assert (passed.limit, passed.retries) == (None, 1)
    assert read_outcome(recorded("no_credit"), 1).limit is None


def test_a_limit_that_passed_is_not_what_ended_the_session():
    """The client continued after it, and gave up for another reason."""
    refused, reply = recorded("rate_limited")[4:5], recorded("completed")[3:4]
    assert b'"api_error_status":429' in refused[0]
    last = result(is_error=True, terminal_reason="max_turns", subtype="error_max_turns")
    assert read_outcome([*refused, *reply, last], 1).end == FAILED
    assert read_outcome([*refused, last], 1).end == LIMITED


def event(status, resets_at):
    info = {"status": status, "resetsAt": resets_at, "rateLimitType": "five_hour"}
    return json.dumps({"type": "rate_limit_event", "rate_limit_info": info}).encode()


def result(**fields):
    entry = {
        "type": "result", "subtype": "success", "is_error": False, "terminal_reason": "completed",
        "result": "Done.", "session_id": SESSION,
    }  # fmt: skip
    return json.dumps(entry | fields).encode()


def test_a_usage_limit_ends_when_the_client_says():
    """The event tells the time; one that allows again takes it back."""
    lines = recorded("rate_limited")
    known = [*lines[:3], event("rejected", 1_763_900_000), *lines[3:]]
    assert read_outcome(known, 1).limit == ProviderLimit(USAGE, 1_763_900_000.0)
    again = [*lines[:3], event("rejected", 1), event("allowed", 2), *lines[3:]]
    assert read_outcome(again, 1).limit == ProviderLimit(RATE)
    assert read_outcome([event("rejected", 1), *recorded("completed")], 0).limit is None


def test_an_older_client_tells_the_time_in_its_text():
    """Behind a bar, in epoch seconds."""
    text = "Claude AI usage limit reached|1763900000"
    refused = result(is_error=True, result=text, terminal_reason="api_error", api_error_status=429)
    assert read_outcome([refused], 1).limit == ProviderLimit(USAGE, 1_763_900_000.0)


@pytest.mark.parametrize(
    ("lines", "exit_code", "end"),
    [
        ([], 0, CUT_OFF),
        ([result()], 0, COMPLETED),
        ([result()], None, COMPLETED),
        ([result()], 1, FAILED),
        ([result()], -15, COMPLETED),
        ([result(is_error=True)], 0, FAILED),
        ([result(is_error="no")], 0, FAILED),
        ([result(terminal_reason="something_new")], 0, FAILED),
        ([result(terminal_reason=None)], 0, FAILED),
        ([b'{"type":"result","subtype":"success","is_error":false}'], 0, COMPLETED),
        ([b'{"type":"result","subtype":"error_during_execution","is_error":true}'], 0, FAILED),
        ([result(), b'{"type":"assistant","message":{"content":[]}}'], 0, CUT_OFF),
        ([result(), b'{"type":"assistant","message":{"content":[]}}', result()], 0, COMPLETED),
        ([result(), b'{"type":"keep_alive"}', b"debug: bye"], 0, COMPLETED),
        ([b'{"type":"assistant","parent_tool_use_id":"t","message":{}}', result()], 0, COMPLETED),
        ([result(), b'{"type":"assistant","parent_tool_use_id":"t","message":{}}'], 0, COMPLETED),
        ([result()[:-9]], 0, CUT_OFF),
    ],
)
def test_success_needs_both_a_result_and_the_exit_code(lines, exit_code, end):
    """Neither an exit code of 0 nor a word of the client is enough alone."""
    outcome = read_outcome(lines, exit_code)
    assert outcome.end == end
    assert (outcome.error is None) == (end in (COMPLETED, CUT_OFF))


def test_what_is_no_message_is_counted():
    """Words of a wrapper, half lines, and values that are no object."""
    noise = [
        b"npm warn",
        b"",
        b"  \n",
        b"[1]",
        b"3",
        b'"x"',
        b"\xff\xfe",
        b'{"type":',
        b"[" * 90_000,
    ]
    outcome = read_outcome([*noise, *recorded("completed")], 0)
    assert (outcome.end, outcome.skipped_lines) == (COMPLETED, 7)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
FIELDS = (
    "type", "subtype", "is_error", "terminal_reason", "result", "errors", "permission_denials",
    "message", "rate_limit_info", "modelUsage", "total_cost_usd", "session_id", "error",
    "api_error_status", "parent_tool_use_id",
)  # fmt: skip
KINDS = ("result", "assistant", "system", "rate_limit_event")
entries = st.dictionaries(st.sampled_from(FIELDS), values, max_size=8).flatmap(
    lambda entry: st.sampled_from(KINDS).map(lambda kind: {**entry, "type": kind})
)


@given(st.lists(entries.map(lambda one: json.dumps(one).encode()) | st.binary(max_size=30)))
@example([b'{"type":"result","total_cost_usd":1e999,"modelUsage":{"m":{"inputTokens":NaN}}}'])
def test_no_output_breaks_the_reader(lines):
    """A newer client, a wrapper or garbage: an outcome there is, and no success for nothing."""
    outcome = read_outcome(lines, 0)
    if outcome.ended_well:
        assert any(b'"result"' in line for line in lines)
    assert len(outcome.last_text) <= 8000
    assert json.dumps(outcome.cost_usd, allow_nan=False)


def test_the_last_event_about_the_plan_is_kept():
    """As the client wrote it: shares of 1, and resets in epoch seconds."""
    windows = {"five_hour": {"utilization": 0.4, "resetsAt": 9}, "seven_day": 3, "other": {}}
    info = {"status": "allowed", "unifiedWindows": windows}
    first = json.dumps({"type": "rate_limit_event", "rate_limit_info": {"unifiedWindows": 5}})
    last = json.dumps({"type": "rate_limit_event", "rate_limit_info": info})
    lines = [first.encode(), last.encode(), result()]
    assert read_outcome(lines, 0).plan == (("five_hour", 0.4, 9),)
    assert read_outcome([first.encode(), result()], 0).plan == ()
    # One that names no limit takes back nothing.
    assert read_outcome([last.encode(), first.encode(), result()], 0).plan == (
        ("five_hour", 0.4, 9),
    )
