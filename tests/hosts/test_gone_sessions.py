"""Sessions whose client is gone without having called a hook: what it wrote says how they ended."""

import json
import os
import re
import shutil
import time

import pytest
from helpers import DATA
from helpers.codex_session import CodexSession
from helpers.gemini_session import GeminiSession
from helpers.program import run
from helpers.qwen_session import QwenSession

from ultramon.backends.local.backend import LocalBackend
from ultramon.fleet.fleet import Fleet
from ultramon.hosts.gone_sessions import GoneSessions, end_session
from ultramon.system.timestamps import format_time, parse_time
from ultramon.web.agent_reader import AgentReader

SESSION = "c0ffee00-1111-2222-3333-444455556666"
TOO_LONG = "Prompt is too long"
OVERFLOW = DATA / "captures" / "codex-0.169.0" / "rollout_overflow.jsonl"
ENDS = DATA / "ends"
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def moved_to(at, text):
    """A recording as if its last line had been written at a time."""
    shift = at - max(map(parse_time, _STAMP.findall(text)))
    return _STAMP.sub(lambda found: format_time(parse_time(found[0]) + shift), text)


class Client:
    """A client that ended, and the hooks that it had called.

    Args:
        session: Its home.
        path: Where its transcript lies.
        turn: Name of the event with which a turn begins.
        recorded: The transcript to its end.
        cut: How many of its last lines a client had not written that was killed before its end.
    """

    def __init__(self, session, path, turn, recorded, cut):
        self.session, self.path, self.turn = session, path, turn
        self.recorded, self.cut = recorded.read_text(), cut
        path.parent.mkdir(parents=True, exist_ok=True)
        # The hook's parent is a shell that ends with it, as the client has.
        session.started_as = "client"

    def call(self, name, **payload):
        common = {"session_id": SESSION, "transcript_path": str(self.path), "cwd": "/"}
        self.session.run({**common, "hook_event_name": name, **payload})
        assert self.session.failures() == []

    def begin(self):
        """A session and its first turn, as hooks report it."""
        self.call("SessionStart", source="startup")
        self.call(self.turn, prompt="work")

    def write(self, *, is_killed=False):
        """Write all that the client has written before it ended."""
        lines = self.recorded.splitlines(keepends=True)
        kept = lines[: len(lines) - self.cut] if is_killed else lines
        self.path.write_text(moved_to(time.time(), "".join(kept)))

    def look(self):
        """The session as somebody sees it who looks now."""
        backend = LocalBackend(str(self.session.state))
        try:
            records = [one.record for one in backend.list_agents()]
            GoneSessions(backend).end(records)
            return backend.load(SESSION).record
        finally:
            backend.close()


class Gemini(Client):
    """Gemini, which writes a report of each request that fails."""

    def write(self, *, is_killed=False):
        super().write()
        folder = self.session.home / "tmp"
        shutil.rmtree(folder, ignore_errors=True)
        if not is_killed:
            folder.mkdir(exist_ok=True)
            stamp = format_time(time.time()).replace(":", "-").replace(".", "-")
            name = f"gemini-client-error-Turn.run-sendMessageStream-{stamp}.json"
            shutil.copy(ENDS / "gemini-0.61.0-overflow.report.json", folder / name)


class Qwen(Client):
    """Qwen Code, which keeps a record of sessions that it has closed; not so version 0.15."""

    ends_turn = False
    closed = None

    def write(self, *, is_killed=False):
        if self.ends_turn:
            self.call("Stop", last_assistant_message="")
        super().write(is_killed=is_killed)
        record = self.session.home / "usage_record.jsonl"
        record.unlink(missing_ok=True)
        if self.closed is not None and not is_killed:
            entry = json.loads(self.closed.read_text())
            # After the last line, whose time was rounded to a millisecond.
            entry |= {"sessionId": SESSION, "timestamp": int(time.time() * 1000) + 1}
            record.write_text(json.dumps(entry) + "\n")


def codex(path):
    home = CodexSession(path)
    rollout = home.home / "sessions" / "2026" / "01" / "01" / f"rollout-{SESSION}.jsonl"
    return Client(home, rollout, "UserPromptSubmit", OVERFLOW, 1)


