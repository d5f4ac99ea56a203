"""The start of a tool call may be reported after what followed it: the state is not set back."""

import itertools
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
from helpers.hooked_session import HookedSession, encoded, tokens_at
from helpers.resident_session import opened
from hypothesis import given, settings
from hypothesis import strategies as st

from ultramon.hosts.calls.handling import HookCall
from ultramon.hosts.calls.store import HookStore
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.resident.exchange import Request
from ultramon.hosts.resident.store import ResidentStore
from ultramon.system.processes import (
    boot_seconds,
    process_started_at,
    started_at_boot_seconds,
)

START, END = "PreToolUse", "PostToolUse"


@pytest.fixture(params=["a process each", "a resident"])
def session(request, tmp_path):
    if request.param == "a resident":
        with opened(tmp_path) as session:
            session.begin()
            yield session
    else:
        session = HookedSession(tmp_path)
        session.freeze()
        session.call("SessionStart", source="startup")
        yield session


def stopped_start(session, call_id, agent=None):
    """A hook that the client has started for a call, stopped before it does anything."""
    process = session.start()
    os.kill(process.pid, signal.SIGSTOP)
    process.late_payload = session.payload(START, agent, tool_name="Bash", tool_use_id=call_id)
    return process


def go_on(process):
    """Let such a hook do its work."""
    os.kill(process.pid, signal.SIGCONT)
    out, err = process.communicate(encoded(process.late_payload), timeout=60)
    assert (process.returncode, out, err) == (0, b"", b"")


def seen(session, agent=None):
    record, memory = session.record(agent), session.memory(agent)
    return record.active, record.phase, memory.get("running", []), record.last_activity


def test_a_start_after_its_end_changes_nothing(session):
    """Neither the phase nor what runs, nor when the agent was active last."""
    session.reply(tokens_at(80), "toolu_x")
    late = stopped_start(session, "toolu_x")
    session.call(END, tool_name="Bash", tool_use_id="toolu_x")
    before = seen(session)
    assert before[:3] == (True, "working", [])
    go_on(late)
    assert seen(session) == before
    assert session.failures() == []


@pytest.mark.parametrize("event", ["Stop", "SessionEnd", "UserPromptSubmit"])
def test_a_start_after_the_end_of_its_turn_changes_nothing(session, event):
    """Also of a call that was denied, which has no end of its own."""
    session.tool(tokens_at(80))
    late = stopped_start(session, "toolu_denied")
    session.call(event, prompt="go on", reason="other")
    before = seen(session)
    assert before[0] is (event != "SessionEnd")
    go_on(late)
    assert seen(session) == before
    session.call(START, tool_name="Bash", tool_use_id="toolu_next")
    assert seen(session)[:3] == (True, "in_tool", ["toolu_next"])


def test_a_start_after_the_end_of_its_subagent_does_not_begin_it_again(session):
    """It has ended, and its parent was notified."""
    session.call("SubagentStart", agent="a1")
    session.tool(tokens_at(80), agent="a1")
    late = stopped_start(session, "toolu_x", agent="a1")
    session.call("SubagentStop", agent="a1")
    before = seen(session, "a1")
    assert before[0] is False
    go_on(late)
    assert seen(session, "a1") == before


def test_a_start_that_a_slower_one_overtook_counts(session):
    """Of two calls side by side the end of one says nothing about the other."""
    late = stopped_start(session, "toolu_b")
    session.call(START, tool_name="Bash", tool_use_id="toolu_a")
    session.call(END, tool_name="Bash", tool_use_id="toolu_a")
    go_on(late)
    assert seen(session)[1:3] == ("in_tool", ["toolu_b"])


def test_a_start_that_a_resident_may_have_noted_is_not_noted_after_its_end(tmp_path):
    """The resident was stopped after it had stored the start, so its process handles it again."""
    session = HookedSession(tmp_path)
    session.freeze()
    began_at = boot_seconds()
    handle(session, START, "toolu_x", began_at)
    handle(session, END, "toolu_x", began_at + 0.001)
    handle(session, START, "toolu_x", began_at, is_retry=True)
    assert seen(session)[1:3] == ("working", [])
    handle(session, START, "toolu_y", boot_seconds(), is_retry=True)
    assert seen(session)[1:3] == ("in_tool", ["toolu_y"])


