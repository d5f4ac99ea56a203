"""The transcript is one call behind: a hook waits for it where that matters, and only there."""

import ctypes
import json
import os
import struct
import sys
import threading
from contextlib import contextmanager, suppress

import pytest
from helpers.hooked_session import HookedSession, tokens_at
from helpers.requirements import read_only
from helpers.transcript_lines import line

from ultramon.hosts.calls.hosted_agent import SILENT_CALLS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks are seen through inotify")

_OPENED, _CLOSED_UNWRITTEN = 0x20, 0x10
_EVENT = struct.Struct("iIII")


@contextmanager
def looks_at(path):
    """Give a descriptor from which can be read when a file is read."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    # Opening is watched too: the system tells the same thing twice in a row only once.
    assert libc.inotify_add_watch(fd, os.fsencode(path), _OPENED | _CLOSED_UNWRITTEN) > 0
    try:
        yield fd
    finally:
        os.close(fd)


def wait_for_look(fd):
    """Return when the file has been read once more."""
    while not _EVENT.unpack(os.read(fd, _EVENT.size))[1] & _CLOSED_UNWRITTEN:
        pass


def count(fd):
    """The looks that nobody has waited for."""
    os.set_blocking(fd, False)
    looks = 0
    with suppress(BlockingIOError):
        while True:
            wait_for_look(fd)
            looks += 1
    return looks


def run(session, event, *written, agent=None, **fields):
    """Run the hook; after each of its first looks do one thing more.

    Returns the answer and how often it looked, those looks included.
    """
    path = session.file_of(agent)
    with looks_at(path) as fd:
        process = session.start()

        def write():
            for one in written:
                wait_for_look(fd)
                one()

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        payload = session.payload(event, agent, **fields)
        out, err = process.communicate(json.dumps(payload).encode())
        assert (process.returncode, err) == (0, b"")
        writer.join(10)
        assert not writer.is_alive(), "the hook looked less often than that"
        looks = len(written) + count(fd)
    return (json.loads(out)["hookSpecificOutput"]["additionalContext"] if out else ""), looks


@pytest.fixture
def session(tmp_path):
    return HookedSession(tmp_path)


@pytest.mark.parametrize("agent", [None, "sub"])
@pytest.mark.parametrize(("before", "after"), [(40, 30), (45, 34), (30, 22), (37, 35)])
def test_near_a_rung_the_record_of_the_call_is_waited_for(session, agent, before, after):
    """The warning carries the number of the call that has just run."""
    session.tool(tokens_at(before), agent)
    newer = session.reply_line(tokens_at(after), "toolu_new", agent=agent)
    text, looks = run(
        session, "PostToolUse", lambda: session.write(newer, agent=agent),
        agent=agent, tool_use_id="toolu_new",
    )  # fmt: skip
    assert f"{tokens_at(after):,} of 200,000 tokens" in text
    assert looks >= 2
    assert session.record(agent).estimated_tokens == tokens_at(after)
    assert session.memory(agent)["isLagging"] is False


def test_without_a_store_the_first_record_is_waited_for(session):
    """Where nothing can be stored the warning is decided by the same record."""
    session.write(session.reply_line(tokens_at(60)))
    newer = session.reply_line(tokens_at(30), "toolu_new")
    with read_only(session.state):
        text, _ = run(
            session, "PostToolUse", lambda: None, lambda: None, lambda: session.write(newer),
            tool_use_id="toolu_new",
        )  # fmt: skip
    assert "140,000 of 200,000 tokens" in text


def test_the_record_may_come_in_pieces(session):
    """A line that is half written is not there yet."""
    session.tool(tokens_at(40))
    whole = line(session.reply_line(tokens_at(30), "toolu_new"))
    text, looks = run(
        session, "PostToolUse", lambda: session.write(whole[:100]),
        lambda: session.write(whole[100:]), tool_use_id="toolu_new",
    )  # fmt: skip
    assert "140,000 of 200,000 tokens" in text
    assert looks >= 3


def test_the_first_blocks_of_a_reply_do_not_end_the_wait(session):
    """The reply is written block by block, each with its id; the call may be in the last."""
    session.tool(tokens_at(40))
    thought, calling = session.reply_line(tokens_at(30)), session.reply_line(tokens_at(30), "new")
    calling["message"]["id"] = thought["message"]["id"]
    text, looks = run(
        session, "PostToolUse", lambda: session.write(thought), lambda: session.write(calling),
        tool_use_id="new",
    )  # fmt: skip
    assert "140,000 of 200,000 tokens" in text
    assert looks >= 3


def test_a_batch_waits_for_its_last_call(session):
    """The batch's payload names its calls."""
    session.tool(tokens_at(40))
    newer = session.reply_line(tokens_at(30), "toolu_1", "toolu_2")
    calls = [{"tool_name": "Bash", "tool_use_id": name} for name in ("toolu_1", "toolu_2")]
    text, _ = run(session, "PostToolBatch", lambda: session.write(newer), tool_calls=calls)
    assert "140,000 of 200,000 tokens" in text


