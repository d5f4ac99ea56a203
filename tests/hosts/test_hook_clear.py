"""After `/clear` the client continues in the same process under a new session id."""

import os
import subprocess
import sys
import time
from contextlib import closing

import pytest
from helpers.hooked_session import HookedSession
from helpers.requirements import require_tool

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.journal import Journal
from ultramon.backends.local.state_files import StateDirectory
from ultramon.backends.queue import queue_of
from ultramon.hosts.calls.succession import NEXT_SECONDS
from ultramon.notices.message_rules import MAX_HELD_SECONDS
from ultramon.routing import Inbox, queue_message, register, registrations

URGENT_TOKENS = 161_000
ORDERS = ("before", "late", "never")


@pytest.fixture
def old(tmp_path):
    """A session with a parent that is notified, full, and compacted once."""
    session = HookedSession(tmp_path, "old", ULTRAMON_PARENT_ID="boss")
    session.freeze()
    session.call("UserPromptSubmit", prompt="mend the roof")
    session.tool(20_000)
    return session


@pytest.fixture
def backend(old):
    with closing(LocalBackend(str(old.state))) as backend:
        register("old", "boss", backend=backend)
        old.tool(URGENT_TOKENS)
        yield backend


def clear(old, order="before", new_id="new", **environ):
    """Clear a session as the client does; return the one that continues."""
    new = HookedSession(old.path, new_id, **environ)
    if order == "before":
        old.call("SessionEnd", reason="clear")
    new.call("SessionStart", source="clear")
    if order == "late":
        old.call("SessionEnd", reason="clear")
    return new


def inbox(backend, name="boss"):
    return [(one.agent_id, one.facts["kind"]) for one in Inbox(name, backend=backend).peek()]


@pytest.mark.parametrize("order", ORDERS)
def test_a_clear_cancels_what_is_no_longer_true_and_deafens_nobody(old, backend, order):
    """The registration moves to the new id, whenever the end of the old one is reported."""
    old.call("PreCompact")
    old.call("PostCompact")
    old.tool(URGENT_TOKENS)
    assert inbox(backend) == [("old", "epoch"), ("old", "level")]
    new = clear(old, order)
    assert ("old", "level") not in inbox(backend)
    epochs = [one for one in Inbox("boss", backend=backend).peek() if one.facts["kind"] == "epoch"]
    assert [one.facts["reason"] for one in epochs] == ["clear"]
    (moved,) = registrations(backend=backend)
    assert (moved.agent_id, moved.notify_id, moved.source) == ("new", "boss", "parent")
    new.tool(162_000)
    assert inbox(backend)[-1] == ("new", "level")
    assert old.failures() == []


@pytest.mark.parametrize("order", ORDERS)
def test_the_parent_learns_of_the_clear_once_with_the_new_id(old, backend, order):
    """It is never notified that the session completed."""
    clear(old, order)
    texts = [one.text for one in queue_of(backend).claim("boss", now=time.time())]
    assert texts == [
        "[ultramon] Context window of old was cleared: 161,000 tokens before. It continues as new."
    ]
    assert inbox(backend) == [("old", "epoch")]


def test_without_a_successor_the_clear_is_told_after_half_a_minute(old, backend):
    """The client was closed at once, or its hooks were taken out."""
    old.call("SessionEnd", reason="clear")
    queue, now = queue_of(backend), time.time()
    assert queue.claim("boss", now=now) == []
    (late,) = queue.claim("boss", now=now + MAX_HELD_SECONDS + 1)
    assert late.text == "[ultramon] Context window of old was cleared: 161,000 tokens before."


@pytest.mark.parametrize("order", ORDERS)
def test_the_new_session_has_parent_and_label_and_lives_alone(old, order):
    """The old one has ended with its last reply, and no late call of it revives it."""
    old.reply(120_000)
    new = clear(old, order)
    before, after = old.record(), new.record()
    assert (after.parent_id, after.label, after.epoch) == ("boss", "project: mend the roof", 1)
    assert (before.label, before.exit) == (None, {"reason": "clear"})
    assert (before.outcome, before.estimated_tokens) == ("completed", 120_000)
    old.call("PostToolUse", tool_use_id="toolu_late")
    assert [one.record().active for one in (old, new)] == [False, True]
    assert len([one for one in old.events("agent_stopped")]) == 1