def handle(session, event, call_id, began_at, *, is_resident=False, is_retry=False):
    """Handle one call as its own process or the resident does, made at a time of its own."""
    payload = {
        "session_id": session.session_id, "hook_event_name": event, "cwd": "/p",
        "tool_name": "Bash", "tool_use_id": call_id, "reason": "other", "prompt": "go on",
        "transcript_path": str(session.transcript),
    }  # fmt: skip
    path, directory, now = str(session.installed), str(session.state), time.time()
    if is_resident:
        request = Request([b"0.1.0", b"hook", path.encode(), b"1", b"", b"{}"])
        store = ResidentStore(CLAUDE_CODE, directory, request, os.getpid(), event=event, now=now)
    else:
        store = HookStore(CLAUDE_CODE, directory, path, {}, event=event, now=now)
    store.began_at, store.is_retry = began_at, is_retry
    HookCall(CLAUDE_CODE.dialect.read_event(payload, {}), store).answer()


CALLS = st.lists(
    st.tuples(
        st.sampled_from([START, END, START, END, "Stop", "UserPromptSubmit", "SessionEnd"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


def script(kinds):
    """What a client reports, in order: a call ends after it began, a turn ends with no call left.

    One that still runs then was denied, and has no end. A session continues by a prompt.
    """
    begun, number, before = [], itertools.count(), "SessionEnd"
    for kind, is_first in kinds:
        if before == "SessionEnd":
            yield "UserPromptSubmit", None
        before = kind
        if kind == START:
            begun.append(f"toolu_{next(number)}")
            yield START, begun[-1]
        elif kind == END:
            if begun:
                yield END, begun.pop(0 if is_first else -1)
        else:
            begun.clear()
            yield kind, None


@settings(deadline=None, max_examples=25)
@given(CALLS, st.data())
def test_however_late_starts_are_the_state_is_that_of_the_right_order(kinds, data):
    """At no time what is over runs or begins again; at last the state is the same."""
    events = list(script(kinds))
    arrivals = []
    for place, (event, call_id) in enumerate(events):
        delay = data.draw(st.integers(0, len(events))) if event == START else 0
        arrivals.append((place + delay, delay, place, event, call_id))
    with tempfile.TemporaryDirectory() as folder:
        ordered, shuffled = (planted(Path(folder) / name) for name in ("ordered", "shuffled"))
        began_at = boot_seconds() - 1.0
        for place, (event, call_id) in enumerate(events):
            handle(ordered, event, call_id, began_at + place / 100)
        over, latest = set(), -1
        for _, _, place, event, call_id in sorted(arrivals):
            is_resident = data.draw(st.booleans())
            handle(shuffled, event, call_id, began_at + place / 100, is_resident=is_resident)
            if event != START:
                over |= {call_id} if event == END else {one for _, one in events[:place]}
            if event != "Stop":
                latest = max(latest, place)
            active, _, running = standing(shuffled)
            assert running.isdisjoint(over)
            assert active == (events[latest][0] != "SessionEnd")
        assert standing(shuffled) == standing(ordered)


def planted(path):
    """A session without a state, far from its first rung: no call waits for its reply."""
    path.mkdir()
    session = HookedSession(path, "s")
    session.freeze()
    session.reply(tokens_at(90), "toolu_before")
    return session


def standing(session):
    active, phase, running, _ = seen(session)
    return active, phase, frozenset(running)


def test_the_start_of_a_process_is_on_the_clock_of_the_machine():
    """And that of an odd mark is now: a sandbox may count otherwise."""
    before = boot_seconds()
    pid = os.spawnv(os.P_NOWAIT, "/bin/sleep", ["sleep", "60"])
    try:
        started = started_at_boot_seconds(pid, process_started_at(pid))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert before - 0.02 <= started <= boot_seconds()
    for odd in (None, "unknown", "0", "99999999999"):
        assert boot_seconds() - 5 < started_at_boot_seconds(pid, odd) <= boot_seconds()
