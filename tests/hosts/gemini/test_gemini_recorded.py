"""What the real Gemini sent to its hooks, replayed in its order through the real hook process."""

import json
import time

import pytest
from helpers.gemini_session import GeminiRun, GeminiSession
from helpers.recorded_run import HOSTILE_BYTES, in_epoch

from ultramon.hosts.calls.hosted_agent import CUT_TURN
from ultramon.hosts.gemini.dialect import DIALECT
from ultramon.system.timestamps import format_time

PLAIN = "d7075450-8cca-45e6-8220-530887e2e90a"
COMPRESS = "1c7a50c0-db2f-4999-8cf3-e6a0275199a1"
RESUME = "f4c5336a-f330-47aa-a9c4-81aefce087f0"
MAIN = "55782342-25ad-46e0-b781-3f65e85245e8"
SUB = f"{MAIN}.3358df89-c3ac-4a35-91cb-db56b63eb22a"


def test_a_plain_run(tmp_path):
    """One prompt is never compressed, so that nothing is said of that; it names the session."""
    run = GeminiRun(tmp_path, "plain")
    _, told = run.readings()
    assert told == {}
    record = run.record(PLAIN)
    assert (record.host, record.model) == ("gemini", "gemini-2.5-pro")
    assert record.label == "project: [[MAIN]] do the work"


def test_a_compression_begins_an_epoch(tmp_path):
    """No event reports it: the file does, before the next reply, and once."""
    run = GeminiRun(tmp_path, "compress")
    seen, told = run.readings()
    assert seen[COMPRESS] == [
        *in_epoch(1, 15_000, 31_000, 45_000), *in_epoch(2, 7_300), *in_epoch(3, 9_100),
    ]  # fmt: skip
    assert len(run.events("context_epoch_started")) == 2
    ((event, text),) = told[COMPRESS]
    assert event == "AfterTool"
    assert text.startswith("Context window compacted")
    assert run.record(COMPRESS).context_limit == 524_288


def test_a_resumed_session_is_the_same_agent(tmp_path):
    """Same state, same epoch; the second prompt is one behind which the client can compress."""
    run = GeminiRun(tmp_path, "resume")
    seen, told = run.readings()
    assert seen == {RESUME: in_epoch(1, 18_000, 77_000, 199_000, 243_000)}
    record = run.record(RESUME)
    assert (record.generation, record.epoch, record.context_limit) == (2, 1, 524_288)
    assert told == {}


def test_a_subagent_has_its_own_readings_and_warnings(tmp_path):
    """Its calls name its session; the session never reads the number of its subagent."""
    run = GeminiRun(tmp_path, "subagent")
    run.choose(context_limit_tokens=600_000)
    seen, told = run.readings()
    assert seen == {
        MAIN: in_epoch(1, 33_000, 52_000, 61_000),
        SUB: in_epoch(1, 9_000, 410_000, 444_000),
    }
    first, *_ = told[MAIN]
    assert first[0] == "AfterTool"
    assert "(68 %" in first[1]
    tools = [call["stdin"].get("tool_name") for call in run.calls]
    warned = [tool for tool, one in zip(tools, run.answers, strict=True) if one.text]
    assert warned == ["list_directory"]
    record = run.record(SUB)
    assert (record.parent_id, record.active, record.outcome) == (MAIN, False, "completed")
    assert record.label == "project: [[SUBA]] find where alpha is written"


@pytest.fixture
def unanswered(tmp_path):
    """A run up to its last request, which gets no reply; the client's end comes next."""
    run = GeminiRun(tmp_path, "plain")
    run.environ["TMPDIR"] = str(tmp_path)
    while run.calls[len(run.answers)]["stdin"]["hook_event_name"] != "AfterAgent":
        run.step()
    del run.calls[len(run.answers)]
    run.calls[-1]["file_lines_at_hook"] -= 2
    return run


def test_a_session_that_a_signal_ends_in_a_turn_is_cancelled(unanswered):
    """The client reports that end as any other, and calls no AfterAgent."""
    unanswered.step()
    record = unanswered.record(PLAIN)
    assert (record.outcome, record.exit) == ("cancelled", {"reason": CUT_TURN})


def test_a_session_whose_last_request_failed_has_failed(unanswered, tmp_path):
    """Its file names no error; the client's report of the request does."""
    (lines,) = unanswered.transcripts.values()
    lines = lines[: unanswered.calls[-1]["file_lines_at_hook"]]
    request = [one for one in lines if one.get("type") == "user"][-1]
    error = {"error": {"code": 503, "status": "UNAVAILABLE", "message": "Overloaded."}}
    report = {
        "error": {"message": json.dumps(error)},
        "context": [{"role": "user", "parts": request["content"]}],
    }
    # The request is written at the next call.
    stamp = format_time(time.time() + 60).replace(":", "-").replace(".", "-")
    name = f"gemini-client-error-Turn.run-sendMessageStream-{stamp}.json"
    (tmp_path / name).write_text(json.dumps(report))
    unanswered.step()
    record = unanswered.record(PLAIN)
    assert (record.outcome, record.exit) == ("failed", {"reason": "exit", "error": "UNAVAILABLE"})


def test_a_session_that_ends_in_a_tool_is_cancelled(tmp_path):
    """Its prompt is the last event before; after a turn the same end completes it."""
    session = GeminiSession(tmp_path)
    base = {"session_id": "s", "cwd": "/home/dev/project"}
    session.run(base | {"hook_event_name": "BeforeAgent", "prompt": "go"})
    session.run(base | {"hook_event_name": "SessionEnd", "reason": "exit"})
    assert (session.record("s").outcome, session.record("s").exit["reason"]) == (
        "cancelled", CUT_TURN,
    )  # fmt: skip
    session.run(base | {"hook_event_name": "BeforeAgent", "prompt": "again"})
    session.run(base | {"hook_event_name": "AfterAgent"})
    session.run(base | {"hook_event_name": "SessionEnd", "reason": "exit"})
    assert session.record("s").outcome == "completed"


