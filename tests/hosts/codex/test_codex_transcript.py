"""The rollout of a Codex thread is read as recorded, and without trusting it."""

import json
import os

import pytest
from helpers import DATA
from helpers.program import run
from helpers.transcript_records import of
from hypothesis import given
from hypothesis import strategies as st

from ultramon.context.note import write_note
from ultramon.hosts.claude_code import reader as claude_code
from ultramon.hosts.codex.reader import identify, looks_like_transcript
from ultramon.hosts.codex.transcripts import TRANSCRIPTS
from ultramon.hosts.transcripts.records import (
    Boundary,
    Broken,
    Content,
    Overflow,
    Record,
    Report,
    Returned,
    Standing,
    Window,
)

CAPTURES = DATA / "captures"
ROLLOUT = CAPTURES / "codex-0.169.0" / "rollout_c1_user.jsonl"
COMPACTED = ROLLOUT.with_name("rollout_compact.jsonl")
OVERFLOWED = ROLLOUT.with_name("rollout_overflow.jsonl")
THREAD = "01a1ffcf-40b5-7480-93ab-5556befda115"
AT = "2026-11-21T20:32:15.064Z"

NOTE = write_note(180_000, 258_400, reading=("usage", 0.0), now=1.0)


def line(kind, payload, **style):
    """One rollout line."""
    entry = {"timestamp": AT, "ordinal": 0, "type": kind, "payload": payload}
    return json.dumps(entry, **style).encode() + b"\n"


def usage(input_tokens, **more):
    """A usage object as the client writes it."""
    return {"input_tokens": input_tokens, "output_tokens": 20} | more


def token_count(last, total, window_tokens=258_400):
    """A token_count line."""
    info = {
        "total_token_usage": usage(total),
        "last_token_usage": last,
        "model_context_window": window_tokens,
    }
    return line("event_msg", {"type": "token_count", "info": info})


def usage_record(input_tokens, response_id="resp_1"):
    """A token_usage_record line."""
    return line("token_usage_record", {"response_id": response_id, "usage": usage(input_tokens)})


NOTE = write_note(180_000, 258_400, reading=("usage", 0.0), now=1.0)


def read(*lines):
    """The records of the lines."""
    return list(TRANSCRIPTS.read_transcript(lines))


def test_a_recorded_rollout_gives_each_response_once():
    """The usage records count, the token_count lines that repeat them do not."""
    with ROLLOUT.open("rb") as file:
        records = list(TRANSCRIPTS.read_transcript(file))
    reports = of(Report, records)
    assert [(r.message_id, r.tokens, r.cache_read_tokens) for r in reports] == [
        ("resp_1", 20_000, 0),
        ("resp_3", 150_000, 140_000),
        ("resp_5", 160_000, 150_000),
    ]
    assert {(r.cache_in_input, r.model) for r in reports} == {(True, "gpt-5.2")}
    assert of(Window, records) == [Window(258_400, 1795293135.065)]
    assert of(Broken, records) == []


def test_recorded_tool_results_name_their_tool():
    """The name stands in the call, and the call is counted by the report that follows it."""
    with ROLLOUT.open("rb") as file:
        records = list(TRANSCRIPTS.read_transcript(file))
    (standing,) = of(Standing, records)
    assert ([source for source, _ in standing.parts], standing.is_whole) == (["system"], False)
    contents = of(Content, records)
    assert [(c.source, c.counted) for c in contents] == [
        ("assistant", True),
        ("tool:exec_command", False),
        ("assistant", True),
        ("tool:exec_command", False),
    ]
    assert contents[1].text.endswith("Output:\none\n")


def test_without_usage_records_the_token_counts_report():
    """Older versions have only these, and repeat them when a rate limit changes."""
    records = read(
        line("event_msg", {"type": "token_count", "info": None}),
        token_count(usage(20_000), 20_000),
        token_count(usage(20_000), 20_000),
        token_count(usage(20_000), 40_000),
    )
    assert [report.tokens for report in of(Report, records)] == [20_000, 20_000]


def test_zeros_after_a_compaction_are_no_report():
    """The client has no numbers then and writes zeros."""
    assert of(Report, read(token_count(usage(0, total_tokens=5_000), 90_000))) == []


def test_a_window_is_told_when_it_changes():
    """From whichever line says it first."""
    records = read(
        line("event_msg", {"type": "task_started", "model_context_window": 190_000}),
        token_count(usage(5), 5, 190_000),
        token_count(usage(6), 11, 258_400),
        token_count(usage(7), 18, "many"),
        token_count(usage(8), 26, 0),
    )
    assert [window.tokens for window in of(Window, records)] == [190_000, 258_400]


def test_two_lines_about_one_compaction_are_one_boundary():
    """The history is replaced and an event tells of it."""
    compacted = line("compacted", {"message": "In short.", "compaction_response_id": "resp_2"})
    event = line("event_msg", {"type": "context_compacted"})
    records = read(usage_record(150_000), compacted, event, usage_record(9_000, "resp_3"), event)
    assert [type(r) for r in records] == [Report, Boundary, Report, Boundary]


