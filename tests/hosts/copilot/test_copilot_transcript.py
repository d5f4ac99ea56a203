"""The event file of a Copilot session is read as recorded, and without trusting it."""

import json
import os

import pytest
from helpers.copilot_session import MAIN, PART_A, PART_B, RECORDED, plant
from helpers.program import run
from helpers.transcript_records import of
from hypothesis import given
from hypothesis import strategies as st

from ultramon.context.note import write_note
from ultramon.hosts.copilot.reader import identify, looks_like_transcript
from ultramon.hosts.copilot.transcripts import TRANSCRIPTS
from ultramon.hosts.transcripts.jsonl import bounded_lines
from ultramon.hosts.transcripts.records import (
    OVERFLOW,
    Billed,
    Boundary,
    Broken,
    Content,
    LimitReached,
    Overflow,
    Record,
    Report,
    Returned,
    Rewind,
    SessionEnd,
    Standing,
    Window,
)
from ultramon.recordings.packed import open_recording
from ultramon.recordings.recordings import find_recordings

AT = "2026-11-25T09:14:42.448Z"


def path_of(name, agent_id=None):
    """The name of a recorded transcript."""
    file = str(RECORDED / name / "events.jsonl")
    return file if agent_id is None else os.path.join(file, agent_id)


def lines_of(name, agent_id=None):
    with open_recording(path_of(name, agent_id)) as stream:
        return list(bounded_lines(stream))


def records_of(name, agent_id=None):
    return list(TRANSCRIPTS.read_transcript(lines_of(name, agent_id)))


def event(kind, data, **more):
    """One line of an event file."""
    entry = {"type": kind, "data": data, "id": "e", "timestamp": AT, "parentId": None}
    return json.dumps(entry | more).encode() + b"\n"


def usage(tokens, **more):
    """The event of a request."""
    counts = {"model": "m", "inputTokens": tokens, "outputTokens": 9, "maxPromptTokens": 100_000}
    return event("session.usage_record", {"usage": counts | more})


@pytest.mark.parametrize(
    ("name", "agent_id", "expected"),
    [
        ("plain_then_continue", None, [22_000, 50_000, 70_000, 72_000, 73_000]),
        ("subagents", None, [30_000, 35_000]),
        ("subagents", PART_A, [61_000, 68_000]),
        ("subagents", PART_B, [12_000, 15_000]),
        ("compaction", None, [60_000, 79_000, 80_500, 81_500, 21_000, 21_500]),
        ("overflow", None, [60_000]),
        ("ended_by_permission_hook", None, [22_000, 50_000]),
        ("killed", None, [52_000, 71_000]),
    ],
)
def test_each_agent_has_the_counts_of_its_own_requests(name, agent_id, expected):
    """One file holds them all; the input includes what was cached, and states its limit."""
    records = records_of(name, agent_id)
    assert [one.tokens for one in of(Report, records)] == expected
    assert {one.cache_in_input for one in of(Report, records)} == {True}
    assert [one.tokens for one in of(Window, records)] == [100_000]
    assert of(Broken, records) == []


def test_a_file_holds_a_session_and_its_subagents():
    """Each is named and says whose it is, when it began, and with which model."""
    file = path_of("subagents")
    paths = [path_of("subagents", one) for one in (None, PART_A, PART_B)]
    assert TRANSCRIPTS.transcripts_in(file) == paths
    for agent_id, began_at in ((None, 1_795_597_914.039), (PART_A, 1_795_597_914.901)):
        found = identify(lines_of("subagents", agent_id))
        assert (found.session_id, found.agent_id) == (MAIN, agent_id)
        assert (found.model, found.project) == ("fake-1", "/home/user/project")
        assert found.began_at == began_at
    for folder in (file, str(RECORDED / "subagents")):
        found = [one.id for one in find_recordings([folder]).recordings]
        assert found == [MAIN, f"{MAIN}.{PART_A}", f"{MAIN}.{PART_B}"]
    (skipped,) = find_recordings([path_of("subagents", "another")]).skipped
    assert "no subagent of that name" in skipped.reason


def test_a_launcher_says_whether_it_got_a_text():
    """By the calls that launched its subagents, in the order in which they came back."""
    found = of(Returned, records_of("subagents"))
    assert [(one.agent_id, one.has_text) for one in found] == [(PART_B, True), (PART_A, True)]