@pytest.mark.parametrize(
    ("kind", "asked", "waits_for"),
    [("ToolPermission", "exec", "permission"), ("ToolPermission", "ask_user", "answer"),
     ("ToolPermission", None, "permission"), ("Other", "exec", None)],
)  # fmt: skip
def test_a_question_is_a_wait_until_the_tool_has_run(tmp_path, kind, asked, waits_for):
    """As recorded; the client calls no hook when the person answers."""
    session = GeminiSession(tmp_path)
    base = {"session_id": "s", "cwd": "/home/dev/project"}
    session.run(base | {"hook_event_name": "BeforeAgent", "prompt": "go"})
    note = {"message": "Tool Confirm Shell Command requires execution", "notification_type": kind}
    note["details"] = {"type": asked, "title": "Confirm Shell Command", "command": "touch made"}
    session.run(base | note | {"hook_event_name": "Notification"})
    record = session.record("s")
    expected = ("waiting", waits_for) if waits_for else ("working", None)
    assert (record.phase, record.extra["gemini"].get("waitsFor")) == expected
    session.run(base | {"hook_event_name": "AfterTool", "tool_name": "run_shell_command"})
    record = session.record("s")
    assert (record.phase, record.extra["gemini"].get("waitsFor")) == ("working", None)


@pytest.mark.parametrize("asked", ["Context window: what is it?", "[ultramon] crashed. Why?"])
def test_a_prompt_is_what_stands_behind_the_texts_of_hooks(asked):
    """However it begins: only what is marked is a hook's."""
    prompt = f"<hook_context>[ultramon] Two messages.</hook_context>\n{asked}"
    payload = {"session_id": "s", "hook_event_name": "BeforeAgent", "prompt": prompt}
    assert DIALECT.read_event(payload, {}).prompt == asked


HOSTILE = [
    *HOSTILE_BYTES,
    {"session_id": "../x", "hook_event_name": "AfterAgent"},
    {"session_id": 7, "hook_event_name": "AfterAgent"},
    {"session_id": "..", "hook_event_name": "AfterTool", "transcript_path": "/tmp/x.jsonl"},
    {"session_id": "s", "hook_event_name": "AfterTool", "transcript_path": "/dev/zero"},
    {"session_id": "s", "hook_event_name": "SessionEnd", "transcript_path": "/dev/zero"},
    {"session_id": "s", "hook_event_name": "BeforeModel", "transcript_path": "/dev/zero"},
    {"session_id": "s", "hook_event_name": "BeforeModel", "llm_request": 5},
    {"session_id": "s", "hook_event_name": "BeforeAgent", "prompt": ["<hook_context>"]},
    {"session_id": "s", "hook_event_name": "Notification", "notification_type": "ToolPermission",
     "details": [], "transcript_path": "/dev/zero"},
    {"session_id": "s", "hook_event_name": "AfterTool", "tool_name": "write_todos",
     "tool_input": {"todos": [5, {"description": 5}, {"description": "a", "status": []}]}},
    {"session_id": "s", "hook_event_name": "AfterTool", "tool_name": "invoke_agent",
     "tool_input": [], "tool_response": {"returnDisplay": 5, "llmContent": 5}},
]  # fmt: skip


@pytest.mark.parametrize("payload", HOSTILE, ids=lambda one: repr(one)[:60])
def test_hostile_payloads_end_well(tmp_path, payload):
    """Exit 0, not a word on standard output or error, and nothing but states and a log."""
    session = GeminiSession(tmp_path)
    assert session.run(payload).stdout == b""
    assert set(session.ids()) <= {"s"}


def subagent(session, name, *lines):
    """Write the file of a subagent of the session ``main``."""
    file = session.chats / "main" / f"{name}.jsonl"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"\n".join(lines))


@pytest.mark.parametrize(
    "lines",
    [[], [b"\xff"], [b"{}"], [b'{"startTime": 5}', b"[]"], [b"x" * 200_000],
     [b'{"startTime":"2999-01-01T00:00:00Z"}', b'{"content":5}', b'{"type":"gemini","tokens":5}'],
     [b'{"startTime":"2999-01-01T00:00:00Z"}', b"[" * 5_000, b'{"$set":{"summary":[]}}']],
)  # fmt: skip
def test_hostile_files_of_subagents_end_well(tmp_path, lines):
    """A call is answered by what can be read."""
    session = GeminiSession(tmp_path)
    subagent(session, "a", *lines)
    subagent(session, "b" * 200, *lines)
    (session.chats / "main" / "link.jsonl").symlink_to("/dev/zero")
    path = session.chats / "session.jsonl"
    path.write_text("")
    for tool in ("read_file", "invoke_agent"):
        payload = {"session_id": "main", "transcript_path": str(path), "tool_name": tool}
        assert session.run(payload | {"hook_event_name": "AfterTool"}).stdout == b""
    assert "main" in session.ids()


def test_an_answer_is_one_object_and_standard_output_holds_nothing_else(tmp_path):
    """What is no JSON would reach the conversation as text."""
    run = GeminiRun(tmp_path, "compress")
    run.readings()
    (answer,) = [json.loads(one.stdout) for one in run.answers if one.stdout]
    assert answer.keys() == {"hookSpecificOutput"}
    assert answer["hookSpecificOutput"]["hookEventName"] == "AfterTool"
