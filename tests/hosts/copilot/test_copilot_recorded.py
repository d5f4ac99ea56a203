"""What the real Copilot CLI sent to its hooks, replayed in its order through the hook process."""

import json
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from helpers.copilot_session import CopilotRun, CopilotSession
from helpers.players import FULL, CopilotPlayer
from helpers.recorded_run import HOSTILE_BYTES, in_epoch
from helpers.resident_session import until

from ultramon.hosts.calls.enforcement import REPLIES_TO_RETURN
from ultramon.hosts.calls.hosted_agent import CUT_TURN, NOT_RETURNED
from ultramon.hosts.copilot.dialect import DIALECT
from ultramon.hosts.port import CALL_ASKED, SUBAGENT_STARTED


def test_subagents_have_their_own_readings(tmp_path):
    """One has launched another, whose payloads name neither the session nor its file."""
    run = CopilotRun(tmp_path, "nested")
    seen, told = run.readings()
    main, *subs = sorted(seen, key=len)
    assert seen[main] == in_epoch(1, 30_000, 35_000)
    assert sorted(seen[sub][-1] for sub in subs) == in_epoch(1, 15_000, 68_000)
    labels = {run.record(sub).label.rpartition("]] ")[2]: run.record(sub) for sub in subs}
    assert labels.keys() == {"do part A", "do part B"}
    assert {(sub.parent_id, sub.outcome) for sub in labels.values()} == {(main, "completed")}
    # 61,000 of 80,000 tokens is its first reading; the session reads of its end.
    warned = [agent_id for agent_id in told if agent_id != main]
    assert warned == [labels["do part A"].agent_id]
    assert told[warned[0]][0].startswith("Context window: 61,000 of 80,000 tokens (76 %)")


def test_a_compaction_begins_an_epoch(tmp_path):
    """No event reports its end: the file does, before the next reply, and once."""
    run = CopilotRun(tmp_path, "compaction")
    seen, told = run.readings()
    assert seen[run.session_id] == [
        *in_epoch(1, 60_000, 79_000, 80_500, 81_500), *in_epoch(2, 21_000, 21_500),
    ]  # fmt: skip
    assert len(run.events("context_epoch_started")) == 1
    (text,) = [text for text in told[run.session_id] if "compacted" in text]
    assert text.startswith("Context window compacted")
    record = run.record(run.session_id)
    assert (record.context_limit, record.context_window) == (80_000, 100_000)


def test_a_subagent_that_failed_is_found_by_the_call_that_launched_it(tmp_path):
    """That call takes no answer; the session reads of it with the next one."""
    run = CopilotRun(tmp_path, "overflow")
    seen, told = run.readings()
    (sub,) = [agent_id for agent_id in seen if agent_id != run.session_id]
    record = run.record(sub)
    assert (record.outcome, record.exit["error"]) == ("failed", "Prompt is too long")
    (text,) = told[run.session_id]
    assert "failed: Prompt is too long" in text
    failed = [call["stdin"].get("hook_event_name") for call in run.calls].index(
        "PostToolUseFailure"
    )
    assert run.answers[failed].stdout == b""


def test_a_call_that_waits_for_the_file_is_left_to_its_own_process(tmp_path):
    """A resident must say its first word sooner; the session reads of the end all the same."""
    run = CopilotRun(tmp_path, "overflow")
    with run.asking_resident() as place:
        run.step()
        until(place.ask, "none runs")
        _, told = run.readings()
        assert place.ask()["calls"] == len(run.calls) - 1
    assert any("failed: Prompt is too long" in text for text in told[run.session_id])


BASE = {"session_id": "s", "cwd": "/home/user/project", "timestamp": "2026-11-26T22:00:00.000Z"}


