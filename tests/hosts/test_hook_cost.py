"""Every tool call of every agent pays for a hook: what it loads is counted here, not its time."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import closing

import pytest
from helpers.hooked_session import HookedSession, tokens_at
from helpers.requirements import require_tool

import ultramon
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.hosts.calls.handling import HookCall
from ultramon.hosts.calls.spending import FOLDER, Reserve
from ultramon.hosts.calls.store import HookStore
from ultramon.hosts.calls.switches import RELAY_FOLDER
from ultramon.hosts.claude_code import attachments
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.claude_code.last_reading import read_last_reading
from ultramon.hosts.transcripts.tail import BLOCK_BYTES
from ultramon.routing import queue_message

SLOW = {
    "argparse", "asyncio", "collections", "contextlib", "dataclasses", "datetime", "enum",
    "functools", "inspect", "json", "logging", "pathlib", "platform", "random", "re", "shlex",
    "shutil", "signal", "site", "socket", "ssl", "string", "subprocess", "tempfile", "threading",
    "traceback", "types", "typing", "uuid", "warnings", "weakref",
}  # fmt: skip
DATABASE = {"sqlite3", "_sqlite3", "ultramon.backends.local.journal"}
DELIVERY = {
    "ultramon.hosts.calls.notices",
    "ultramon.backends.local.hook_inbox",
    "ultramon.backends.local.message_rows",
}
SELDOM = {"ultramon.hosts.calls.child_ends", "ultramon.system.terminal_text", "unicodedata"}


@pytest.fixture
def session(tmp_path):
    return HookedSession(tmp_path)


def loaded(session, event, **fields):
    """The modules that one real call loads."""
    python, *rest = session.command()
    done = subprocess.run(
        [python, "-X", "importtime", *rest],
        input=json.dumps(session.payload(event, **fields)).encode(),
        env=session.environ,
        capture_output=True,
        check=True,
    )
    header, *lines = done.stderr.decode().splitlines()
    assert "imported package" in header
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


@pytest.mark.parametrize(
    "event", ["PreToolUse", "PostToolUse", "PostToolUseFailure", "UserPromptSubmit", "Stop"]
)
def test_a_call_without_an_event_loads_little(session, event):
    """The standard library and of that nothing slow, and no database."""
    session.freeze()
    session.tool(tokens_at(30))
    session.reply(tokens_at(30) + 1, "toolu_a")
    names = loaded(session, event, tool_use_id="toolu_a", tool_name="Bash")
    assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "ultramon"}
    unneeded = {
        "ultramon.context.model_windows", "ultramon.context.estimator", "ultramon.hosts.registry",
        "ultramon.hosts.failure_log", "ultramon.hosts.calls.task_list", "ultramon.state.plan",
        "ultramon.hosts.calls.subagent_lives", "ultramon.hosts.calls.enforcement",
        "importlib.metadata",
    }  # fmt: skip
    assert not names & (SLOW | DATABASE | DELIVERY | SELDOM | unneeded)
    assert "ultramon.hosts.calls.store" in names
    assert session.record().pending is None
    assert session.failures() == []


@pytest.mark.parametrize("in_relay", [False, True])
def test_what_requests_hold_beside_their_messages_is_not_decoded(session, in_relay):
    """Such a line has some 100 kB, and says nothing of what a reply has cost."""
    shape = {"system": "You help with code.", "tools": [{"name": "m", "usage": {"usage": 1}}]}
    session.environ["ULTRAMON_STATE_DIR"] = str(session.state)
    if in_relay:
        folder = session.state / RELAY_FOLDER / "review"
        (folder / FOLDER).mkdir(parents=True)
        session.installed = folder / "claude-code.json"
        session.environ["ULTRAMON_RELAY"] = "review"
        Reserve(900_000, None, {}).store(str(folder), session.session_id)
    else:
        session.freeze()
    session.tool(tokens_at(60))
    session.reply(tokens_at(59), "toolu_a")
    session.write({"type": "api-request-shape", "shape": shape})
    stopped = {"type": "hook_stopped_continuation", "message": "enough"}
    if not in_relay:
        session.write({"type": "attachment", "attachment": stopped})
    names = loaded(session, "PostToolUse", tool_use_id="toolu_a", tool_name="Bash")
    assert "ultramon.hosts.claude_code.reader" in names
    assert ("ultramon.hosts.calls.spending" in names) is in_relay
    assert not names & {"ultramon.hosts.claude_code.attachments", "re"}
    assert session.failures() == []


def test_a_relay_reads_what_its_client_adds_without_patterns(session):
    """An attachment counts nothing; it may begin the file, whose session it then names."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-I", "-S", "-c", f"""if True:
            import sys
            sys.path.insert(0, {os.path.dirname(os.path.dirname(ultramon.__file__))!r})
            import {attachments.__name__}"""],
        capture_output=True,
        check=True,
    )  # fmt: skip
    names = {row.rpartition("|")[2].strip() for row in done.stderr.decode().splitlines()}
    assert attachments.__name__ in names
    assert not names & SLOW


def test_where_returns_are_enforced_a_call_loads_more_only_at_that_level(session):
    """And there git only where somebody is ended, and what it needs of the slow modules with it."""
    session.freeze(enforce="critical", context_limit_tokens=200_000)
    session.tool(tokens_at(40))
    for tokens, expected in ((tokens_at(30), False), (tokens_at(20), True)):
        session.tool(tokens)
        session.reply(tokens + 1, "toolu_a")
        names = loaded(session, "PostToolUse", tool_use_id="toolu_a", tool_name="Bash")
        assert ("ultramon.hosts.calls.enforcement" in names) is expected
        assert not names & (SLOW | DATABASE | {"ultramon.system.git"})