def test_a_window_is_a_new_one_from_the_end_of_a_compaction_on():
    """It runs beside the conversation: a reply of the old window comes behind its begin."""
    records = records_of("compaction")
    kinds = [type(one) for one in records if isinstance(one, Report | Billed | Boundary)]
    assert kinds == [*[Report] * 4, Billed, Boundary, *[Report] * 2]
    (boundary,) = of(Boundary, records)
    assert (boundary.trigger, boundary.post_tokens) == ("auto", None)
    (billed,) = of(Billed, records)
    assert (billed.billed_tokens, billed.is_summary) == ((2_000, 79_000, 0, 0, 410), True)
    (summary,) = [one for one in of(Content, records) if one.source == "summary"]
    assert summary.text.startswith("<overview>")
    (boundary,) = of(Boundary, records_of("interactive_compact_clear"))
    assert boundary.trigger == "manual"


def test_a_compaction_that_was_given_up_costs_and_changes_nothing():
    """The old window continues."""
    data = {"success": False, "outcome": "cancelled"}
    used = {"compactionTokensUsed": {"model": "m", "inputTokens": 9, "outputTokens": 1}}
    for more, kinds in (({}, []), (used, [Billed])):
        found = list(
            TRANSCRIPTS.read_transcript([event("session.compaction_complete", data | more)])
        )
        assert [type(one) for one in found] == kinds


def test_a_refused_request_is_an_overflow_and_a_limit_is_none():
    """By the words of the provider, and by the status."""
    assert len(of(Overflow, records_of("overflow"))) == 1
    data = {"errorType": "rate_limit", "message": "429 too many requests", "statusCode": 429}
    (found,) = TRANSCRIPTS.read_transcript([event("session.error", data)])
    assert isinstance(found, LimitReached)
    assert (
        list(TRANSCRIPTS.read_transcript([event("session.error", data | {"statusCode": 500})]))
        == []
    )


def test_texts_are_what_filled_the_window():
    """Replies are in the count of their request; hooks say something behind results and prompts."""
    found = [(one.source, one.counted) for one in of(Content, records_of("subagents", PART_B))]
    assert found == [
        ("user", False), ("attachment:time", False), ("assistant", True), ("tool:view", False),
        ("hooks", False), ("assistant", True),
    ]  # fmt: skip
    (result,) = [
        one for one in of(Content, records_of("subagents", PART_B)) if one.source == "tool:view"
    ]
    assert (result.text, result.file) == ("alpha\n", "a.txt")
    said = write_note(80_000, 100_000, reading=("reported", 1.0), now=1.0)
    reminder = f"<system_reminder>\n{said}\n</system_reminder>"
    prompt = {"content": "go", "transformedContent": f"<now>1</now>\n\ngo\n\n{reminder}"}
    found = of(Content, TRANSCRIPTS.read_transcript([event("user.message", prompt)]))
    assert [(one.text, one.source) for one in found] == [
        ("go", "user"), ("<now>1</now>", "attachment:time"), (said, "ultramon"),
    ]  # fmt: skip
    skill = event("user.message", {"content": "do", "source": "skill-x"})
    assert [one.by_host for one in of(Content, TRANSCRIPTS.read_transcript([skill]))] == [True]


def test_the_system_prompt_stands_in_every_request():
    """Definitions of tools are not written down."""
    (found, *_) = of(Standing, records_of("plain_then_continue"))
    assert (found.parts, found.is_whole) == ((("system", "…"),), False)
    said = "You are.\n<custom_instruction>\nRule.\n</custom_instruction>\n\nEnd."
    (found,) = TRANSCRIPTS.read_transcript([event("system.message", {"content": said})])
    assert found.parts == (
        ("system", "You are.\n\n\nEnd."), ("memory:custom instructions", "\nRule.\n"),
    )  # fmt: skip


def test_a_rewind_is_no_compaction():
    """A person took back what was said last."""
    data = {"upToEventId": "e", "eventsRemoved": 3}
    assert (
        len(of(Rewind, TRANSCRIPTS.read_transcript([event("session.snapshot_rewind", data)]))) == 1
    )


def last(name, agent_id=None):
    path = path_of(name, agent_id)
    return TRANSCRIPTS.read_last_reading(path, is_subagent=agent_id is not None)


def test_the_last_reading_is_that_of_the_agents_last_reply():
    """With its text and its limit; what was written by others behind it does not count."""
    for agent_id, tokens, text in (
        (None, 35_000, "Joined."), (PART_A, 68_000, "Part A done."),
        (PART_B, 15_000, "Part B done."),
    ):  # fmt: skip
        reading = last("subagents", agent_id)
        assert (reading.report.tokens, reading.text) == (tokens, text)
        assert (reading.window_tokens, reading.is_current) == (100_000, True)
    reading = last("overflow")
    assert (reading.error, reading.error_status) == (OVERFLOW, 400)
    assert (reading.report.tokens, reading.refused_above_tokens) == (60_000, 100_000)


