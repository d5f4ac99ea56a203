"""The session files of Qwen Code, read as records."""

import json

import pytest
from helpers import DATA
from helpers.qwen_session import NEW, OLD, recording
from helpers.transcript_records import of
from hypothesis import given
from hypothesis import strategies as st

from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.qwen.reader import identify, looks_like_transcript
from ultramon.hosts.qwen.transcripts import TRANSCRIPTS
from ultramon.hosts.transcripts.records import (
    Boundary,
    Broken,
    Content,
    Overflow,
    Record,
    Report,
    Returned,
    Window,
)
from ultramon.recordings.recordings import host_of

FILES = sorted((DATA / "hooks").glob("qwen-*/*/*-*.jsonl"))


def line(kind, **more):
    own = {"uuid": "u", "sessionId": "s", "timestamp": "2026-11-23T12:00:00Z", "cwd": "/w"}
    return json.dumps(own | {"type": kind} | more).encode()


def reply(tokens, *parts, **more):
    usage = {"promptTokenCount": tokens, "candidatesTokenCount": 5, "cachedContentTokenCount": 3}
    message = {"role": "model", "parts": list(parts)}
    return line("assistant", model="m", message=message, usageMetadata=usage, **more)


def read(*lines):
    return list(TRANSCRIPTS.read_transcript(lines))


def records_of(version, name, pattern="*-*.jsonl"):
    (path,) = recording(version, name).glob(pattern)
    with path.open("rb") as file:
        return list(TRANSCRIPTS.read_transcript(file))


def test_cached_tokens_are_part_of_the_input():
    """The client counts as Gemini does."""
    (report,) = of(Report, read(reply(100)))
    assert (report.tokens, report.output_tokens, report.message_id) == (100, 5, "u")
    assert of(Report, read(reply(0))) == []


@pytest.mark.parametrize(("version", "window"), [(OLD, 131_072), (NEW, 1_000_000)])
def test_a_window_is_read_once(version, window):
    """As the client writes it; where it writes none it works with one of its own."""
    assert [one.tokens for one in of(Window, records_of(version, "plain"))] == [window]


def test_a_subagent_says_no_window():
    """It has that of its session."""
    assert of(Window, records_of(NEW, "subagents", "agent-*3.jsonl")) == []


def test_the_calls_of_a_subagent_are_in_the_line_behind_their_usage():
    """They are counted by it; a result that comes next is not."""
    records = records_of(NEW, "subagents", "agent-*3.jsonl")
    assert [report.tokens for report in of(Report, records)] == [9_000, 110_000, 114_000]
    sources = [(one.source, one.counted) for one in of(Content, records)]
    assert sources == [
        ("user", False),
        ("assistant", True),
        ("tool:run_shell_command", False),
        ("assistant", True),
        ("tool:run_shell_command", False),
        ("assistant", True),
    ]


@pytest.mark.parametrize(("version", "left"), [(OLD, 2_560), (NEW, 2_704)])
def test_a_compaction_is_a_boundary(version, left):
    """With the client's estimate, in which the summary is counted."""
    records = records_of(version, "compact")
    (boundary,) = of(Boundary, records)
    assert boundary.post_tokens == left
    (summary,) = [one for one in of(Content, records) if one.source == "summary"]
    assert (summary.counted, "<state_snapshot>" in summary.text) == (True, True)


@pytest.mark.parametrize(("version", "refusals"), [(OLD, 1), (NEW, 2)])
def test_an_overflow_is_a_record(version, refusals):
    """The newer client asks for a summary in the same conversation, which is refused too."""
    assert len(of(Overflow, records_of(version, "overflow"))) == refusals
    event = {"event.name": "qwen-code.api_error", "error_message": "429 too many requests"}
    other = line("system", subtype="ui_telemetry", systemPayload={"uiEvent": event})
    event = event | {"error_message": "prompt is too long", "subagent_name": "explore"}
    subagents = line("system", subtype="ui_telemetry", systemPayload={"uiEvent": event})
    assert of(Overflow, read(other, subagents)) == []


def test_subagents_come_back_with_one_notification():
    """The client puts those that ended into one prompt."""
    returned = of(Returned, records_of(NEW, "subagents", "[0-9]*.jsonl"))
    assert [(one.agent_id, one.has_text) for one in returned] == [
        ("general-purpose-call_4", True),
        ("general-purpose-call_3", True),
    ]


def test_a_result_names_the_file_that_its_call_named():
    """A report says which files filled the windows."""
    call = {"id": "c", "name": "read_file", "args": {"file_path": "/w/a.py"}}
    result = {"id": "c", "name": "read_file", "response": {"output": "text"}}
    message = {"role": "user", "parts": [{"functionResponse": result}]}
    records = read(reply(9, {"functionCall": call}), line("tool_result", message=message))
    (content,) = [one for one in of(Content, records) if one.source == "tool:read_file"]
    assert (content.text, content.file) == ("text", "/w/a.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_files_are_recognised_and_kept_apart_from_other_hosts(path):
    """By any line, or by the beginning of a first one that is cut."""
    for head_bytes in (200, 5_000):
        head = path.read_bytes()[:head_bytes]
        assert looks_like_transcript(head)
        assert host_of(head).name == "qwen"
    for other in (DATA / "captures").glob("*/*.jsonl"):
        assert not looks_like_transcript(other.read_bytes()[:5_000])
    assert not CLAUDE_CODE.transcripts.looks_like_transcript(path.read_bytes()[:200])


def test_a_file_says_whose_it_is():
    """Session, subagent, model and directory."""
    (path,) = recording(NEW, "subagents").glob("agent-*3.jsonl")
    with path.open("rb") as file:
        identity = identify(file)
    assert identity.qualified_id == "06d81c63-42cc-4247-8b44-c84c365cba7c.general-purpose-call_3"
    assert (identity.model, identity.project) == (None, "/home/user/project")
    (path,) = recording(OLD, "plain").glob("*-*.jsonl")
    with path.open("rb") as file:
        assert identify(file).model == "qwen3-coder-plus"
    assert identify([b"\n", b"{}", line("user")]) is None


@pytest.mark.parametrize("value", [-1, True, 10**10, 1.5, "12", [12]])
def test_impossible_numbers_break_the_line_and_nothing_else(value):
    """A wrong number is reported, never read as zero or cut to fit."""
    broken, _, report = read(reply(value), reply(7))
    assert isinstance(broken, Broken)
    assert "promptTokenCount" in broken.reason
    assert report.tokens == 7


KEYS = st.sampled_from(
    ["message", "parts", "text", "functionCall", "functionResponse", "usageMetadata", "response",
     "systemPayload", "uiEvent", "info", "compressedHistory", "subtype", "id", "name"],
)  # fmt: skip


@given(
    st.lists(
        st.binary()
        | st.builds(
            lambda kind, more: line(kind, **more),
            st.sampled_from(["user", "assistant", "tool_result", "system"]),
            st.dictionaries(
                KEYS,
                st.recursive(
                    st.none() | st.integers() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
                    max_leaves=6,
                ),
            ),
        )
    )
)
def test_no_file_raises(lines):
    """Whatever the file holds, reading it gives records."""
    assert all(isinstance(record, Record) for record in TRANSCRIPTS.read_transcript(lines))
    identity = identify(lines)
    assert identity is None or identity.session_id
    assert looks_like_transcript(b"".join(lines)) in (True, False)
