"""What the real Qwen Code sent its hooks, replayed in its order through the real hook process."""

import json
import tempfile
import time

import pytest
from helpers.qwen_session import NEW, OLD, QwenRun, QwenSession, recording
from helpers.recorded_run import HOSTILE_PAYLOADS, in_epoch
from hypothesis import given
from hypothesis import strategies as st

from ultramon.hosts.calls.handling import HookCall
from ultramon.hosts.calls.hosted_agent import CUT_TURN
from ultramon.hosts.calls.store import HookStore
from ultramon.hosts.installed_choices import choices_path
from ultramon.hosts.port import SESSION_ENDED, WAITING, Host
from ultramon.hosts.qwen.host import QWEN
from ultramon.hosts.qwen.last_reading import (
    may_run_subagent,
    read_last_reading,
    read_last_replies,
)
from ultramon.hosts.qwen.transcripts import QwenCodeTranscripts
from ultramon.system.timestamps import format_time

BOTH = pytest.mark.parametrize("version", [OLD, NEW])
SUBA, SUBB = "general-purpose-call_3", "general-purpose-call_4"
RETURNED = """The user's last instruction, word for word:
[[MAIN]] do the work
Context window compacted at """


def session_of(run):
    return run.calls[0]["stdin"]["session_id"]


def test_a_plain_run(tmp_path):
    """An empty prompt begins no turn, and is no task."""
    run = QwenRun(tmp_path, NEW, "plain")
    run.readings()
    record = run.record(session_of(run))
    assert (record.host, record.model) == ("qwen", "qwen3-coder-plus")
    assert record.label == "project: [[MAIN]] do the work"
    assert record.current_task == "[[MAIN]] do the work"


def test_the_old_client_works_with_a_window_of_its_own(tmp_path):
    """It writes none where nothing is configured, takes 131,072, and compacts at 70 %."""
    run = QwenRun(tmp_path, OLD, "plain")
    seen, told = run.readings()
    name = session_of(run)
    assert seen == {name: in_epoch(1, 21_000, 64_000, 118_000, 205_000)}
    (first, *_) = told[name]
    assert first[0] == "PostToolUse"
    assert "91,750" in first[1]


@BOTH
def test_a_compaction_begins_one_epoch(tmp_path, version):
    """Of PostCompact and SessionStart one counts; what it left out comes with the next tool."""
    run = QwenRun(tmp_path, version, "compact")
    run.choose(pins=True)
    seen, told = run.readings()
    name = session_of(run)
    after = (9_000, 41_000) if version == OLD else (41_000,)
    assert seen[name] == [*in_epoch(1, 30_000, 60_000, 75_000), *in_epoch(2, *after)]
    assert len(run.events("context_epoch_started")) == 1
    assert {event for event, _ in told[name]} == {"PostToolUse"}
    _, *given = [text for _, text in told[name]]
    # In the recording of the newer client no tool has run after the compaction.
    assert [RETURNED in text for text in given] == [True] * (version == OLD)
    assert run.record(name).context_limit == (70_000 if version == OLD else 67_000)


@BOTH
def test_a_resumed_session_is_the_same_agent(tmp_path, version):
    """Same state, same epoch; the process is another one."""
    run = QwenRun(tmp_path, version, "resume")
    seen, _ = run.readings()
    name = session_of(run)
    # The newer client refused the tool without calling a hook.
    second = (79_000, 91_000) if version == OLD else (91_000,)
    assert seen == {name: in_epoch(1, 18_000, 77_000, *second)}
    record = run.record(name)
    assert (record.generation, record.epoch, run.ids()) == (2, 1, [name])


def test_subagents_have_the_window_of_their_session(tmp_path):
    """Each with the window of its session, which its own file does not state."""
    run = QwenRun(tmp_path, NEW, "subagents")
    run.readings()
    name = session_of(run)
    for agent_id in (SUBA, SUBB):
        assert run.record(f"{name}.{agent_id}").context_window == 1_000_000


def test_the_old_client_does_not_say_whose_tool_has_run(tmp_path):
    """Its subagents begin and end without readings; the session's own are not touched."""
    run = QwenRun(tmp_path, OLD, "subagents")
    run.choose(context_limit_tokens=50_000)
    calls = []
    for payload, answer, record in run.replayed():
        if payload["hook_event_name"] == "PostToolUse":
            tool = payload["tool_input"].get("command") or payload["tool_input"]["prompt"]
            calls.append((tool, record.estimated_tokens, bool(answer.text)))
    assert calls == [
        ("echo before", 20_000, False),
        ("echo suba", 20_000, False),
        ("echo suba2", 20_000, False),
        ("[[SUBA]] look around", 33_000, True),
        ("echo subb", 33_000, False),
        ("[[SUBB]] look too", 33_000, False),
        ("echo main", 52_000, True),
    ]
    name = session_of(run)
    assert run.ids() == [name, f"{name}.{SUBA}", f"{name}.{SUBB}"]
    for agent_id in (SUBA, SUBB):
        record = run.record(f"{name}.{agent_id}")
        assert (record.active, record.outcome, record.measured_at) == (False, "completed", None)
    assert run.events("context_epoch_started") == []