def test_after_a_compaction_nothing_is_known_until_the_next_reply(tmp_path):
    """The compaction is named until two replies have followed it."""
    lines = lines_of("compaction")
    (at,) = [i for i, line in enumerate(lines) if b"session.compaction_complete" in line]
    name = json.loads(lines[at])["id"]
    usages = [i for i, line in enumerate(lines) if b"session.usage_record" in line and i > at]
    for end, tokens, expected in (
        (at, 81_500, None), (at + 1, None, name), (usages[0] + 1, 21_000, name),
        (usages[1] + 1, 21_500, None),
    ):  # fmt: skip
        file = tmp_path / "events.jsonl"
        file.write_bytes(b"".join(lines[:end]))
        reading = TRANSCRIPTS.read_last_reading(str(file), is_subagent=False)
        assert (reading.report and reading.report.tokens, reading.compaction_id) == (
            tokens,
            expected,
        )
        replies = TRANSCRIPTS.read_last_replies(str(file), is_subagent=False)
        assert bool(replies) is (tokens is not None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain_then_continue", SessionEnd(1_795_597_938.639)),
        ("overflow", SessionEnd(1_795_597_930.53, OVERFLOW)),
        ("killed", None),
    ],
)
def test_a_session_says_how_it_ended_unless_it_was_killed(name, expected):
    """By its last event, and by what stands before that."""
    assert TRANSCRIPTS.read_session_end(path_of(name), {}) == expected


def test_what_a_subagent_costs_is_read_from_the_end():
    """As far as it is not counted yet; a session's own file is read on instead."""
    path = path_of("subagents", PART_A)
    found = TRANSCRIPTS.new_requests(path, (), 10)
    assert [one.tokens for _, one in found] == [61_000, 68_000]
    assert TRANSCRIPTS.new_requests(path, [found[0][0]], 10) == found[1:]
    assert TRANSCRIPTS.new_requests(path, (), 1) == found[1:]
    assert TRANSCRIPTS.new_requests(path_of("subagents"), (), 10) is None


def test_a_reader_continues_where_another_stopped():
    """The same records as in one go, wherever it was interrupted."""
    lines = [json.loads(line) for line in lines_of("subagents")]
    expected = records_of("subagents")
    for cut in range(len(lines)):
        reader, found = TRANSCRIPTS.open_reader(), []
        for number, line in enumerate(lines):
            if number == cut:
                reader = TRANSCRIPTS.open_reader(json.loads(json.dumps(reader.memory())))
            found += reader.read(line)
        assert found == expected


@given(st.lists(st.one_of(st.binary(max_size=80), st.sampled_from(lines_of("compaction")))))
def test_any_bytes_give_records(lines):
    """Nothing is raised, whatever a file holds."""
    assert all(isinstance(one, Record) for one in TRANSCRIPTS.read_transcript(lines))
    identify(lines)
    looks_like_transcript(b"".join(lines))


@pytest.mark.parametrize("tokens", [-1, 1.5, True, "9", 2_000_000_000])
def test_an_impossible_count_is_broken_and_no_reading(tmp_path, tokens):
    """The reply before it is the last one."""
    (found,) = of(Broken, TRANSCRIPTS.read_transcript([usage(tokens)]))
    assert "inputTokens" in found.reason
    file = tmp_path / "events.jsonl"
    file.write_bytes(usage(7) + usage(tokens))
    reading = TRANSCRIPTS.read_last_reading(str(file), is_subagent=False)
    assert reading.report.tokens == 7


def test_a_request_for_something_else_is_billed_and_no_reading():
    """What the host asks beside the conversation says nothing of its window."""
    (window, found) = TRANSCRIPTS.read_transcript([usage(7, interactionType="session-title")])
    assert (type(window), type(found), found.is_summary) == (Window, Billed, False)


def test_the_report_and_a_replay_know_the_host(tmp_path):
    """A session with its subagents, found in the host's own folder."""
    home = tmp_path / "home"
    path = plant(home, "subagents", MAIN)
    environ = {"HOME": str(tmp_path), "COPILOT_HOME": str(home)}
    done = run("report", "--json", "--days", "9999", **environ)
    survey = json.loads(done.stdout)
    assert (survey["hosts"], survey["sessions"], survey["subagents"]) == (["copilot"], 1, 2)
    assert survey["subagentsWithText"] == 2
    done = run("replay", f"{path}/{PART_A}", **environ)
    assert done.returncode == 0, done.stderr
    assert "68,000" in done.stdout