def gemini(path):
    home = GeminiSession(path)
    home.environ["TMPDIR"] = str(home.home / "tmp")
    recorded = ENDS / "gemini-0.61.0-overflow.jsonl"
    return Gemini(home, home.chats / "session.jsonl", "BeforeAgent", recorded, 0)


def qwen(name, cut):
    def make(path):
        home = QwenSession(path)
        chats = home.home / "projects" / "p" / "chats" / f"{SESSION}.jsonl"
        client = Qwen(home, chats, "UserPromptSubmit", ENDS / f"qwen-{name}.jsonl", cut)
        client.ends_turn = name.endswith("text")
        closed = ENDS / f"qwen-{name}.closed.jsonl"
        client.closed = closed if closed.exists() else None
        return client

    return make


CLIENTS = {
    "codex": (codex, "failed", TOO_LONG),
    "gemini": (gemini, "failed", TOO_LONG),
    "qwen, old": (qwen("0.15.10-overflow", 2), "failed", TOO_LONG),
    "qwen": (qwen("0.24.4-overflow", 3), "failed", TOO_LONG),
    "qwen, refused": (qwen("0.24.4-refused", 0), "failed", "BadRequestError"),
    "qwen, no -p": (qwen("0.24.4-text", 0), "completed", None),
    "qwen, signal": (qwen("0.24.4-interrupted", 0), "cancelled", None),
}


@pytest.fixture(params=CLIENTS)
def case(request):
    """One way in which a client ends without a hook."""
    return CLIENTS[request.param]


@pytest.fixture
def client(case, tmp_path):
    """A client in its first turn."""
    client = case[0](tmp_path)
    client.begin()
    return client


def test_a_session_ends_as_its_client_wrote_and_by_nothing_else(case, client):
    """With the reason. One that was killed in the same turn stays lost."""
    client.write()
    elsewhere = client.path.with_suffix(".kept")
    client.path.rename(elsewhere)
    client.path.symlink_to(elsewhere)
    assert client.look().active
    client.path.unlink()
    os.mkfifo(client.path)
    assert client.look().active
    client.path.unlink()
    for planted in (b"", b"\xff" * 5_000, b"[" * 100_000, b'{"type":"user"}\n'):
        client.path.write_bytes(planted)
        assert client.look().active
    client.write(is_killed=True)
    assert client.look().active
    assert client.session.events("agent_stopped") == []
    client.write()
    wrote_at = time.time()
    record = client.look()
    assert (record.active, record.outcome) == (False, case[1])
    assert (record.exit or {}).get("error") == case[2]
    (event,) = client.session.events("agent_stopped")
    assert (event["agentId"], event["outcome"]) == (SESSION, case[1])
    assert parse_time(event["occurredAt"]) < wrote_at + 0.001  # what is written is rounded
    assert client.session.failures() == []


def test_a_session_that_went_on_stays_lost(client):
    """What ended an earlier turn says nothing about the last one."""
    client.write()
    client.call("SessionStart", source="resume")
    assert client.look().active
    assert client.session.events("agent_stopped") == []
    assert "LOST" in run("status", "--state-dir", client.session.state).stdout


def test_a_run_that_the_guard_of_its_client_ends_has_failed(tmp_path):
    """Qwen Code says why by its last hook, and in its record only that the session is closed."""
    client = qwen("0.24.4-interrupted", 0)(tmp_path)
    client.begin()
    # As recorded from 0.24.4.
    details = "consecutive_identical_tool_calls"
    client.write()
    # The client does not wait for it.
    client.call("StopFailure", error="loop_detected", error_details=details)
    record = client.look()
    assert (record.active, record.outcome) == (False, "failed")
    assert record.exit == {"reason": "turn failed", "error": "loop_detected"}


@pytest.fixture
def lost(tmp_path):
    """A Codex session whose rollout says how it ended."""
    client = codex(tmp_path)
    client.begin()
    return client


def test_a_session_whose_process_lives_is_never_ended(tmp_path):
    """An interactive session continues after a request that was too large."""
    client = codex(tmp_path)
    client.session.started_as = None  # this process is the client
    client.begin()
    client.write()
    assert client.look().active