def test_a_session_that_was_cleared_can_be_resumed(old):
    """It is an agent again then."""
    clear(old)
    old.call("SessionStart", source="resume")
    assert old.record().active
    old.call("SessionEnd", reason="other")
    old.tool(30_000)
    assert old.record().active, "a call that comes late revives a session that was not cleared"


def test_a_registration_of_the_session_itself_follows(old):
    """Who asked to be notified about itself still is, under its new id."""
    with closing(LocalBackend(str(old.state))) as backend:
        register("old", "old", thresholds=[0.4], backend=backend)
        new = clear(old)
        (moved,) = registrations(backend=backend)
        assert (moved.agent_id, moved.notify_id, moved.registered_by) == ("new", "new", "new")
        assert "[ultramon] Your context window is at 50%" in new.tool(100_000).text


def test_what_is_sent_to_the_old_id_reaches_the_new_session(old):
    """Also after a second clear: nobody who knows the old id alone speaks into a void."""
    with closing(LocalBackend(str(old.state))) as backend:
        queue_message("old", "words", sender="worker-1", delivery="urgent", backend=backend)
        last = clear(clear(old), new_id="last")
        text = last.tool(20_000).text
        assert "1 message from worker-1 waits; `ultramon queue messages old` shows it" in text
        assert last.tool(20_000).text == ""
        queue_message("old", "more", sender="worker-2", delivery="urgent", backend=backend)
        assert "from worker-2" in last.tool(20_000).text


@pytest.mark.parametrize("order", ORDERS)
def test_a_subagent_outlives_the_clear_under_its_own_id(old, order):
    """The client keeps it running, and reports it under the new session."""
    old.tool(20_000, "a1")
    new = clear(old, order)
    child = old.record("a1")
    assert (child.active, child.parent_id) == (True, "new")
    new.tool(60_000, "a1")
    assert old.record("a1").estimated_tokens == 60_000
    new.reply(70_000, agent="a1", text="Seen.")
    new.call("SubagentStop", "a1", last_assistant_message="Seen.")
    child = old.record("a1")
    assert (child.outcome, child.estimated_tokens) == ("completed", 70_000)
    assert old.ids() == ["new", "old", "old.a1"]


def test_a_subagent_from_before_the_clear_ends_with_the_session_after_it(old):
    """With its last reply, wherever the client wrote that."""
    old.tool(20_000, "a1")
    old.tool(20_000, "a2")
    new = clear(old)
    new.tool(60_000, "a2")
    old.reply(30_000, agent="a1")
    new.call("SessionEnd", reason="other")
    ends = [old.record(agent) for agent in ("a1", "a2")]
    assert [(one.outcome, one.estimated_tokens) for one in ends] == [
        ("cancelled", 30_000),
        ("cancelled", 60_000),
    ]


