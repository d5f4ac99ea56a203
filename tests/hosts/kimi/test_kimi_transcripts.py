"""The wire files of Kimi CLI and Kimi Code as recorded, read as records."""

import json
import os
import shutil

import pytest
from helpers import DATA
from helpers.program import run
from helpers.transcript_records import of
from hypothesis import given
from hypothesis import strategies as st

from ultramon.hosts.kimi.reader import read_transcript
from ultramon.hosts.kimi.transcripts import TRANSCRIPTS
from ultramon.hosts.transcripts.records import (
    Billed,
    Boundary,
    Broken,
    Content,
    Record,
    Report,
    Returned,
    Rewind,
    Standing,
    Window,
)
from ultramon.recordings.clients import find_by_id

RECORDED = DATA / "kimi"
ENVIRON = {"KIMI_SHARE_DIR": str(RECORDED / "cli"), "KIMI_CODE_HOME": str(RECORDED / "code")}
PLAIN = [22_000, 110_000, 160_000, 40_000, 41_000, 42_000]


def file_of(agent):
    """The file of a recorded session, or of one of its subagents."""
    found = [
        path for path in TRANSCRIPTS.transcript_files(ENVIRON) if identity_of(path)[0] == agent
    ]
    (path,) = found
    return path


def identity_of(path):
    with open(path, "rb") as stream:
        found = TRANSCRIPTS.identify_file(path, stream)
    short = found.session_id.removeprefix("session_")[:8]
    return short if found.agent_id is None else f"{short}.{found.agent_id}", found


def records_of(agent):
    with open(file_of(agent), "rb") as stream:
        return list(read_transcript(stream))


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("96dc9b2f", PLAIN),
        ("0116c146", PLAIN),
        ("2bb194f6", [30_000, 33_000, 35_000]),
        ("8e84575a", [30_000, 33_000, 35_000]),
        ("2bb194f6.a7e695d95", [61_000, 88_000]),
        ("8e84575a.agent-0", [61_000, 88_000]),
        ("2bb194f6.a7cce99be", [12_000, 15_000]),
        ("8e84575a.agent-1", [12_000, 15_000]),
        ("b453007b", [60_000, 91_900, 91_990, 9_000, 9_500]),
        ("32905af1", [60_000, 91_900, 9_500]),
        ("54df1bf1", [60_000]),
        ("bf29434f", [60_000, 9_500]),
    ],
)
def test_a_reading_is_the_input_of_its_reply(agent, expected):
    """Each counts once, though the newer client writes it twice."""
    records = records_of(agent)
    assert [one.tokens for one in of(Report, records)] == expected
    assert not of(Broken, records)


def test_a_file_belongs_to_its_folder():
    """Which is named by the session, and lies in one of the project or beside what says it."""
    for agent in ("96dc9b2f", "0116c146", "2bb194f6.a7e695d95", "8e84575a.agent-0"):
        _, found = identity_of(file_of(agent))
        assert found.project == "/home/user/project"
    for main, count in (("2bb194f6", 2), ("8e84575a", 2), ("96dc9b2f", 0)):
        beside = list(TRANSCRIPTS.subagent_transcripts(file_of(main)))
        assert len(beside) == count
        assert all(identity_of(path)[0].startswith(f"{main}.") for path in beside)
    assert list(TRANSCRIPTS.subagent_transcripts(file_of("8e84575a.agent-0"))) == []
    assert list(TRANSCRIPTS.subagent_transcripts(file_of("2bb194f6.a7e695d95"))) == []


def test_the_older_client_states_the_window_and_no_model():
    """The newer one states the model and no window: nothing is made up for either."""
    old, new = records_of("b453007b"), records_of("32905af1")
    assert [one.tokens for one in of(Window, old)] == [100_000]
    assert {one.model for one in of(Report, old)} == {None}
    assert of(Window, new) == []
    assert {one.model for one in of(Report, new)} == {"fake-1"}
    reading = TRANSCRIPTS.read_last_reading(file_of("b453007b"), is_subagent=False)
    assert (reading.report.tokens, reading.window_tokens) == (9_500, 100_000)
    reading = TRANSCRIPTS.read_last_reading(file_of("32905af1"), is_subagent=False)
    assert (reading.report.tokens, reading.window_tokens) == (9_500, None)


def test_a_compaction_is_a_boundary():
    """The newer client says what it left and what its requests cost."""
    (boundary,) = of(Boundary, records_of("b453007b"))
    assert (boundary.trigger, boundary.post_tokens) == (None, None)
    records = records_of("32905af1")
    (boundary,) = of(Boundary, records)
    assert (boundary.trigger, boundary.post_tokens) == ("auto", 20_729)
    assert [(sum(one.billed_tokens[:4]), one.is_summary) for one in of(Billed, records)] == [
        (91_990, True),
        (9_000, True),
        (9_500, True),
    ]
    assert [one.source for one in of(Content, records)].count("summary") == 1


@pytest.mark.parametrize("agent", ["2bb194f6", "8e84575a"])
def test_a_launcher_says_whether_it_got_a_text(agent):
    """By the name that the subagent's folder has."""
    names = sorted(identity_of(path)[1].agent_id
                   for path in TRANSCRIPTS.subagent_transcripts(file_of(agent)))  # fmt: skip
    returned = of(Returned, records_of(agent))
    assert sorted(one.agent_id for one in returned) == names
    assert all(one.has_text for one in returned)


