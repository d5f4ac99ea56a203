"""The session file of a Gemini agent is read as recorded, and without trusting it."""

import json

import pytest
from helpers.gemini_session import RECORDED
from helpers.program import CAPTURES
from helpers.transcript_records import of
from hypothesis import given
from hypothesis import strategies as st

from ultramon.hosts.gemini.host import GEMINI
from ultramon.hosts.gemini.last_reading import read_last_reading, read_last_replies
from ultramon.hosts.gemini.reader import identify, looks_like_transcript
from ultramon.hosts.gemini.transcripts import TRANSCRIPTS
from ultramon.hosts.transcripts.records import Boundary, Broken, Content, Record, Report, Returned

AT = "2026-11-22T12:20:09.290Z"
HEADER = {"sessionId": "s1", "projectHash": "0", "startTime": AT, "kind": "main"}


def line(entry):
    """One line of a session file."""
    return json.dumps(entry).encode() + b"\n"


def reply(name, tokens, **more):
    """A reply of the model."""
    counts = {"input": tokens, "output": 9, "cached": 5, "thoughts": 0, "tool": 0}
    counts |= more.pop("counts", {})
    return line({"id": name, "timestamp": AT, "type": "gemini", "tokens": counts} | more)


def rewritten(*messages):
    """The line of a conversation that is written anew."""
    texts = [
        {"id": name, "type": "user", "timestamp": AT, "content": [{"text": text}]}
        for name, text in messages
    ]
    return line({"$set": {"messages": texts, "lastUpdated": AT}})


CONTEXT = ("c", "<session_context>\n- **Workspace Directories:**\n  - /home/dev/project\n")
SUMMARY = ("x", "<state_snapshot>so far</state_snapshot>")
NEWER = ("y", "<state_snapshot>so far, too</state_snapshot>")


def read(*lines):
    """The records of the lines."""
    return list(TRANSCRIPTS.read_transcript(lines))


def last(path, *lines):
    """The last reading of a file with these lines."""
    file = path / "session.jsonl"
    file.write_bytes(b"".join(lines))
    return read_last_reading(str(file), is_subagent=False)


def test_a_recorded_session_gives_each_reply_once():
    """A reply is written again when its tools have run; cached tokens are part of its input."""
    (path,) = (RECORDED / "plain" / "chats").glob("*.jsonl")
    with path.open("rb") as file:
        records = list(TRANSCRIPTS.read_transcript(file))
    counts = [(one.tokens, one.cache_read_tokens, one.output_tokens) for one in of(Report, records)]
    assert counts == [
        (22_000, 0, 40), (130_000, 20_000, 90), (301_000, 120_000, 60), (470_000, 300_000, 55),
        (512_000, 470_000, 33),
    ]  # fmt: skip
    assert {one.model for one in of(Report, records)} == {"gemini-2.5-pro"}
    sources = {one.source for one in of(Content, records)}
    assert sources == {"instructions", "hooks", "user", "tool:run_shell_command"}
    assert of(Broken, records) == of(Boundary, records) == []


def test_a_summary_is_one_boundary_and_a_resume_none():
    """A resumed session writes its conversation anew, the summary of before too."""
    records = read(
        line(HEADER), rewritten(CONTEXT), reply("1", 90), rewritten(CONTEXT, SUMMARY),
        reply("2", 20), line(HEADER), rewritten(CONTEXT), rewritten(CONTEXT, SUMMARY),
        reply("3", 30), rewritten(NEWER), reply("4", 5),
    )  # fmt: skip
    kinds = [type(one) for one in records if isinstance(one, Report | Boundary)]
    assert kinds == [Report, Boundary, Report, Report, Boundary, Report]
    assert [one.source for one in of(Content, records)] == ["instructions", "summary", "summary"]


def test_after_a_summary_nothing_is_known_until_the_next_reply(tmp_path):
    """Replies of before stand above it; those are of a window that is gone."""
    before = (line(HEADER), reply("1", 70), reply("2", 90), rewritten(CONTEXT, SUMMARY))
    reading = last(tmp_path, *before)
    assert (reading.report, reading.compaction_id) == (None, "x")
    reading = last(tmp_path, *before, reply("3", 20))
    assert (reading.report.tokens, reading.compaction_id) == (20, "x")
    reading = last(tmp_path, *before, reply("3", 20), reply("4", 30))
    assert (reading.report.tokens, reading.compaction_id) == (30, None)