def test_a_task_call_loads_no_database(session):
    """A task is stored with the reading: no agent is sent anything."""
    session.freeze()
    session.tool(tokens_at(60))
    task = {"id": "1", "subject": "read", "status": "pending"}
    names = loaded(
        session, "PostToolUse", tool_name="TaskList", tool_input={}, tool_response={"tasks": [task]}
    )
    assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "ultramon"}
    assert not names & (SLOW | DATABASE | DELIVERY)
    assert session.record().tasks_total == 1
    assert session.failures() == []


def test_a_call_near_a_rung_loads_no_database(session):
    """It waits for a fresher reading, and that takes no more than a clock."""
    session.freeze()
    session.tool(tokens_at(60))
    session.reply(tokens_at(63), "toolu_a")
    names = loaded(session, "PostToolUse", tool_use_id="toolu_b", tool_name="Bash")
    assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "ultramon"}
    assert not names & (SLOW | DATABASE | DELIVERY)
    assert session.failures() == []


def test_a_crossing_loads_the_database_and_no_third_party(session):
    """What others are sent is stored durably; that is rare, and paid for then."""
    session.freeze()
    session.tool(tokens_at(50))
    session.reply(tokens_at(30), "toolu_a")
    names = loaded(session, "PostToolUse", tool_use_id="toolu_a")
    assert names >= {"sqlite3", "ultramon.backends.local.journal"}
    assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "ultramon"}
    assert len(session.events("context_threshold_reached")) == 1


def test_a_notice_loads_the_database_once_and_no_third_party(session):
    """Who waits for a prompt is looked for once, then only the flag is seen."""
    session.environ["CLAUDE_CODE_ENTRYPOINT"] = "cli"
    session.freeze()
    session.tool(tokens_at(90))
    with closing(LocalBackend(str(session.state))) as backend:
        queue_message(session.session_id, "words", backend=backend)
    for is_first in (True, False):
        session.reply(tokens_at(90), "toolu_a")
        names = loaded(session, "PostToolUse", tool_use_id="toolu_a")
        assert names.isdisjoint(DATABASE | DELIVERY) is not is_first
        assert not names & SLOW or is_first
        assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "ultramon"}


def test_a_call_sees_no_flag_by_one_system_call(session, tmp_path):
    """That is all that an agent pays which was sent nothing."""
    session.freeze()
    session.tool(tokens_at(90))
    session.reply(tokens_at(90), "toolu_a")
    log = tmp_path / "trace"
    before = [require_tool("strace"), "-f", "-qq", "-o", str(log), "-e", "trace=%file"]
    payload = session.payload("PostToolUse", tool_use_id="toolu_a", tool_name="Bash")
    session.run(payload, before=before)
    (look,) = [line for line in log.read_text().splitlines() if "/inbox/" in line]
    assert re.search(r" (newfstatat|lstat)\(", look)
    assert "ENOENT" in look


def test_a_hook_that_is_switched_off_loads_nothing(session):
    """Not even what reads the payload."""
    session.environ["ULTRAMON_DISABLED"] = "1"
    names = {name for name in loaded(session, "PostToolUse") if name.startswith("ultramon")}
    assert names == {
        "ultramon", "ultramon.hosts", "ultramon.hosts.calls", "ultramon.hosts.calls.switches",
        "ultramon.hosts.hook_program",
    }  # fmt: skip


@pytest.mark.parametrize("call_id", ["toolu_a", "toolu_b"], ids=["written down", "lagging"])
@pytest.mark.parametrize("event", ["PreToolUse", "PostToolUse"])
def test_a_call_reads_the_state_once(session, monkeypatch, event, call_id):
    """Away from a rung, also where the reply with the call is not written down yet."""
    session.freeze()
    session.tool(tokens_at(80))
    session.reply(tokens_at(80), "toolu_a")
    reads = []

    def read(self, agent_id, *args, really=StateDirectory._read, **options):
        reads.append(agent_id)
        return really(self, agent_id, *args, **options)

    monkeypatch.setattr(StateDirectory, "_read", read)
    payload = session.payload(event, tool_use_id=call_id, tool_name="Bash")
    called = CLAUDE_CODE.dialect.read_event(payload, session.environ)
    directory, choices = str(session.state), str(session.installed)
    store = HookStore(
        CLAUDE_CODE, directory, choices, session.environ, event=event, now=time.time()
    )
    assert HookCall(called, store).answer() == b""
    assert reads == [session.session_id]


def test_a_transcript_of_100_mb_is_read_from_its_end(session, monkeypatch):
    """Only its last block is read, whatever stands before it."""
    session.write(b"\n")
    with session.transcript.open("r+b") as file:
        file.truncate(100_000_000)  # a hole, which costs no disk
    session.write(b"\n")
    session.reply(tokens_at(30), "toolu_a")
    read = []

    def pread(fd, length, offset, really=os.pread):
        read.append(length)
        return really(fd, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    tail = read_last_reading(str(session.transcript), is_subagent=False, call_id="toolu_a")
    assert (tail.report.tokens, tail.is_current) == (tokens_at(30), True)
    assert read == [BLOCK_BYTES]