@BOTH
def test_after_an_overflow_the_last_reading_stands(tmp_path, version):
    """The client calls no hook of it; the file says so."""
    run = QwenRun(tmp_path, version, "overflow")
    seen, _ = run.readings()
    assert seen == {session_of(run): in_epoch(1, 21_000)}
    path = next(recording(version, "overflow").glob("*-*.jsonl"))
    reading = read_last_reading(str(path), is_subagent=False)
    assert (reading.error, reading.report.tokens) == ("Prompt is too long", 21_000)


def test_a_session_on_a_terminal_waits_after_its_turn(tmp_path):
    """The next prompt continues; the client says when it ends."""
    session = QwenSession(tmp_path)
    session.started_as = "qwen"
    base = {"session_id": "s", "cwd": "/home/user/project"}
    session.run(base | {"hook_event_name": "SessionStart", "source": "startup", "model": "m"})
    session.run(base | {"hook_event_name": "UserPromptSubmit", "prompt": "go"})
    session.run(base | {"hook_event_name": "Stop", "last_assistant_message": ""})
    assert (session.record("s").active, session.record("s").phase) == (True, "waiting")
    session.run(base | {"hook_event_name": "SessionEnd", "reason": "prompt_input_exit"})
    assert (session.record("s").active, session.record("s").outcome) == (False, "completed")


def test_a_session_on_a_terminal_that_ends_in_a_turn_is_cancelled(tmp_path):
    """After a signal the client gives the reason of a person's exit; Escape is told before."""
    session = QwenSession(tmp_path)
    session.started_as = "qwen"
    base = {"session_id": "s", "cwd": "/home/user/project"}
    session.run(base | {"hook_event_name": "UserPromptSubmit", "prompt": "go"})
    session.run(base | {"hook_event_name": "SessionEnd", "reason": "prompt_input_exit"})
    record = session.record("s")
    assert (record.outcome, record.exit) == ("cancelled", {"reason": CUT_TURN})
    session.run(base | {"hook_event_name": "UserPromptSubmit", "prompt": "again"})
    note = {"hook_event_name": "Notification", "notification_type": "idle_prompt", "message": "x"}
    session.run(base | note)
    session.run(base | {"hook_event_name": "SessionEnd", "reason": "prompt_input_exit"})
    assert session.record("s").outcome == "completed"


@pytest.mark.parametrize(
    ("kind", "phase", "waits_for"),
    [
        ("permission_prompt", "waiting", "permission"), ("idle_prompt", "waiting", None),
        ("auth_success", "working", None),
    ],
)  # fmt: skip
def test_a_notification_says_what_a_person_is_asked_for(tmp_path, kind, phase, waits_for):
    """Escape at a question and in a turn is reported by an idle prompt alone."""
    session = QwenSession(tmp_path)
    base = {"session_id": "s", "cwd": "/home/user/project"}
    session.run(base | {"hook_event_name": "UserPromptSubmit", "prompt": "go"})
    # As recorded from 0.24.4; 0.15.10 sends the same members.
    note = {"message": "Qwen Code needs your permission to use run_shell_command"}
    note |= {"hook_event_name": "Notification", "notification_type": kind, "title": "x"}
    session.run(base | note)
    record = session.record("s")
    assert (record.phase, record.extra["qwen"].get("waitsFor")) == (phase, waits_for)
    session.run(base | {"hook_event_name": "PostToolUse", "tool_name": "read_file"})
    record = session.record("s")
    assert (record.phase, record.extra["qwen"].get("waitsFor")) == ("working", None)


def test_a_notification_that_comes_late_says_nothing(tmp_path):
    """The client waits for no notification: the next prompt may have begun meanwhile."""
    session = QwenSession(tmp_path)
    base = {"session_id": "s", "cwd": "/home/user/project"}
    session.run(base | {"hook_event_name": "UserPromptSubmit", "prompt": "go"})
    path = choices_path(str(session.state), "qwen")
    event = QWEN.dialect.read_event(
        base | {"hook_event_name": "Notification", "notification_type": "idle_prompt"}, {}
    )
    environ = dict(session.environ)
    store = HookStore(QWEN, str(session.state), path, environ, event="x", now=time.time())
    now = store.began_at
    for began_at, phase in ((now - 3600, "working"), (now, "waiting")):
        store.began_at = began_at
        HookCall(event, store).answer()
        assert session.record("s").phase == phase


