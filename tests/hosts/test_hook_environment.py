"""A hook where nothing is as it should be: directory, files, environment, streams, neighbours."""

import json
import os
import shutil
import sqlite3
import stat
import subprocess
from contextlib import closing, suppress

import pytest
from helpers.fault_writer import AGENT, answer, finish, run_writer
from helpers.hooked_session import HookedSession, tokens_at
from helpers.obstacles import plant
from helpers.requirements import (
    as_nobody,
    directory_of_nobody,
    read_only,
    require_root,
    require_root_mount,
    require_tool,
    unmount,
)

from ultramon.backends.local.journal import JOURNAL
from ultramon.hosts.failure_log import MAX_BYTES, log_path

FAILURES_NAME = log_path("", "claude-code")


@pytest.fixture
def session(tmp_path):
    return HookedSession(tmp_path)


def modes(path):
    """What may be done with everything that lies under a directory, and with itself."""
    found = [path, *path.rglob("*")]
    return {stat.filemode(one.lstat().st_mode) for one in found if not one.is_symlink()}


PRIVATE = {"drwx------", "-rw-------"}


# --- the state directory


def test_a_missing_directory_is_made_for_its_owner_alone(session):
    """With its parents, as at the very first call."""
    shutil.rmtree(session.state)
    assert session.tool(tokens_at(20)).text
    assert modes(session.state) == PRIVATE


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o722])
def test_a_directory_that_others_may_write_is_not_used(session, mode):
    """Nothing but the line that says so."""
    session.state.chmod(mode)
    assert session.tool(tokens_at(20)).stdout == b""
    assert [path.name for path in session.state.iterdir()] == [FAILURES_NAME]
    assert "others may write to it" in session.failures()[0]


def test_a_directory_that_is_a_link_is_not_used(session):
    """Somebody else may have made it."""
    target = session.path / "target"
    session.state.rename(target)
    session.state.symlink_to(target)
    assert session.tool(tokens_at(20)).stdout == b""
    assert [path.name for path in target.iterdir()] == [FAILURES_NAME]


def test_a_file_in_place_of_the_directory_stays_what_it_is(session):
    """There is not even a place for the failure."""
    session.state.rmdir()
    session.state.write_text("precious")
    assert session.tool(tokens_at(20)).stdout == b""
    assert session.state.read_text() == "precious"


def test_a_directory_of_somebody_else_is_not_used(session):
    """Root's rights are no permission."""
    require_root()
    os.chown(session.state, 65534, 65534)
    assert session.tool(tokens_at(20)).stdout == b""
    assert session.ids() == []
    assert "belongs to user 65534" in session.failures()[0]


def test_a_directory_that_cannot_be_written_loses_nothing_that_is_there(session):
    """The old state stays, and the next call that can be stored continues from it."""
    session.tool(tokens_at(60))
    before = {path: path.read_bytes() for path in session.state.rglob("*.json")}
    with read_only(session.state):
        assert session.tool(tokens_at(20)).text
        assert session.tool(tokens_at(20)).stdout == b""
        assert {path: path.read_bytes() for path in session.state.rglob("*.json")} == before
    assert session.tool(tokens_at(20)).text
    assert session.record().estimated_tokens == tokens_at(20)


def test_an_ordinary_user_without_permission(session):
    """A home that cannot be written is no reason to fail."""
    with directory_of_nobody() as path:
        mine = path / "no"
        mine.mkdir(mode=0o755)
        payload = session.payload("PostToolUse", transcript_path=str(path / "no.jsonl"))
        for directory in (mine / "state", "/proc/state", "/dev/null"):
            env = {"ULTRAMON_STATE_DIR": str(directory), "HOME": "/root"}
            assert session.run(payload, before=as_nobody(), env=env).stdout == b""
        assert list(mine.iterdir()) == []


