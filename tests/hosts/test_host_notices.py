"""Notices, routing and alerts do not ask which host an agent has: each beside Claude Code."""

import io
from contextlib import closing

import pytest
from helpers.codex_session import CodexRun
from helpers.gemini_session import GeminiRun
from helpers.hooked_session import SESSION, tokens_at
from helpers.notified_session import any_call, begun, level_facts, lines, notify
from helpers.program import run_process
from helpers.qwen_session import NEW, QwenRun

from ultramon import check_and_alert_context
from ultramon.alerts.config import AlertConfig
from ultramon.backends.local.backend import LocalBackend
from ultramon.routing import Inbox, register

RUNS = {
    "codex": lambda path: CodexRun(path, "plain"),
    "gemini": lambda path: GeminiRun(path, "plain"),
    "qwen": lambda path: QwenRun(path, NEW, "plain"),
}
LIMITS = {"codex": 258_400, "gemini": 710_000, "qwen": 180_000}
"""Of which each run holds some two thirds before its last call."""


@pytest.fixture
def claude(tmp_path):
    """A session of Claude Code, nearly empty."""
    return begun(tmp_path)


def beside(claude, host):
    """A recorded session that shares the state directory; it has called its first hook."""
    run = RUNS[host](claude.state.parent / "beside" / host)
    run.state = claude.state
    run.choose(context_limit_tokens=LIMITS[host])
    run.started_as = None  # a process that lives on
    payload, _answer = run.step()
    run.name = payload["session_id"]
    return run


@pytest.fixture(params=RUNS)
def run(claude, request):
    """A session of each host."""
    return beside(claude, request.param)


@pytest.fixture
def backend(claude):
    with closing(LocalBackend(str(claude.state))) as backend:
        yield backend


def go_on(run):
    """Replay all calls but the last one, which ends the session."""
    while len(run.answers) < len(run.calls) - 1:
        run.step()


def finish(run):
    """Replay what is left; return the lines that its hooks put into the conversation."""
    run.started_as = type(run).started_as
    texts = [answer.text for _payload, answer, _record in run.replayed()]
    return [line for text in texts for line in text.split("\n")]


def test_a_session_of_another_client_learns_of_a_session(claude, run, backend):
    """A person has registered it: the level in the words of every notice, once, then the end."""
    register(run.name, None, notify=SESSION, as_admin=True, backend=backend)
    go_on(run)
    heard = [line for line in lines(any_call(claude)) if run.name in line]
    assert len(heard) == 1
    assert f"Context window of {run.name} is at 6" in heard[0]
    assert "(warning, 65 %" in heard[0]
    assert lines(any_call(claude)) == []
    finish(run)
    assert lines(any_call(claude)) == [f"[ultramon] {run.name} has ended: completed."]
    assert run.failures() == []


def test_a_session_learns_of_a_session_of_another_client(claude, run, backend):
    """With its next tool call, in its own conversation, and it is acknowledged."""
    register(SESSION, None, notify=run.name, thresholds=[0.5], as_admin=True, backend=backend)
    claude.tool(tokens_at(20))
    heard = [line for line in finish(run) if line.startswith("[ultramon]")]
    assert len(heard) == 1
    assert "80%" in heard[0]
    assert Inbox(run.name, backend=backend).peek() == []


def test_a_codex_session_learns_of_a_gemini_session(claude, backend):
    """Neither is Claude Code: the notice is in the state directory that all share."""
    codex, gemini = beside(claude, "codex"), beside(claude, "gemini")
    register(gemini.name, None, notify=codex.name, as_admin=True, backend=backend)
    go_on(gemini)
    heard = [line for line in finish(codex) if gemini.name in line]
    assert len(heard) == 1
    assert "(warning, 65 %" in heard[0]


@pytest.mark.parametrize("delivery", ["urgent", "important", "sequential"])
def test_a_session_gets_notices_of_each_delivery(run, backend, delivery):
    """A sequential one waits for a prompt where a person types, and nobody types here."""
    notify(backend, run.name, facts=level_facts("scout-1"), delivery=delivery)
    heard = [line for line in finish(run) if "scout-1" in line]
    assert len(heard) == 1


def test_an_alert_says_how_full_a_session_is(claude, run):
    """The number of its own transcript; the command line says the same, and alerts at its level."""
    go_on(run)
    tokens = run.record(run.name).estimated_tokens
    stream = io.StringIO()
    given = {
        "session": run.name,
        "state_dir": str(claude.state),
        "config": AlertConfig(warning_threshold=0.6),
    }
    outcome = check_and_alert_context(stream=stream, **given)
    assert outcome, outcome.reason
    assert f"({tokens}/{LIMITS[run.host]} tokens)" in stream.getvalue()
    assert not check_and_alert_context(stream=stream, **given)
    done = run_process("check", "--session", run.name, "--state-dir", str(claude.state), "--json")
    assert str(tokens) in done.stdout, done.stdout
