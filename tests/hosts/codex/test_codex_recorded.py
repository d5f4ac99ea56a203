"""What the real Codex sent its hooks, replayed in its order through the real hook process."""

import json
import tempfile
import time

import pytest
from helpers import DATA
from helpers.codex_session import CodexRun, CodexSession
from helpers.recorded_run import HOSTILE_PAYLOADS, in_epoch
from hypothesis import given
from hypothesis import strategies as st

from ultramon.hosts.calls.hosted_agent import CUT_TURN
from ultramon.hosts.codex.last_reading import is_last_turn, read_last_reading, read_last_replies
from ultramon.state.pins import Pin, Pins
from ultramon.system.timestamps import format_time

INTERRUPTED = DATA / "ends" / "codex-0.169.0-interrupted.jsonl"
OVERFLOWED = DATA / "captures" / "codex-0.169.0" / "rollout_overflow.jsonl"

PLAIN = "01a20330-6723-72e3-ba49-0b404e343445"
COMPACT = "01a20330-66a9-7962-92ee-9efb7404527b"
CODEMODE = "01a20353-3944-7c52-97ef-49bc82cbe3fd"
RESUME = "01a20341-8f30-77d1-b22e-ec259569f883"


def test_a_plain_run(tmp_path):
    """It is warned at the window that the client reports, and named after its prompt."""
    run = CodexRun(tmp_path, "plain")
    _, told = run.readings()
    ((event, text),) = told[PLAIN]
    assert event == "PostToolUse"
    assert "66 %" in text
    assert "258,400" in text
    record = run.record(PLAIN)
    assert (record.host, record.model) == ("codex", "gpt-5.2")
    assert record.label == "project: [[MAIN]] do the work"


def test_an_answer_has_the_known_members_only(tmp_path):
    """One more, and the client drops the whole answer."""
    run = CodexRun(tmp_path, "plain")
    (answer,) = [json.loads(a.stdout) for _, a, _ in run.replayed() if a.stdout]
    assert answer.keys() == {"hookSpecificOutput"}
    assert answer["hookSpecificOutput"].keys() == {"hookEventName", "additionalContext"}
    assert answer["hookSpecificOutput"]["hookEventName"] == "PostToolUse"


def test_a_compaction_begins_one_epoch_and_the_summary_is_no_reading(tmp_path):
    """Of PostCompact and SessionStart one counts; 151,500 was the request for the summary."""
    run = CodexRun(tmp_path, "compact")
    seen, told = run.readings()
    assert seen[COMPACT] == [
        *in_epoch(1, 30_000, 96_000, 151_000),
        *in_epoch(2, 12_000, 40_000, 52_000),
    ]
    (warning, compacted) = told[COMPACT]
    assert warning[0] == "PostToolUse"
    assert "190,000" in warning[1]
    assert compacted[0] == "SessionStart"
    assert compacted[1].startswith("Context window compacted")
    assert len(run.events("context_epoch_started")) == 1


def test_in_code_mode_a_reply_with_two_calls_is_told_once(tmp_path):
    """Their ids are nowhere in the rollout, and nothing waits for them."""
    run = CodexRun(tmp_path, "codemode")
    run.choose(context_limit_tokens=200_000)
    seen, told = run.readings()
    assert seen[CODEMODE] == in_epoch(1, 24_000, 139_000, 171_000)
    ((event, text),) = told[CODEMODE]
    assert event == "PostToolUse"
    assert "(70 %" in text


def test_a_resumed_session_is_the_same_agent(tmp_path):
    """Same state, same epoch; the process is another one, and what was last read still holds."""
    run = CodexRun(tmp_path, "resume")
    seen, told = run.readings()
    assert seen[RESUME] == in_epoch(1, 18_000, 77_000, 99_000, 143_000)
    record = run.record(RESUME)
    assert (record.generation, record.epoch, run.ids()) == (2, 1, [RESUME])
    assert told == {}


def test_a_compacted_subagent_gets_its_pins_with_its_next_tool(tmp_path):
    """No SessionStart follows the compaction of a subagent."""
    session = CodexSession(tmp_path)
    session.choose(pins=True)
    Pins(str(session.state)).add(Pin(str(tmp_path), "Never deploy.", None), is_session=False)
    base = {"session_id": "main", "agent_id": "child", "cwd": str(tmp_path)}
    for event in ("SubagentStart", "PreCompact", "PostCompact"):
        assert session.run(base | {"hook_event_name": event}).stdout == b""
    told = [session.run(base | {"hook_event_name": "PostToolUse"}).text for _ in range(2)]
    assert "1. Never deploy.\nContext window compacted at " in told[0]
    assert told[1] == ""