def test_what_a_resume_repeats_is_no_compaction(tmp_path):
    """The last reply before it is still what fills the window."""
    begun = (line(HEADER), reply("1", 90), rewritten(CONTEXT, SUMMARY), reply("2", 20))
    resumed = (line(HEADER), rewritten(CONTEXT), rewritten(CONTEXT, SUMMARY))
    reading = last(tmp_path, *begun, *resumed)
    assert (reading.report.tokens, reading.compaction_id) == (20, "x")
    reading = last(tmp_path, *begun, reply("3", 25), *resumed, reply("4", 30))
    assert (reading.report.tokens, reading.compaction_id) == (30, None)
    assert last(tmp_path, *begun, *resumed, rewritten(NEWER)).compaction_id == "y"


def test_the_last_two_replies_are_of_this_window(tmp_path):
    """By them an agent is warned where no state can be stored."""
    last(
        tmp_path, reply("1", 70), rewritten(SUMMARY), reply("2", 20), reply("2", 20), reply("3", 9)
    )
    found = read_last_replies(str(tmp_path / "session.jsonl"), is_subagent=False)
    assert [(report.tokens, calls) for report, calls in found] == [(9, []), (20, [])]


def test_a_subagents_file_says_what_it_returned():
    """A session's own summary, made for a list of sessions, is no return."""
    child = line(HEADER | {"kind": "subagent"})
    result = line({"$set": {"summary": "found it"}})
    assert read(child, result) == [Returned(None, True, None)]
    assert read(child, line({"$set": {"summary": ""}})) == [Returned(None, False, None)]
    assert read(line(HEADER), result) == []


def test_the_identity_is_in_the_first_lines():
    """Session, model, and the folder that the client describes to the model."""
    identity = identify([line(HEADER), rewritten(CONTEXT), reply("1", 5, model="gemini-2.5-pro")])
    assert identity is not None
    assert (identity.qualified_id, identity.model) == ("s1", "gemini-2.5-pro")
    assert identity.project == "/home/dev/project"
    child = line(HEADER | {"kind": "subagent", "directories": ["/home/dev/other"]})
    identity = identify([child], "main")
    assert identity is not None
    assert (identity.qualified_id, identity.project) == ("main.s1", "/home/dev/other")
    assert identify([line({"kind": "main"})]) is None
    assert identify([]) is None


@pytest.mark.parametrize("session_id", ["../other", "/tmp", "a\0b", "\ud800", "a" * 5000, "."])
def test_a_hostile_session_id_leads_to_no_folder(tmp_path, session_id):
    """A recording of somebody else can neither name another folder nor stop its replay."""
    chats = tmp_path / "chats"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "planted.jsonl").touch()
    chats.mkdir()
    [recorded] = (RECORDED / "plain" / "chats").glob("session-*.jsonl")
    first, *lines = recorded.read_text().splitlines()
    first = json.dumps(json.loads(first) | {"sessionId": session_id})
    path = chats / recorded.name
    path.write_text("\n".join([first, *lines]))
    assert identify(path.read_bytes().splitlines()).session_id == session_id
    assert list(GEMINI.transcripts.subagent_transcripts(str(path))) == []


def test_session_files_are_kept_apart_from_those_of_other_hosts():
    """By the first line."""
    for path in RECORDED.rglob("chats/**/*.jsonl"):
        assert looks_like_transcript(path.read_bytes()[:4096])
    for path in CAPTURES.glob("*/*.jsonl"):
        assert not looks_like_transcript(path.read_bytes()[:65536])


@pytest.mark.parametrize("value", [-1, True, 10**10, 1.5, "12", [12]])
@pytest.mark.parametrize("name", ["input", "cached", "output"])
def test_impossible_numbers_break_the_line_and_nothing_else(tmp_path, name, value):
    """A wrong number is reported, never read as zero or cut to fit."""
    bad = reply("2", 10, counts={name: value})
    report, broken = read(reply("1", 7), bad)
    assert (report.tokens, broken.line_number) == (7, 2)
    assert name in broken.reason
    assert last(tmp_path, reply("1", 7), bad).report.tokens == 7


MEMBERS = st.sampled_from(
    ["id", "type", "content", "tokens", "messages", "summary", "$set", "kind", "sessionId", "text"]
)
WORDS = st.sampled_from(["gemini", "user", "subagent", "<state_snapshot>", "functionResponse"])
ENTRIES = st.dictionaries(
    MEMBERS,
    st.recursive(
        st.none() | st.integers() | WORDS | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(MEMBERS, inner),
        max_leaves=8,
    ),
)


@given(st.lists(st.binary() | ENTRIES.map(line)))
def test_no_session_file_raises(tmp_path_factory, lines):
    """Whatever the file holds, reading it gives records, and a reading or none."""
    assert all(isinstance(record, Record) for record in TRANSCRIPTS.read_transcript(lines))
    identity = identify(lines)
    assert identity is None or identity.session_id
    assert looks_like_transcript(b"".join(lines)) in (True, False)
    reading = last(tmp_path_factory.getbasetemp(), *lines)
    assert reading.report is None or reading.report.tokens > 0