def test_a_record_that_never_comes_is_waited_for_in_vain_once(session):
    """Then the last one counts, and is marked as lagging."""
    session.tool(tokens_at(40))
    text, looks = run(session, "PostToolUse", tool_use_id="toolu_new")
    assert text == ""
    assert looks > 5
    record = session.record()
    assert (record.estimated_tokens, session.memory()["isLagging"]) == (tokens_at(40), True)
    assert session.failures() == []


@pytest.mark.parametrize("remaining", [99, 80, 60, 46])
def test_far_from_a_rung_nothing_is_waited_for(session, remaining):
    """One look is enough where no rung can be reached."""
    session.tool(tokens_at(remaining))
    session.tool(tokens_at(remaining))
    _, looks = run(session, "PostToolUse", tool_use_id="toolu_new")
    assert looks == 1
    assert session.record().estimated_tokens == tokens_at(remaining)
    assert session.memory()["isLagging"] is True


@pytest.mark.parametrize("agent", [None, "sub"])
def test_above_the_last_rung_the_record_of_the_call_is_waited_for(session, agent):
    """The warning that is repeated there, and the state, tell of the reply that was served last."""
    for number in range(SILENT_CALLS + 1):
        session.tool(tokens_at(20 - number), agent)
    newer = session.reply_line(tokens_at(10), "toolu_new", agent=agent)
    text, looks = run(
        session, "PostToolUse", lambda: session.write(newer, agent=agent),
        agent=agent, tool_use_id="toolu_new",
    )  # fmt: skip
    assert looks >= 2
    assert f"{tokens_at(10):,} of 200,000 tokens" in text
    assert session.record(agent).estimated_tokens == tokens_at(10)


def test_a_fast_pace_makes_far_near(session):
    """Where the last calls took 20 % of the window each, 40 % below a rung is not far."""
    for remaining in (95, 75):
        session.tool(tokens_at(remaining))
    newer = session.reply_line(tokens_at(30), "toolu_new")
    text, _ = run(session, "PostToolUse", lambda: session.write(newer), tool_use_id="toolu_new")
    assert "140,000 of 200,000 tokens" in text


ENDS = [("Stop", None), ("SubagentStop", "sub")]


@pytest.mark.parametrize(("event", "agent"), ENDS)
def test_an_end_waits_for_its_last_reply(session, event, agent):
    """The payload says which it is; the crossing that it brings is stored with it."""
    session.tool(20_000, agent)
    last = session.reply_line(170_000, agent=agent, text="All done.\n")
    _, looks = run(
        session, event, lambda: session.write(last, agent=agent),
        agent=agent, last_assistant_message="All done.",
    )  # fmt: skip
    assert looks >= 2
    assert session.record(agent).estimated_tokens == 170_000
    (crossing,) = session.events("context_threshold_reached")
    assert (crossing["level"], crossing["tokens"]) == ("critical", 170_000)


def test_an_earlier_reply_of_the_same_words_is_not_the_last(session):
    """Many turns end with the same sentence."""
    session.tool(20_000)
    session.reply(30_000, text="Done.")
    assert run(session, "Stop", last_assistant_message="Done.")[1] == 1
    last = session.reply_line(60_000, text="Done.")
    _, looks = run(session, "Stop", lambda: session.write(last), last_assistant_message="Done.")
    assert looks >= 2
    assert session.record().estimated_tokens == 60_000


@pytest.mark.parametrize(("event", "agent"), ENDS)
def test_an_end_without_its_reply_ends_all_the_same(session, event, agent):
    """After a bounded time, with the reply that is there."""
    session.tool(20_000, agent)
    _, looks = run(session, event, agent=agent, last_assistant_message="Never written.")
    assert looks > 5
    assert session.record(agent).estimated_tokens == 20_000
    assert session.record(agent).outcome == ("completed" if agent else None)


def test_an_end_that_is_a_refusal_is_not_waited_for(session):
    """No reply will come, and the turn has failed."""
    session.tool(20_000)
    session.refusal()
    _, looks = run(session, "StopFailure", error="x", last_assistant_message="Something else")
    assert looks == 1


@pytest.mark.parametrize("agent", [None, "sub"])
def test_while_a_tool_runs_the_reading_is_that_of_its_call(session, agent):
    """Near a rung the record of the call is waited for before the tool runs, not after it."""
    session.tool(tokens_at(40), agent)
    newer = session.reply_line(tokens_at(30), "toolu_new", agent=agent)
    text, looks = run(
        session, "PreToolUse", lambda: session.write(newer, agent=agent),
        agent=agent, tool_use_id="toolu_new",
    )  # fmt: skip
    assert (text, looks >= 2) == ("", True)
    record = session.record(agent)
    assert (record.phase, record.estimated_tokens) == ("in_tool", tokens_at(30))
    assert len(session.events("context_threshold_reached")) == 1
    text, looks = run(session, "PostToolUse", agent=agent, tool_use_id="toolu_new")
    assert "140,000 of 200,000 tokens" in text
    assert looks == 2  # for the reading, and for the client's token budget that the note names