@pytest.mark.parametrize("agent", ["96dc9b2f", "0116c146"])
def test_texts_are_what_filled_the_window(agent):
    """Calls and replies are in the count of their reply, wherever that stands in the step."""
    records = [one for one in records_of(agent) if not isinstance(one, Window | Standing)]
    first = next(at for at, one in enumerate(records) if isinstance(one, Report))
    assert [(one.source, one.counted) for one in records[first + 1 : first + 3]] == [
        ("assistant", True),
        (records[first + 2].source, False),
    ]
    assert records[first + 2].source in ("tool:Shell", "tool:Bash")
    files = [one.file for one in of(Content, records) if one.source.startswith("tool:Read")]
    assert set(files) == {"a.txt"}


def test_the_newer_client_writes_down_what_stands_in_every_request():
    """The system prompt and the definitions of tools."""
    standing = of(Standing, records_of("0116c146"))[-1]
    assert [source for source, _ in standing.parts] == ["system", "tools", "tools"]
    assert standing.is_whole


def test_an_emptied_conversation_is_no_compaction():
    """The older client's number drops to nothing; the newer one notes it."""
    status = {"context_usage": 0.0, "context_tokens": 0, "max_context_tokens": 9}
    old = [
        {"type": "metadata", "protocol_version": "1.10"},
        {"timestamp": 1.0, "message": {"type": "StatusUpdate", "payload": status}},
    ]
    new = [
        {"type": "metadata", "protocol_version": "1.5", "created_at": 1},
        {"type": "context.clear", "agentId": "main", "time": 1_000},
    ]
    for lines in (old, new):
        records = read_transcript(json.dumps(line).encode() for line in lines)
        assert of(Rewind, records) == [Rewind(1.0)]


def test_a_subagent_without_a_file_counts_where_it_is_written():
    """As in older versions, whose events name no agent."""
    usage = {"input_other": 10, "input_cache_read": 2, "input_cache_creation": 0, "output": 3}
    event = {"type": "StatusUpdate", "payload": {"token_usage": usage}}
    payload = {"task_tool_call_id": "call_1", "event": event}
    line = {"timestamp": 1.0, "message": {"type": "SubagentEvent", "payload": payload}}
    (found,) = read_transcript([json.dumps(line).encode()])
    assert found == Billed(None, (10, 2, 0, 0, 3), 1.0)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"type": "metadata", "protocol_version": "2.0"}', "format 2.0 of Kimi CLI"),
        (
            '{"type":"metadata","protocol_version":"1.6","created_at":1}',
            "format 1.6 of Kimi Code",
        ),
    ],
)
def test_an_unknown_version_is_named_and_not_read(line, problem, tmp_path):
    """Also in the report, beside the sessions that are known."""
    shutil.copytree(RECORDED / "cli", tmp_path / "cli")
    path = next((tmp_path / "cli" / "sessions").glob("*/96dc9b2f*/wire.jsonl"))
    path.write_text(f"{line}\n" + path.read_text().partition("\n")[2])
    assert TRANSCRIPTS.looks_like_transcript(path.read_bytes())
    with path.open("rb") as stream, pytest.raises(ValueError, match="is not known"):
        TRANSCRIPTS.identify_file(str(path), stream)
    variables = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    variables |= {"KIMI_SHARE_DIR": str(tmp_path / "cli"), "XDG_DATA_HOME": str(tmp_path)}
    done = run("report", "--days", "9999", **variables)
    assert done.returncode == 0, done.stderr
    assert f"{problem} is not known: nothing was read" in done.stderr
    assert "3 sessions" in done.stdout


def test_a_session_is_found_by_its_id(monkeypatch):
    """Though all files have one name; it brings its subagents."""
    for agent in ("2bb194f6", "session_8e84575a"):
        (path,) = find_by_id(agent, ENVIRON | {"HOME": "/nowhere"})
        assert path == file_of(agent.removeprefix("session_"))
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    done = run("replay", "2bb194f6", "--no-plot", **ENVIRON)
    assert done.stdout.count("200,000 tokens (observed)") == 3


def test_a_report_counts_each_reply_once(tmp_path):
    """Of subagents too; what has no price is unpriced, not free."""
    variables = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), **ENVIRON}
    variables["XDG_DATA_HOME"] = str(tmp_path)
    done = run("report", "--days", "9999", "--json", **variables)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["sessions"], report["subagents"]) == (8, 4)
    assert report["unpricedSessions"] == 7
    assert not os.path.exists(tmp_path / ".kimi")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["type", "payload", "message", "token_usage", "usage", "input_other", "inputOther",
             "event", "part", "text", "content", "result", "output", "uuid", "tools", "name"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip
KINDS = ["StatusUpdate", "ToolCall", "ToolResult", "SubagentEvent", "ContentPart", "TurnBegin"]
TYPES = ["context.append_loop_event", "context.append_message", "usage.record", "llm.request",
         "context.apply_compaction", "profile.bind", "llm.tools_snapshot"]  # fmt: skip


@given(st.booleans(), st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(TYPES), VALUES)))
def test_no_line_is_too_strange(is_new, entries):
    """Whatever JSON a file holds: records, or a line that could not be read."""
    head = {"type": "metadata", "protocol_version": "1.5"} | ({"created_at": 1} if is_new else {})
    lines = [json.dumps(head)]
    for kind, name, value in entries:
        more = value if isinstance(value, dict) else {"event": value, "message": value}
        line = (
            {**more, "type": name, "time": value}
            if is_new
            else {"timestamp": value, "message": {"type": kind, "payload": value}}
        )
        lines.append(json.dumps(line))
    for record in read_transcript(line.encode() for line in lines):
        assert isinstance(record, Record)