def test_a_full_disk_loses_nothing_that_is_there(session):
    """Old state and journal are intact; with space again it continues."""
    require_root_mount(session.state)
    try:
        session.state.chmod(0o700)
        session.tool(tokens_at(60))
        before = session.record().to_json()
        ballast = session.state / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"\0" * 4096)
        told = [session.tool(tokens_at(20)).text for _ in range(3)]
        assert [bool(text) for text in told] == [True, False, False]
        assert session.record().to_json() == before
        assert list(session.state.rglob("*.tmp")) == []
        ballast.unlink()
        assert session.tool(tokens_at(20)).text
        assert len(session.events("context_threshold_reached")) == 1
    finally:
        unmount(session.state)


# --- what is planted in it


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "directory", "link to nowhere"])
@pytest.mark.parametrize(
    "name", ["subagents/session.json", "subagents/session.lock", FAILURES_NAME, JOURNAL,
             "claude-code.json", "claude-code.windows.json", "subagents"],
)  # fmt: skip
def test_what_is_planted_is_neither_read_nor_written(session, name, kind):
    """The victim of a link is unchanged, a pipe is not waited for, and the client continues."""
    victim, path = session.path / "victim", session.state / name
    victim.write_text("precious")
    path.parent.mkdir(mode=0o700, exist_ok=True)
    plant(kind, path, victim)
    session.tool(tokens_at(20))
    session.run(b"no payload")
    assert victim.read_text() == "precious"
    assert not (session.path / "nowhere").exists()
    assert name == "subagents" or set(session.ids()) <= {"session"}


@pytest.mark.parametrize("data", [b"", b"{", b"\0" * 100, b'{"schema":1}', b"x" * (2 << 20)])
def test_a_corrupt_state_is_set_aside_and_begun_anew(session, data):
    """The evidence is kept, the failure logged, and the events of the new state count as new."""
    assert session.tool(tokens_at(30)).text
    path = session.state / "subagents" / "session.json"
    path.write_bytes(data)
    assert "(80 %)" in session.tool(tokens_at(20)).text
    (kept,) = path.parent.glob("session.json.corrupt-*")
    assert kept.read_bytes() == data
    assert "set aside as" in session.failures()[0]
    record = session.record()
    assert (record.estimated_tokens, record.threshold_status) == (tokens_at(20), "critical")
    assert [e["type"] for e in session.events()] == [
        "agent_started", "context_threshold_reached",
        "agent_started", "context_threshold_reached",
    ]  # fmt: skip


def newer(session):
    """Turn the state into one of a newer ultramon; return its bytes."""
    from ultramon.state.record import encode_state

    path = session.state / "subagents" / "session.json"
    record = session.record()
    record.schema = 99
    path.write_bytes(encode_state(record, str(path)))
    return path, path.read_bytes()


def test_the_state_of_a_newer_version_is_not_touched(session):
    """Old hooks beside a new installation write nothing over it."""
    session.tool(tokens_at(30))
    path, data = newer(session)
    assert session.tool(tokens_at(20)).stdout == b""
    assert path.read_bytes() == data
    assert "newer ultramon" in session.failures()[-1]


@pytest.mark.parametrize(
    "change",
    [
        b"", b"{", b"[]", b"null", b"{}", b"\xff", b"[" * 5000, {"schema": 2}, {"schema": "1"},
        {"audience": "everybody"}, {"audience": None}, {"ladder": {}}, {"ladder": None},
        {"ladder": {"base": "normal", "rearmMargin": 0.05, "roundPercent": True, "rungs": []}},
        {"contextLimitTokens": 0}, {"contextLimitTokens": -5}, {"contextLimitTokens": 1.5},
        {"contextLimitTokens": "100000"}, {"contextLimitTokens": True},
        {"contextLimitTokens": 10**12}, {"handoffNote": 5}, {"statusLine": None},
        {"statusLine": {"show": "own", "chained": "x"}}, {"installations": None}, {"audience": ...},
    ],
    ids=str,
)  # fmt: skip
def test_choices_that_cannot_be_read_tell_nobody_and_measure_on(session, change):
    """Broken, or of a newer version: untouched, logged, and the state is kept up all the same."""
    session.freeze()
    if isinstance(change, dict):
        value = json.loads(session.installed.read_bytes()) | change
        change = json.dumps({k: v for k, v in value.items() if v is not ...}).encode()
    session.installed.write_bytes(change)
    assert session.tool(tokens_at(20)).stdout == b""
    assert session.record().estimated_tokens == tokens_at(20)
    assert session.installed.read_bytes() == change
    (problem,) = session.failures()
    assert str(session.installed) in problem