def test_the_request_that_made_the_summary_is_no_reading():
    """It still saw the old window, and its usage is written before the line that names it."""
    with COMPACTED.open("rb") as file:
        records = [r for r in TRANSCRIPTS.read_transcript(file) if isinstance(r, Report | Boundary)]
    assert [getattr(r, "tokens", None) for r in records] == [
        30_000, 96_000, 151_000, None, 12_000, 40_000, 52_000,
    ]  # fmt: skip
    assert [type(r) for r in records if isinstance(r, Boundary)] == [Boundary]


def test_the_last_reply_of_a_rollout_counts():
    """Also where nothing follows it, and where what follows cannot be read."""
    broken = line("token_usage_record", {"response_id": "r", "usage": usage(-1)})
    (report,) = read(usage_record(7))
    assert report.tokens == 7
    assert [type(r) for r in read(usage_record(7), broken)] == [Broken, Report]


def test_an_overflow_is_a_record():
    """The turn ends with it; its token count of nothing is no reading."""
    with OVERFLOWED.open("rb") as file:
        records = [r for r in TRANSCRIPTS.read_transcript(file) if isinstance(r, Report | Overflow)]
    *reports, overflow = records
    assert [report.tokens for report in reports] == [21_000, 240_000]
    assert overflow == Overflow(1795363353.982)
    other = {"type": "task_complete", "error": {"codex_error_info": "usage_limit_exceeded"}}
    assert (
        of(Overflow, read(line("event_msg", other), line("event_msg", {**other, "error": 1}))) == []
    )


def test_a_subagent_is_named_after_its_parents_session():
    """Its rollout says who the parent is; a repeated parent's line changes nothing."""
    own = line(
        "session_meta",
        {"id": "child", "thread_source": "subagent", "parent_thread_id": THREAD, "cwd": "/w"},
    )
    parent = line("session_meta", {"id": THREAD, "session_id": THREAD, "thread_source": "user"})
    model = line("turn_context", {"model": "gpt-5.2-codex"})
    identity = identify([b"\n", own, parent, model])
    assert identity is not None
    assert identity.qualified_id == f"{THREAD}.child"
    assert identity.model == "gpt-5.2-codex"
    (report,) = read(own, parent, model, usage_record(5))
    assert report.model == "gpt-5.2-codex"


def test_the_recorded_rollout_tells_whose_it_is():
    """Session and model."""
    with ROLLOUT.open("rb") as file:
        identity = identify(file)
    assert identity is not None
    assert (identity.qualified_id, identity.model) == (THREAD, "gpt-5.2")
    assert identify([]) is None
    assert identify([line("session_meta", {}), line("session_meta", [])]) is None


@pytest.mark.parametrize("head_bytes", [200, 5000])
def test_rollouts_are_recognised_and_kept_apart_from_other_hosts(head_bytes):
    """By the first line, even when it is cut."""
    head = ROLLOUT.read_bytes()[:head_bytes]
    assert looks_like_transcript(head)
    assert not claude_code.looks_like_transcript(head)
    for path in (CAPTURES / "claude-code-2.1.330").glob("*.jsonl"):
        assert not looks_like_transcript(path.read_bytes()[:head_bytes])


@pytest.mark.parametrize("lost_lines", [1, 6])
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_a_rollout_that_lost_its_head_is_read(tmp_path, lost_lines, cut):
    """The first usage names session and thread; replay and report know the file."""
    lines = ROLLOUT.read_bytes().splitlines(keepends=True)[lost_lines:]
    left = [lines[0][20:], *lines[1:]] if cut else lines
    assert looks_like_transcript(b"".join(left))
    identity = identify(left)
    assert identity.qualified_id == THREAD
    reports = [one for one in TRANSCRIPTS.read_transcript(left) if isinstance(one, Report)]
    whole = [one for one in TRANSCRIPTS.read_transcript(lines) if isinstance(one, Report)]
    assert [one.tokens for one in reports] == [one.tokens for one in whole]
    path = tmp_path / "rollout.jsonl"
    path.write_bytes(b"".join(left))
    shown = run("replay", "--json", path)
    assert json.loads(shown.stdout)["agents"][0]["id"] == THREAD


def test_a_rollout_without_a_name_in_it_is_that_of_its_file():
    """Those of earlier versions hold no usage that names the thread; a model is in each turn."""
    turn = line("turn_context", {"model": "gpt-5.2", "cwd": "/w"})
    count = line("event_msg", {"type": "token_count", "info": None})
    name = f"/s/2026/01/02/rollout-2026-01-02T03-04-05-{THREAD}.jsonl"
    identity = TRANSCRIPTS.identify_file(name, [turn, count])
    assert (identity.qualified_id, identity.model, identity.project) == (THREAD, "gpt-5.2", "/w")
    assert TRANSCRIPTS.identify_file("/s/other.jsonl", [turn, count]) is None
    child = line("token_usage_record", {"session_id": THREAD, "thread_id": "child", "usage": {}})
    assert identify([child]).qualified_id == f"{THREAD}.child"