def test_before_the_first_reply_is_written_a_tool_is_no_failure(session):
    """The client makes the transcript while the first tool of a session runs."""
    session.call("PreToolUse", tool_use_id="toolu_1")
    assert session.failures() == []
    assert session.record().phase == "in_tool"


@pytest.mark.parametrize("event", ["PostToolUse", "UserPromptSubmit", "Stop", "PreCompact"])
def test_what_is_there_is_not_waited_for(session, event):
    """One look where the record holds the call, or the event is about no call."""
    session.tool(tokens_at(40))
    session.reply(tokens_at(39), "toolu_new")
    calls = {"tool_use_id": "toolu_new"} if event == "PostToolUse" else {}
    _, looks = run(session, event, **calls)
    assert looks == 1
    assert session.record().estimated_tokens == tokens_at(39)


@pytest.mark.parametrize("change", ["gone", "emptied", "compacted"])
def test_a_transcript_that_changes_gives_no_number(session, change):
    """What was read is not there any more; where there is no file at all the wait ends."""
    session.tool(tokens_at(40))
    changes = {
        "gone": session.transcript.unlink,
        "emptied": lambda: os.truncate(session.transcript, 0),
        "compacted": session.boundary,
    }
    text, looks = run(session, "PostToolUse", changes[change], tool_use_id="toolu_new")
    assert text == ""
    # A wait in vain looks more often.
    assert change != "gone" or looks <= 5
    assert len(session.failures()) == (1 if change == "gone" else 0)
    assert session.record().estimated_tokens == tokens_at(40)


@pytest.mark.parametrize("agent", [None, "sub"])
@pytest.mark.parametrize("is_seen", [False, True], ids=["unseen", "seen"])
def test_the_first_reply_of_a_session_is_waited_for(session, agent, is_seen):
    """Nothing is known of its window, which may be full already."""
    session.write(b"\n", agent=agent)
    if is_seen:
        session.call("SubagentStart" if agent else "SessionStart", agent, source="startup")
    newer = session.reply_line(tokens_at(30), "toolu_new", agent=agent)
    text, looks = run(
        session, "PostToolUse", lambda: session.write(newer, agent=agent),
        agent=agent, tool_use_id="toolu_new",
    )  # fmt: skip
    assert "140,000 of 200,000 tokens" in text
    assert looks >= 2


def test_the_first_reply_behind_a_compaction_is_waited_for(session):
    """Also where the call before was far from a rung and lagged."""
    session.tool(tokens_at(80))
    session.call("PostToolUse", tool_use_id="toolu_late")
    assert session.memory()["isLagging"] is True
    for event in ("PreCompact", "SessionStart", "PostCompact"):
        session.call(event, source="compact")
    session.boundary()
    newer = session.reply_line(tokens_at(30), "toolu_new")
    text, _ = run(session, "PostToolUse", lambda: session.write(newer), tool_use_id="toolu_new")
    assert "140,000 of 200,000 tokens" in text


def test_a_transcript_that_never_says_anything_is_waited_for_once(session):
    """One of a client whose format is another: the next calls lose no time."""
    session.write(b'{"type":"of the future"}\n')
    assert run(session, "PostToolUse", tool_use_id="toolu_1")[1] > 5
    assert run(session, "PostToolUse", tool_use_id="toolu_2")[1] == 1
    assert run(session, "PostToolUse", tool_use_id="toolu_3")[1] == 1
    assert session.record().measured_at is None
    assert session.failures() == []


def test_far_from_a_rung_a_large_result_is_reason_enough_to_wait(session):
    """What was written since the last reply may be most of a window."""
    session.tool(20_000)
    session.tool(21_000)
    session.write(
        {"type": "user", "message": {"content": [{"type": "text", "text": "x" * 600_000}]}}
    )
    newer = session.reply_line(190_000, "toolu_new")
    text, _ = run(session, "PostToolUse", lambda: session.write(newer), tool_use_id="toolu_new")
    assert "190,000 of 200,000 tokens" in text


def test_a_transcript_that_comes_a_moment_later_is_no_failure(session):
    """The client makes the file while the first tool of a session runs."""
    process = session.start(session.payload("PostToolUse", tool_use_id="toolu_1"))
    session.reply(140_000, "toolu_1")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert "140,000 of 200,000 tokens" in json.loads(out)["hookSpecificOutput"]["additionalContext"]
    assert session.failures() == []