def overflowed(session, **payload):
    """Write a rollout whose last request did not fit, and tell a hook of it."""
    folder = session.home / "sessions" / "2026" / "11" / "22"
    folder.mkdir(parents=True)
    file = folder / "rollout-2026-11-22T16-02-32-child.jsonl"
    now = format_time(time.time() + 1)
    for line in OVERFLOWED.read_bytes().splitlines():
        entry = json.loads(line) | {"timestamp": now}
        with file.open("ab") as stream:
            stream.write(json.dumps(entry).encode() + b"\n")
    base = {"session_id": "main", "cwd": "/home/dev/project", "model": "gpt-5.2"}
    own = {"agent_id": "child", "agent_type": "default"}
    start = {"hook_event_name": "SubagentStart", "transcript_path": str(file)}
    session.run(base | {"hook_event_name": "SessionStart", "source": "startup"})
    session.run(base | own | start)
    session.run(base | own | payload | {"agent_transcript_path": str(file)})
    return session.record("main.child")


def test_a_run_of_one_prompt_that_an_interrupt_ends_is_cancelled(tmp_path):
    """The client reports its end as any other, and no end of the turn before."""
    session = CodexSession(tmp_path)
    base = {"session_id": "s", "cwd": "/home/dev/project", "transcript_path": str(INTERRUPTED)}
    session.run(base | {"hook_event_name": "SessionStart", "source": "startup"})
    session.run(base | {"hook_event_name": "UserPromptSubmit", "prompt": "go"})
    session.run(base | {"hook_event_name": "SessionEnd", "reason": "other"})
    record = session.record("s")
    assert (record.active, record.outcome, record.exit) == (
        False,
        "cancelled",
        {"reason": CUT_TURN},
    )


def test_an_overflow_ends_a_subagent_as_failed(tmp_path):
    """The zeros that the client writes then are no reading."""
    session = CodexSession(tmp_path)
    record = overflowed(session, hook_event_name="SubagentStop", transcript_path="/parent")
    assert (record.active, record.outcome, record.estimated_tokens) == (False, "failed", 240_000)
    assert record.exit == {"reason": "request failed", "error": "Prompt is too long"}
    assert session.failures() == []


def test_a_plan_is_that_of_the_agent_that_keeps_it(tmp_path):
    """update_plan replaces the whole plan; that of a subagent is no part of its session's."""
    session = CodexSession(tmp_path)
    base = {"session_id": "main", "hook_event_name": "PostToolUse", "tool_name": "update_plan"}

    def keep(*steps, **more):
        plan = [{"step": step, "status": status} for step, status in steps]
        session.run(base | {"tool_input": {"plan": plan}, "tool_response": "ok"} | more)

    keep(("read", "completed"), ("write", "in_progress"), ("test", "pending"))
    keep(("look", "in_progress"), agent_id="child", agent_type="default")
    keep(("read", "completed"), ("test", "in_progress"))
    plan = [(task["name"], task["status"]) for task in session.record("main").tasks]
    assert plan == [("read", "done"), ("test", "in_progress")]
    assert session.record("main").current_task == "test"
    assert [task["name"] for task in session.record("main.child").tasks] == ["look"]


@pytest.mark.parametrize(
    "payload",
    [
        *HOSTILE_PAYLOADS,
        {"session_id": "s", "hook_event_name": "PostToolUse", "tool_name": "update_plan",
         "tool_input": {"plan": [5, {"step": 5}, {"step": "a", "status": []}]}},
    ],
    ids=lambda one: repr(one)[:60],
)  # fmt: skip
def test_hostile_payloads_end_well(tmp_path, payload):
    """Exit 0, not a word on standard output or error, and nothing but states and a log."""
    session = CodexSession(tmp_path)
    assert session.run(payload).stdout == b""
    assert {name.partition(".")[0] for name in session.ids()} <= {"s"}


ENTRIES = st.sampled_from(
    [b"{", b"null", b'{"type":"compacted"}', b'{"type":"compacted","payload":{}}', b"\xff",
     b'{"type":"token_usage_record","payload":{"usage":{"input_tokens":-1}}}',
     b'{"type":"token_usage_record","payload":{"usage":{"input_tokens":5}}}',
     b'{"type":"token_usage_record","payload":{"usage":[]}}',
     b'{"type":"event_msg","payload":{"type":"token_count","info":{"model_context_window":"x"}}}',
     b'{"type":"event_msg","payload":{"type":"task_complete","error":{"codex_error_info":[]}}}',
     b'{"type":"event_msg","payload":{"type":"task_started","turn_attribution":[]}}'],
)  # fmt: skip


@given(st.lists(ENTRIES | st.binary(max_size=40)))
def test_a_rollout_of_any_bytes_is_read(lines):
    """No line makes a reading of what is none, whatever is around it."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\n".join(lines))
        file.flush()
        reading = read_last_reading(file.name, is_subagent=False)
        assert reading.report is None or reading.report.tokens == 5
        assert len(read_last_replies(file.name, is_subagent=False)) <= 2
        assert is_last_turn(file.name) is False


@pytest.mark.parametrize("run", ["plain", "subagents"])
def test_every_call_says_what_it_does_in_the_answer_or_nothing(tmp_path, run):
    """Replayed without a rollout: no call fails, none is answered but with JSON."""
    replay = CodexRun(tmp_path, run)
    for call in replay.calls:
        replay.run(call["stdin"])
    assert all("no transcript" in problem for problem in replay.failures())