def test_the_failure_log_keeps_the_newer_half(session):
    """It never grows beyond its bound by more than a line, and its lines are whole."""
    log = session.state / FAILURES_NAME
    log.write_bytes(b'{"problem":"old"}\n' * (3 * MAX_BYTES // 18))
    log.chmod(0o600)
    session.run(b"no payload")
    assert MAX_BYTES / 2 - 1000 < log.stat().st_size <= MAX_BYTES / 2
    problems = session.failures()
    assert set(problems[:-1]) == {"old"}
    assert "not JSON" in problems[-1]
    assert log.read_bytes().count(b"\n") == len(problems)
    assert modes(session.state) == PRIVATE


# --- neighbours


def test_a_journal_that_is_busy_lets_events_wait_in_the_state(session):
    """The next call brings them, each once."""
    holder = run_writer(session.state, "hold_journal")
    assert answer(holder) == "held"
    assert session.tool(tokens_at(20)).text
    waiting = [event["type"] for event in session.record().pending]
    assert waiting == ["agent_started", "context_threshold_reached"]
    assert session.tool(tokens_at(20)).stdout == b""
    assert [event["type"] for event in session.record().pending] == waiting
    finish(holder)
    session.tool(tokens_at(20))
    assert session.record().pending is None
    mine = [event["type"] for event in session.events() if event["agentId"] == "session"]
    assert mine == waiting
    assert len(session.failures()) == 2


def test_left_over_events_do_not_wait_for_a_busy_journal(session, tmp_path):
    """They are tried at every call, so no call may pay for that."""
    holder = run_writer(session.state, "hold_journal")
    assert answer(holder) == "held"
    session.tool(tokens_at(20))
    session.reply(tokens_at(20), "toolu_b")
    log = tmp_path / "trace"
    before = [require_tool("strace"), "-f", "-qq", "-o", str(log), "-e", "trace=clock_nanosleep"]
    session.run(
        session.payload("PostToolUse", tool_use_id="toolu_b", tool_name="Bash"), before=before
    )
    assert "clock_nanosleep" not in log.read_text()
    assert session.record().pending is not None
    finish(holder)


def test_a_journal_that_is_none_is_set_aside(session):
    """Its events wait for the next."""
    (session.state / JOURNAL).write_bytes(b"no database " * 1000)
    (session.state / JOURNAL).chmod(0o600)
    assert session.tool(tokens_at(20)).text
    assert len(session.record().pending) == 2
    session.tool(tokens_at(20))
    assert [e["type"] for e in session.events()] == ["agent_started", "context_threshold_reached"]
    (kept,) = session.state.glob(f"{JOURNAL}.corrupt-*")
    assert kept.read_bytes().startswith(b"no database")


def test_a_journal_of_a_newer_version_is_not_touched(session):
    """Events wait until they can be written; the session is measured and warned."""
    session.tool(tokens_at(60))
    with closing(sqlite3.connect(session.state / JOURNAL)) as journal:
        journal.execute("PRAGMA user_version = 99")
    assert session.tool(tokens_at(20)).text
    assert [event["type"] for event in session.record().pending] == ["context_threshold_reached"]
    assert "newer ultramon" in session.failures()[0]


def test_an_agent_that_is_held_is_left_alone_in_time(tmp_path):
    """A hung neighbour costs a call its reading and not the client its tool."""
    session = HookedSession(tmp_path, AGENT)
    holder = run_writer(session.state, "hold_lock")
    assert answer(holder) == "held"
    assert session.tool(tokens_at(20)).stdout == b""
    assert "locked" in session.failures()[0]
    finish(holder)
    assert session.tool(tokens_at(20)).text


def test_a_subagent_that_is_held_does_not_cost_its_parent_the_reading(tmp_path):
    """Its launch is reported by a call of the parent."""
    session = HookedSession(tmp_path, "writer")
    holder = run_writer(session.state, "hold_lock")
    assert answer(holder) == "held"
    other = HookedSession(tmp_path, "parent")
    os.link(session.state / "subagents" / "writer.lock", tmp_path / "kept")
    os.rename(tmp_path / "kept", session.state / "subagents" / "parent.child.lock")
    launched = {"tool_name": "Agent", "tool_response": {"agentId": "child", "description": "x"}}
    other.reply(tokens_at(20), "toolu_a")
    text = other.call("PostToolUse", tool_use_id="toolu_a", **launched).text
    finish(holder)
    assert "(80 %)" in text
    assert len(other.failures()) == 1


# --- the environment


ENVIRONMENTS = {
    "nothing at all": dict.fromkeys(
        ("PATH", "HOME", "CLAUDE_PID", "CLAUDE_PROJECT_DIR", "LC_CTYPE")
    ),
    "no HOME": {"HOME": None}, "a HOME that is a file": {"HOME": "/etc/passwd"},
    "an empty PATH": {"PATH": ""}, "LANG=C": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"},
    "a Turkish locale": {"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8"},
    "a pid that is none": {"CLAUDE_PID": "-1"}, "a pid of letters": {"CLAUDE_PID": "١٢"},
    "a pid of a million digits": {"CLAUDE_PID": "9" * 100_000}, "pid 0": {"CLAUDE_PID": "0"},
    "a pane of escapes": {"TMUX_PANE": "\x1b[31m" * 99}, "Python's own": {
        "PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere", "PYTHONSTARTUP": "/nowhere",
        "PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1", "PYTHONVERBOSE": "1",
    },
}  # fmt: skip


@pytest.mark.parametrize("environ", ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_a_hook_needs_nothing_of_its_environment(session, environ):
    """Its path and the payload are enough."""
    assert "140,000 of 200,000" in session.tool(tokens_at(30), env=environ).text
    assert session.failures() == []


@pytest.mark.parametrize("umask", ["000", "077", "777"])
def test_no_umask_changes_the_modes(session, umask):
    """What it leaves behind is its owner's alone, the journal and the failure log too."""
    session.reply(tokens_at(20), "toolu_a")
    before = ["sh", "-c", f'umask {umask} && exec "$@"', "sh"]
    assert session.run(session.payload("PostToolUse", tool_use_id="toolu_a"), before=before).text
    assert session.run(b"no payload", before=before).stdout == b""
    assert {path.name for path in session.state.iterdir()} >= {JOURNAL, FAILURES_NAME}
    assert modes(session.state) == PRIVATE


def test_a_deleted_working_directory_is_no_matter(session):
    """Also where the choices are named by a relative path, which leads nowhere then."""
    gone = session.path / "gone"
    session.reply(tokens_at(20), "toolu_a")
    payload = session.payload("PostToolUse", tool_use_id="toolu_a")
    before = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh"]
    for name, is_notified in ((str(session.installed), True), ("claude-code.json", False)):
        gone.mkdir()
        done = subprocess.run(
            [*before, *session.command()[:-1], name],
            cwd=gone,
            env=session.environ,
            input=json.dumps(payload).encode(),
            capture_output=True,
            check=True,
        )
        assert (bool(done.stdout), done.stderr) == (is_notified, b"")


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-", "1>/dev/full"])
def test_closed_streams_are_no_matter(session, closed):
    """No file of ultramon is taken for one of them, and a failure is a line in the log."""
    session.reply(tokens_at(20), "toolu_a")
    before = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    answered = session.run(session.payload("PostToolUse", tool_use_id="toolu_a"), before=before)
    assert bool(answered.stdout) == (closed == "2>&-")
    assert len(session.failures()) == (0 if closed == "2>&-" else 1)
    if "0<" not in closed:
        assert session.record().threshold_status == "critical"