@pytest.mark.parametrize(
    "payload",
    [
        *HOSTILE_PAYLOADS,
        {"session_id": "s", "hook_event_name": "Stop", "background_tasks": [5, {"status": []}]},
        {"session_id": "s", "hook_event_name": "UserPromptSubmit", "prompt": ["x"]},
        {"session_id": "s", "hook_event_name": "PostToolUse", "tool_name": "todo_write",
         "tool_input": {"todos": [5, {"content": 5}, {"content": "a", "status": []}]}},
    ],
    ids=lambda one: repr(one)[:60],
)  # fmt: skip
def test_hostile_payloads_end_well(tmp_path, payload):
    """Exit 0, not a word on standard output or error, and nothing but states and a log."""
    session = QwenSession(tmp_path)
    assert session.run(payload).stdout == b""
    assert {name.partition(".")[0] for name in session.ids()} <= {"s"}


ENTRIES = st.sampled_from(
    [b"{", b"null", b"\xff", b'{"type":"assistant","usageMetadata":{"promptTokenCount":-1}}',
     b'{"type":"assistant","usageMetadata":{"promptTokenCount":5},"contextWindowSize":"x"}',
     b'{"type":"assistant","usageMetadata":[],"message":{"parts":[{"functionCall":[]}]}}',
     b'{"type":"assistant","message":{"parts":[{"functionCall":{"id":[],"name":"agent"}}]}}',
     b'{"type":"tool_result","message":{"parts":[{"functionResponse":{"id":[]}}]}}',
     b'{"type":"system","subtype":"chat_compression","systemPayload":{"info":5}}',
     b'{"type":"system","subtype":"ui_telemetry","systemPayload":{"uiEvent":'
     b'{"event.name":"qwen-code.api_error","error_message":7}}}'],
)  # fmt: skip


@given(st.lists(ENTRIES | st.binary(max_size=40)))
def test_a_file_of_any_bytes_is_read(lines):
    """No line makes a reading of what is none, whatever is around it."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\n".join(lines))
        file.flush()
        reading = read_last_reading(file.name, is_subagent=False)
        assert reading.report is None or reading.report.tokens == 5
        assert len(read_last_replies(file.name, is_subagent=False)) <= 2
        assert may_run_subagent(file.name) is False


def lines_of(version, name, count):
    """The first lines of a recorded file."""
    (path,) = recording(version, name).glob("*-*.jsonl")
    return path.read_bytes().splitlines(keepends=True)[:count]


@pytest.mark.parametrize(("count", "is_current"), [(4, True), (6, False), (7, False), (8, True)])
@BOTH
def test_a_reply_that_is_not_written_down_yet_is_missed(tmp_path, version, count, is_current):
    """All calls of the last one have their results; that of the call that has run comes later."""
    file = tmp_path / "session.jsonl"
    file.write_bytes(b"".join(lines_of(version, "plain", count)))
    reading = read_last_reading(str(file), is_subagent=False, call_id="toolu_1")
    assert reading.is_current is is_current
    assert read_last_reading(str(file), is_subagent=False).is_current


@pytest.mark.parametrize("kind", [WAITING, SESSION_ENDED])
def test_the_last_reply_of_a_turn_is_waited_for(tmp_path, kind):
    """The client calls the hook of the end while it still writes."""
    file = tmp_path / "session.jsonl"
    lines = [
        json.dumps(json.loads(line) | {"timestamp": format_time(time.time() + 1)}).encode() + b"\n"
        for line in lines_of(OLD, "plain", None)
    ]
    file.write_bytes(b"".join(lines[:-1]))
    base = {"session_id": "s", "transcript_path": str(file), "cwd": "/home/user/project"}
    session = QwenSession(tmp_path)
    session.run(base | {"hook_event_name": "UserPromptSubmit", "prompt": "go"})
    assert session.record("s").estimated_tokens == 118_000

    class LateFiles(QwenCodeTranscripts):
        def read_last_reading(self, path, **more):
            reading = read_last_reading(path, **more)
            with file.open("ab") as stream:  # after the first look at it
                stream.write(lines.pop() if lines else b"")
            return reading

    host, lines[:] = Host("qwen", "ultramon.hosts.qwen"), lines[-1:]
    host.transcripts = LateFiles()
    payload = base | {"hook_event_name": "Stop", "last_assistant_message": "All done."}
    event = host.dialect.read_event(payload, session.environ)
    event.kind = kind
    store = HookStore(
        host, str(session.state), "qwen.json", session.environ, event="Stop", now=time.time()
    )
    HookCall(event, store).answer()
    record = session.record("s")
    assert (record.estimated_tokens, record.active) == (205_000, kind == WAITING)


def test_an_answer_has_the_known_members_only(tmp_path):
    """As the client documents them."""
    run = QwenRun(tmp_path, OLD, "plain")
    answers = [json.loads(one.stdout) for _, one, _ in run.replayed() if one.stdout]
    assert answers
    for answer in answers:
        assert answer.keys() == {"hookSpecificOutput"}
        assert answer["hookSpecificOutput"].keys() == {"hookEventName", "additionalContext"}