def test_only_the_session_of_the_same_process_is_followed(old):
    """Another client in the same project is left alone."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        new = clear(old, "never", CLAUDE_PID=str(process.pid))
        process.communicate(b"\n")
    assert old.record().active
    assert new.record().parent_id is None
    assert new.record().label is None


NAMELESS = {"CLAUDE_PID": "", "ULTRAMON_PARENT_ID": "boss"}
"""The environment of a client that does not name its process."""


@pytest.mark.parametrize("order", ["before", "late"])
def test_without_a_process_the_one_session_cleared_in_the_folder_is_followed(tmp_path, order):
    """The end of the old one may be reported a moment after the start of the new one."""
    old = HookedSession(tmp_path, "old", **NAMELESS)
    old.call("UserPromptSubmit", prompt="mend the roof")
    new = clear(old, order, CLAUDE_PID="")
    new.tool(20_000)
    assert new.record().pid is None
    assert (new.record().parent_id, new.record().label) == ("boss", "project: mend the roof")
    assert old.memory()["successorId"] == "new"
    assert "isCleared" not in new.memory()
    assert old.failures() == []


def test_without_a_process_nobody_is_followed_where_it_may_be_another(tmp_path):
    """Two were cleared at that time; one that still runs, or of another folder, was not."""
    both = [HookedSession(tmp_path, name, **NAMELESS) for name in ("first", "second")]
    for one in both:
        one.call("UserPromptSubmit", prompt=f"mend the {one.session_id} roof")
        one.call("SessionEnd", reason="clear")
    runs = HookedSession(tmp_path, "runs", **NAMELESS)
    runs.tool(20_000)
    new = clear(runs, "never", CLAUDE_PID="")
    new.tool(20_000)
    assert (new.record().parent_id, new.record().label) == (None, None)
    elsewhere = clear(both[0], "never", "elsewhere", CLAUDE_PID="")
    elsewhere.call("SessionStart", source="clear", cwd="/elsewhere")
    assert elsewhere.record().parent_id is None
    assert runs.record().active


def test_without_a_process_a_clear_of_long_ago_is_not_followed(tmp_path):
    """More than ten seconds lie between the end and the start."""
    old = HookedSession(tmp_path, "old", **NAMELESS)
    old.tool(20_000)
    old.call("SessionEnd", reason="clear")
    directory = StateDirectory(str(old.state))
    with directory.locked("old", 1.0):
        record = directory.read_to_replace("old")
        record.last_heartbeat -= NEXT_SECONDS + 1
        directory.replace(record, durable=False)
    new = clear(old, "never", CLAUDE_PID="")
    new.tool(20_000)
    assert new.record().parent_id is None


def test_of_several_sessions_of_a_process_the_last_one_at_work_is_followed(old):
    """Those that were cleared before have a successor already."""
    second = clear(old)
    second.call("UserPromptSubmit", prompt="paint the door")
    third = clear(second, "never", "third")
    assert third.memory()["predecessors"] == ["new", "old"]
    assert third.record().label == "project: mend the roof"
    assert [one.record().active for one in (old, second, third)] == [False, False, True]


def test_a_busy_journal_delays_the_move_to_the_next_call(old, backend):
    """Nothing is lost: the registration is where it was, then where it belongs."""
    with Journal(str(old.state)).transaction(1.0):
        new = clear(old, "never")
    assert [one.agent_id for one in registrations(backend=backend)] == ["old"]
    assert any("before the clear" in problem for problem in old.failures())
    new.tool(20_000)
    assert [one.agent_id for one in registrations(backend=backend)] == ["new"]
    assert not old.record().active
    new.tool(URGENT_TOKENS)
    assert inbox(backend)[-1] == ("new", "level")


@pytest.mark.parametrize("write", range(2, 6))
def test_a_hook_that_is_killed_while_it_moves_is_carried_on(old, backend, write):
    """At any of its writes: the next call does what is missing, once."""
    strace = [
        require_tool("strace"), "-f", "-qq", "-o", os.devnull,
        "-e", f"inject=rename,renameat,renameat2:signal=KILL:when={write}",
    ]  # fmt: skip
    new = HookedSession(old.path, "new")
    process = new.start(new.payload("SessionStart", source="clear"), before=strace)
    process.communicate()
    assert process.returncode != 0
    new.tool(20_000)
    assert "isCleared" not in new.memory()
    assert [one.agent_id for one in registrations(backend=backend)] == ["new"]
    assert [one.record().active for one in (old, new)] == [False, True]
    assert (new.record().label, new.record().parent_id) == ("project: mend the roof", "boss")
    new.tool(URGENT_TOKENS)
    kinds = inbox(backend)
    assert (kinds.count(("old", "epoch")), kinds.count(("new", "level"))) == (1, 1)
