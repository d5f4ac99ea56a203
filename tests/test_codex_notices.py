"""Notices, routing and alerts do not ask which host an agent has: Codex beside Claude Code."""

import io
from contextlib import closing

import pytest
from helpers.codex_session import CodexRun
from helpers.hooked_session import SESSION, tokens_at
from helpers.notified_session import any_call, begun, level_facts, lines, notify
from helpers.program import run_process

from ultramon import check_and_alert_context
from ultramon.alerts.config import AlertConfig
from ultramon.backends.local.backend import LocalBackend
from ultramon.routing import Inbox, register

CODEX = "01a20330-6723-72e3-ba49-0b404e343445"


@pytest.fixture
def claude(tmp_path):
    """A session of Claude Code, nearly empty."""
    return begun(tmp_path)


@pytest.fixture
def codex(claude, tmp_path):
    """A recorded session of Codex that shares the state directory; it has called its first hook."""
    run = CodexRun(tmp_path / "beside", "plain")
    run.state = claude.state
    run.step()
    return run


@pytest.fixture
def backend(claude):
    with closing(LocalBackend(str(claude.state))) as backend:
        yield backend


def go_on(codex):
    """Replay all calls but the last one, which ends the session."""
    while len(codex.answers) < len(codex.calls) - 1:
        codex.step()


def finish(codex):
    """Replay what is left; return what its hooks told the client."""
    return [answer.text for _payload, answer, _record in codex.replayed()]


def test_a_session_of_another_client_learns_of_a_codex_session(claude, codex, backend):
    """A person has registered it: the level in the words of every notice, once, then the end."""
    register(CODEX, None, notify=SESSION, as_admin=True, backend=backend)
    go_on(codex)
    heard = lines(any_call(claude))
    assert any(f"Context window of {CODEX} is at 66.2% (warning)" in line for line in heard), heard
    assert lines(any_call(claude)) == []
    finish(codex)
    assert lines(any_call(claude)) == [f"[ultramon] {CODEX} has ended: completed."]
    assert codex.failures() == []


def test_a_codex_session_learns_of_a_session_of_another_client(claude, codex, backend):
    """With its next tool call, in its own conversation, and it is acknowledged."""
    register(SESSION, None, notify=CODEX, thresholds=[0.5], as_admin=True, backend=backend)
    claude.tool(tokens_at(20))
    heard = [
        line for text in finish(codex) for line in text.split("\n") if line.startswith("[ultramon]")
    ]
    assert len(heard) == 1
    assert "80%" in heard[0]
    assert Inbox(CODEX, backend=backend).peek() == []


@pytest.mark.parametrize("delivery", ["urgent", "important", "sequential"])
def test_a_codex_session_gets_notices_of_each_delivery(codex, backend, delivery):
    """A sequential one waits for a prompt where a person types, and nobody types in an exec."""
    notify(backend, CODEX, facts=level_facts("scout-1"), delivery=delivery)
    heard = [text for text in finish(codex) if "scout-1" in text]
    assert len(heard) == 1


def test_an_alert_says_how_full_a_codex_session_is(claude, codex):
    """The number of its own rollout; the command line says the same, and alerts at its level."""
    go_on(codex)
    stream = io.StringIO()
    given = {
        "session": CODEX,
        "state_dir": str(claude.state),
        "config": AlertConfig(warning_threshold=0.6),
    }
    outcome = check_and_alert_context(stream=stream, **given)
    assert outcome, outcome.reason
    assert "66" in stream.getvalue()
    assert not check_and_alert_context(stream=stream, **given)
    done = run_process("check", "--session", CODEX, "--state-dir", str(claude.state), "--json")
    assert "171000" in done.stdout, done.stdout