def test_a_session_that_ends_in_a_turn_is_cancelled(tmp_path):
    """The client's reason is the same; after a turn the same end completes it."""
    session = CopilotSession(tmp_path)
    for is_over in (False, True):
        session.run(BASE | {"hook_event_name": "UserPromptSubmit", "prompt": "go"})
        if is_over:
            session.run(BASE | {"hook_event_name": "Stop"})
        session.run(BASE | {"hook_event_name": "SessionEnd", "reason": "complete"})
        record = session.record("s")
        assert record.outcome == ("completed" if is_over else "cancelled")
        assert is_over or record.exit == {"reason": CUT_TURN}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_start_and_its_prompt_come_in_any_order(tmp_path, order):
    """The client calls both hooks at once: either way the session is at work, and named."""
    session = CopilotSession(tmp_path)
    started = {"hook_event_name": "SessionStart", "source": "new", "initial_prompt": "tidy up"}
    calls = (started, {"hook_event_name": "UserPromptSubmit", "prompt": "tidy up"})
    for number in order:
        session.run(BASE | calls[number])
    record = session.record("s")
    assert (record.phase, record.label) == ("working", "project: tidy up")


def test_two_events_are_known_by_members_of_the_client_alone():
    """They come in its own form, whatever name the hook has."""
    path = "/home/user/.copilot/session-state/s/events.jsonl"
    own = {"sessionId": "s", "timestamp": 1_795_730_209_380, "cwd": "/"}
    started = own | {"transcriptPath": path, "agentName": "explore", "agent_id": "a"}
    event = DIALECT.read_event(started, {})
    assert (event.kind, event.session_id, event.subagent_id) == (SUBAGENT_STARTED, "s", "a")
    event = DIALECT.read_event(own | {"hookName": "permissionRequest", "toolName": "bash"}, {})
    assert (event.kind, event.can_end, event.can_answer) == (CALL_ASKED, True, False)
    assert json.loads(DIALECT.write_end(event, NOT_RETURNED)) == {
        "behavior": "deny", "message": NOT_RETURNED, "interrupt": True,
    }  # fmt: skip