def test_messages_become_content_by_role():
    """What the events repeat for the user interface is not counted again."""
    records = read(
        line("response_item", {"type": "message", "role": "user", "content": [{"text": "go"}]}),
        line("event_msg", {"type": "user_message", "message": "go"}),
        line("response_item", {"type": "message", "role": "developer", "content": "rules"}),
        line("response_item", {"type": "reasoning", "summary": [{"text": "so"}], "content": None}),
        line("response_item", {"type": "custom_tool_call", "name": "patch", "call_id": "c"}),
        line("response_item", {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}),
        line("response_item", {"type": "function_call_output", "call_id": [], "output": "odd"}),
        line("response_item", {"type": "ghost_snapshot"}),
    )
    assert [(c.source, c.text, c.counted) for c in of(Content, records)] == [
        ("user", "go", False),
        ("developer", "rules", False),
        ("thinking", "so", True),
        ("assistant", "patch", True),
        ("tool:patch", "ok", False),
        ("tool:unknown", "odd", False),
    ]


@pytest.mark.parametrize("value", [-1, True, 10**10, 1.5, "12", [12]])
@pytest.mark.parametrize("name", ["input_tokens", "cached_input_tokens", "output_tokens"])
def test_impossible_numbers_break_the_line_and_nothing_else(name, value):
    """A wrong number is reported, never read as zero or cut to fit."""
    bad = line("token_usage_record", {"response_id": "r", "usage": usage(10) | {name: value}})
    broken, report = read(bad, usage_record(7))
    assert broken.line_number == 1
    assert name in broken.reason
    assert report.tokens == 7


@given(
    st.lists(
        st.binary()
        | st.builds(
            line,
            st.sampled_from(
                [
                    "session_meta",
                    "event_msg",
                    "response_item",
                    "token_usage_record",
                    "compacted",
                    "turn_context",
                ]
            ),
            st.recursive(
                st.none() | st.integers() | st.text() | st.sampled_from(["message", "token_count"]),
                lambda inner: (
                    st.lists(inner)
                    | st.dictionaries(
                        st.sampled_from(
                            ["type", "role", "content", "info", "usage", "id", "base_instructions"]
                        ),
                        inner,
                    )
                ),
                max_leaves=8,
            ),
        )
    )
)
def test_no_rollout_raises(lines):
    """Whatever the file holds, reading it gives records."""
    assert all(isinstance(record, Record) for record in TRANSCRIPTS.read_transcript(lines))
    identity = identify(lines)
    assert identity is None or identity.session_id
    assert looks_like_transcript(b"".join(lines)) in (True, False)


@pytest.mark.parametrize(("path", "has_text"), [(COMPACTED, True), (OVERFLOWED, False)])
def test_the_end_of_a_turn_says_whether_there_is_a_text(path, has_text):
    """A thread that ran out of room gives its launcher nothing."""
    with path.open("rb") as file:
        (returned,) = [r for r in TRANSCRIPTS.read_transcript(file) if isinstance(r, Returned)]
    assert (returned.agent_id, returned.has_text) == (None, has_text)


def test_the_identity_names_the_directory_in_which_the_thread_began():
    """It is in the first line of the rollout."""
    with ROLLOUT.open("rb") as file:
        assert identify(file).project == "/home/dev/project"


def message(role, *texts):
    """A message as the client writes what it adds to a conversation."""
    content = [{"type": "input_text", "text": text} for text in texts]
    return line("response_item", {"type": "message", "role": role, "content": content})


@pytest.mark.parametrize("folder", ["/srv/codex", None])
def test_what_the_client_adds_has_the_source_that_it_came_from(monkeypatch, folder):
    """The user's file of instructions comes before the project's, in one text."""
    monkeypatch.delenv("CODEX_HOME", raising=False)
    if folder is not None:
        monkeypatch.setenv("CODEX_HOME", folder)
    own = folder or os.path.expanduser("~/.codex")
    heading = "# AGENTS.md instructions for /srv/shop\n\n<INSTRUCTIONS>\n"
    files = f"{heading}Be brief.\n\n--- project-doc ---\n\nRun the tests.\n</INSTRUCTIONS>"
    records = read(
        message("developer", "<skills_instructions>\n- deploy", "<permissions instructions>\nAll."),
        message("user", files, "<environment_context>\n</environment_context>"),
        message("user", f"{heading}Run the tests.\n</INSTRUCTIONS>"),
        message("developer", NOTE),
        message("user", "Context window: 8k is too small for this log. Fix the bug."),
    )
    contents = of(Content, records)
    assert [(one.source, one.by_host) for one in contents] == [
        ("skills", False),
        ("developer", False),
        (f"memory:{own}/AGENTS.md", False),
        ("memory:/srv/shop/AGENTS.md", False),
        ("user", True),
        ("memory:/srv/shop/AGENTS.md", False),
        ("ultramon", False),
        ("user", False),
    ]
    assert "Be brief." in contents[2].text
    assert contents[3].text.strip().startswith("Run the tests.")