def test_the_context_of_a_relay_is_left_to_it(lost):
    """It reads the output of its client."""
    backend = LocalBackend(str(lost.session.state))
    record = backend.load(SESSION).record
    record.extra["codex"]["environment"]["ULTRAMON_RELAY"] = "long-job"
    backend.directory.replace(record, durable=False)
    backend.close()
    lost.write()
    assert lost.look().active


@pytest.mark.parametrize("word", ["status", "resume", "explain"])
def test_every_command_that_shows_a_session_ends_it(lost, word):
    """The next look, whichever it is; the way back is still shown."""
    lost.write()
    arguments = {"status": ["--all"], "resume": [], "explain": [SESSION, "--details"]}[word]
    done = run(word, *arguments, "--state-dir", lost.session.state)
    assert done.returncode == 0, done.stderr
    assert lost.session.record(SESSION).outcome == "failed"
    assert {"status": "failed", "resume": f"codex resume {SESSION}", "explain": "ended: failed"}[
        word
    ] in done.stdout


def test_the_report_of_another_session_says_nothing_of_this_one(tmp_path):
    """Two sessions of Gemini may fail at the same time."""
    client = gemini(tmp_path)
    client.begin()
    client.write()
    (path,) = (client.session.home / "tmp").iterdir()
    report = json.loads(path.read_text())
    report["context"][-1]["parts"] = [{"text": "another request"}]
    path.write_text(json.dumps(report))
    assert client.look().active


def test_the_web_page_shows_the_end(lost):
    """At its first look."""
    lost.write()
    backend = LocalBackend(str(lost.session.state))
    (shown,) = AgentReader(backend).look(None, 9, with_ended=True).shown
    backend.close()
    assert (shown.liveness.verdict, shown.record.outcome) == ("ended", "failed")


def test_json_has_the_end(lost):
    """At the look that finds it."""
    arguments = "status", "--all", "--json", "--state-dir", lost.session.state
    assert json.loads(run(*arguments).stdout)["agents"][0]["liveness"] == "lost"
    lost.write()
    (shown,) = json.loads(run(*arguments).stdout)["agents"]
    assert (shown["liveness"], shown["outcome"]) == ("ended", "failed")


def test_a_fleet_learns_that_it_failed_and_never_that_it_was_lost(lost):
    """The end is in the journal before a verdict would be."""
    lost.write()
    backend = LocalBackend(str(lost.session.state))
    fleet = Fleet("codex", backend=backend)
    names = [(event.name, event.outcome) for event in fleet.poll()]
    fleet.close()
    backend.close()
    assert ("ended", "failed") in names
    assert "lost" not in [name for name, _ in names]


def test_its_subagents_end_with_it(lost):
    """Each as its own rollout says."""
    for name, recorded in (("a1", OVERFLOW.read_text()), ("a2", "")):
        path = lost.path.with_name(f"rollout-{name}.jsonl")
        path.write_text(recorded)
        lost.call("SubagentStart", agent_id=name, agent_type="default", transcript_path=str(path))
        lost.call("PostToolUse", agent_id=name, transcript_path=str(path), tool_name="Bash")
        record = lost.session.record(f"{SESSION}.{name}")
        session = lost.session.record(SESSION)
        # Each call of a hook here has a client of its own, that of a session has one for all.
        record.pid, record.pid_started_at = session.pid, session.pid_started_at
        backend = LocalBackend(str(lost.session.state))
        backend.directory.replace(record, durable=False)
        backend.close()
    lost.write()
    assert lost.look().outcome == "failed"
    first, second = (lost.session.record(f"{SESSION}.{name}") for name in ("a1", "a2"))
    assert (first.outcome, first.exit["error"]) == ("failed", TOO_LONG)
    assert (second.outcome, second.exit["reason"]) == ("cancelled", "session ended")


def test_a_session_that_is_resumed_meanwhile_lives_on(lost):
    """The state is judged again under its lock."""
    lost.write()
    before = lost.session.record(SESSION)
    lost.call("SessionStart", source="resume")
    assert not end_session(str(lost.session.state), before)
    assert lost.session.record(SESSION).active