@pytest.mark.parametrize("tokens", [100_000, 128_000, 922_000])
def test_the_limit_is_where_the_client_begins_to_compact(tokens):
    """Four fifths of what it allows a prompt to have; unknown, nothing is guessed."""
    limits = DIALECT.compaction_limits({}, None, "m", tokens)
    assert limits == (tokens * 8 // 10, None)
    assert DIALECT.compaction_limits({}, None, "m", None) == (None, None)


HOSTILE = [
    *HOSTILE_BYTES,
    {},
    {"sessionId": 5},
    {"sessionId": "s", "transcriptPath": "/dev/zero", "agent_id": "a"},
    BASE | {"hook_event_name": "Stop", "session_id": "../x"},
    BASE | {"hook_event_name": "Stop", "transcript_path": "/dev/zero"},
    BASE | {"hook_event_name": "Stop", "timestamp": "x" * 5_000},
    BASE | {"hook_event_name": "Stop", "timestamp": -1},
    BASE | {"hook_event_name": "PostToolUse", "agent_id": "../../x", "parent_agent_id": "../.."},
    BASE | {"hook_event_name": "PostToolUse", "agent_id": "a", "parent_agent_id": 5},
    BASE | {"hook_event_name": "PostToolUseFailure", "tool_name": "Agent", "error": {"x": 1}},
    BASE | {"hook_event_name": "PostToolUseFailure", "tool_name": "Agent", "error": "x"},
    BASE | {"hook_event_name": "SessionEnd", "reason": "error"},
    BASE | {"hook_event_name": "UserPromptSubmit", "prompt": ["x"]},
]  # fmt: skip


@pytest.mark.parametrize("payload", HOSTILE, ids=lambda one: repr(one)[:60])
def test_hostile_payloads_end_well(tmp_path, payload):
    """Exit 0, not a word on standard output or error, and nothing but states and a log."""
    session = CopilotSession(tmp_path)
    assert session.run(payload).stdout == b""
    assert all(name.partition(".")[0] in ("s", "dev") for name in session.ids())


def test_a_subagent_of_no_session_is_refused(tmp_path):
    """Its launcher is no session, and the process that calls has none open."""
    session = CopilotSession(tmp_path)
    payload = {"hook_event_name": "PostToolUse", "agent_id": "a", "parent_agent_id": "b"}
    assert session.run(BASE | payload).stdout == b""
    assert session.ids() == []
    assert f"the client {os.getpid()} has no session open" in session.failures()[0]


def test_a_question_is_a_wait_of_the_agent_that_asks(tmp_path):
    """The payload names the session; the file, for whom a permission was asked."""
    session = CopilotSession(tmp_path)
    folder = session.sessions / "s"
    folder.mkdir(parents=True)
    note = {"hook_event_name": "Notification", "sessionId": "s", "timestamp": 1_795_733_027_402}
    note |= {"notification_type": "permission_prompt", "message": "Run command: touch made"}
    session.run(BASE | {"hook_event_name": "UserPromptSubmit", "prompt": "go"})

    def waits(agent_id):
        record = session.record(agent_id)
        return record.phase, record.extra["copilot"].get("waitsFor")

    def ask(agent_id):
        asked = {"type": "permission.requested", "data": {}, "agentId": agent_id}
        called = {"type": "hook.start", "data": {"input": {"timestamp": note["timestamp"]}}}
        lines = (json.dumps(one) + "\n" for one in (asked, called))
        (folder / "events.jsonl").write_text("".join(lines))
        session.run(note)

    ask("a")
    assert (waits("s.a"), waits("s")) == (("waiting", "permission"), ("working", None))
    ask(None)
    assert waits("s") == ("waiting", "permission")
    session.run(BASE | {"hook_event_name": "PostToolUse", "tool_name": "Bash"})
    assert waits("s") == ("working", None)
    session.run(note | {"notification_type": "shell_completed"})
    assert waits("s") == ("working", None)


def test_calls_that_are_asked_for_at_once_end_a_turn_once(tmp_path):
    """Each is denied, so that none of them runs; a read, which is not asked for, ends nothing."""
    player = CopilotPlayer(tmp_path, {"enforce": "critical", "installed_at": time.time()})
    session = player.session
    for number in range(REPLIES_TO_RETURN):
        player.play(FULL + number)
    player.reply(FULL + REPLIES_TO_RETURN)
    assert b"interrupt" not in player.end_tool().stdout
    with ThreadPoolExecutor() as pool:
        answers = [one.value for one in pool.map(lambda _: player.ask(), range(4))]
    assert {(one["behavior"], one["interrupt"]) for one in answers} == {("deny", True)}
    assert len(session.events("return_enforced")) == 1
    ledger = json.loads((session.state / "copilot.enforced.json").read_text())
    assert len(ledger["ends"]) == 1
    record = session.record("s")
    assert (record.handoff is not None, record.extra["copilot"]["turnEnded"]) == (True, True)
    session.run(BASE | {"hook_event_name": "SessionEnd", "reason": "complete"})
    record = session.record("s")
    assert (record.outcome, record.exit) == ("cancelled", {"reason": NOT_RETURNED})
    assert session.failures() == []


SCHEMA = """CREATE TABLE todos (id TEXT PRIMARY KEY, title TEXT NOT NULL, description TEXT,
    status TEXT DEFAULT 'pending' CHECK(status IN ('pending', 'in_progress', 'done', 'blocked')),
    created_at TEXT DEFAULT (datetime('now')), updated_at TEXT DEFAULT (datetime('now')))"""
"""As the client makes it."""


def test_the_list_of_the_session_is_its_plan(tmp_path):
    """Read where a query names it; a database that is none changes nothing."""
    session = CopilotSession(tmp_path)
    folder = session.sessions / "s"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").touch()
    query = {"hook_event_name": "PostToolUse", "tool_name": "sql"}

    def names(text):
        session.run(BASE | query | {"tool_input": {"query": text}})
        return [(task["name"], task["status"]) for task in session.record("s").tasks or ()]

    assert names("SELECT * FROM todos") == []
    with closing(sqlite3.connect(folder / "session.db")) as database, database:
        database.execute(SCHEMA)
        rows = [("a", "write a", "done"), ("b", "write b", "in_progress"), ("c", "c", "blocked")]
        database.executemany("INSERT INTO todos (id, title, status) VALUES (?, ?, ?)", rows)
    assert names("SELECT 1 FROM notes") == []
    expected = [("write a", "done"), ("write b", "in_progress"), ("c", "pending")]
    assert names("UPDATE Todos SET status = 'done' WHERE id = 'a'") == expected
    (folder / "session.db").write_bytes(b"no database")
    assert names("SELECT * FROM todos") == expected
    assert session.failures() == []
