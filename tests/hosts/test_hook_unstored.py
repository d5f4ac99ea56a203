"""A hook that can store nothing: the disk is read-only, full, or not there. The agent is warned."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager, suppress

import pytest
from helpers.hooked_session import HookedSession, said, tokens_at
from helpers.requirements import read_only, require_root_mount, unmount


@contextmanager
def full(directory):
    """A file system of its own on which nothing is left, with what was in the directory."""
    kept = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    require_root_mount(directory, "size=64k,mode=700")
    try:
        for name, data in kept.items():
            (directory / name).write_bytes(data)
            (directory / name).chmod(0o600)
        with suppress(OSError), (directory / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(512))
        yield
    finally:
        unmount(directory)


@contextmanager
def no_store(kind, session):
    """Keep a session's hooks from writing; how, where that is possible without being root."""
    if kind == "read-only":
        with read_only(session.state):
            yield
    elif kind == "full":
        with full(session.state):
            yield
    elif kind == "below a file":
        (session.path / "file").write_text("no directory")
        session.environ["ULTRAMON_STATE_DIR"] = str(session.path / "file" / "state")
        yield
    else:
        assert kind == "files of no length"
        start = session.start
        limited = ["sh", "-c", 'ulimit -f 0 && exec "$@"', "sh"]
        session.start = lambda *args, **options: start(*args, **options, before=limited)
        yield


@pytest.fixture(params=["read-only", "full", "below a file", "files of no length"])
def session(request, tmp_path):
    """A session whose hooks can write nothing."""
    session = HookedSession(tmp_path)
    session.freeze()
    with no_store(request.param, session):
        yield session
        with suppress(OSError):
            assert session.ids() == []


def test_each_rung_is_told_once(session):
    """At the call whose reply reached it; again when a rung was left and is reached again."""
    told = said(session, 50, 34, 33, 20, 19, 18, 60, 30)
    assert told == [None, 66, None, 80, None, None, None, 70]


def test_a_session_whose_first_reply_is_high_is_told(session):
    """There is no reply before it."""
    assert said(session, 30, 29) == [70, None]


def test_parallel_calls_are_told_once(session):
    """The first call of the reply tells, in whatever order they end."""
    calls = ["toolu_a", "toolu_b", "toolu_c"]
    session.reply(tokens_at(50), "toolu_0")
    # The client writes a line for each call of a reply.
    lines = [session.reply_line(tokens_at(30), call) for call in calls]
    for line in lines[1:]:
        line["message"]["id"] = lines[0]["message"]["id"]
    session.write(*lines)
    texts = [
        session.call("PostToolUse", tool_name="Bash", tool_use_id=call).text
        for call in reversed(calls)
    ]
    assert [bool(text) for text in texts] == [False, False, True]
    assert session.call("UserPromptSubmit", prompt="go on").text == ""


def test_a_turn_without_tools_is_told_with_the_next_prompt(session):
    """Once; the prompt after the next reply says nothing new."""
    texts = []
    for remaining in (50, 30, 29):
        session.reply(tokens_at(remaining))
        session.call("Stop")
        texts.append(session.call("UserPromptSubmit", prompt="go on").text)
    assert [bool(text) for text in texts] == [False, True, False]
    assert "(70 %)" in texts[1]


def test_the_next_filling_is_told_anew(session):
    """Behind a compaction there is no reply before the first."""
    assert said(session, 50, 30) == [None, 70]
    session.boundary()
    assert said(session, 30, 29) == [70, None]


def test_a_subagent_is_told_by_its_own_transcript(session):
    """What its parent has reached does not matter."""
    assert said(session, 50, 30) == [None, 70]
    assert said(session, 50, 20, 19, agent="sub") == [None, 80, None]


def test_whoever_is_not_to_be_told_is_not(session):
    """The audience holds without a store too."""
    session.environ["ULTRAMON_AUDIENCE"] = "orchestrator"
    assert said(session, 50, 30, 20) == [None, None, None]


def test_a_disk_that_fills_in_between_repeats_nothing(tmp_path):
    """A rung warned of with a store is not repeated without one; the next one is warned of."""
    session = HookedSession(tmp_path)
    session.freeze()
    assert said(session, 50, 30) == [None, 70]
    with no_store("files of no length", session):
        assert said(session, 29, 28, 20, 19) == [None, None, 80, None]
    assert session.failures() == []


def test_a_state_that_a_parallel_call_holds_is_no_missing_store(tmp_path):
    """That call tells; this one waits its second, and stays silent."""
    session = HookedSession(tmp_path)
    session.tool(tokens_at(50))
    lock = session.state / "subagents" / f"{session.session_id}.lock"
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert said(session, 30) == [None]
    assert said(session, 29) == [71]
