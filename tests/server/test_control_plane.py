"""All of it with real processes: who asked is notified, no other; nothing stale or lost."""

import signal

import httpx
import pytest
from helpers.program import run
from helpers.running_server import ServeProgram

SESSIONS = ("boss", "child", "scout")


@pytest.fixture
def state(tmp_path, shared_store):
    return tmp_path / "state"


def command(state, *arguments, caller=None):
    """Run a command of one of the agents; return what it printed."""
    own = {"ULTRAMON_AGENT_ID": caller} if caller else {}
    done = run(*arguments, ULTRAMON_STATE_DIR=str(state), **own)
    assert done.returncode == 0, done.stderr
    return done.stdout


def post(server, **body):
    """Post as an old hook script does, with the one header that it needs."""
    secret = (server.state_directory / "hook.secret").read_text().strip()
    answer = httpx.post(
        f"{server.url}/hooks/context-usage", json=body, headers={"X-SM-Hook-Secret": secret}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["status"]


def told(state, recipient):
    """What a recipient fetches, in the order of delivery."""
    lines = command(state, "queue", "messages", "--ack", caller=recipient).splitlines()
    return [line[line.index("[ultramon]") :] for line in lines if "[ultramon]" in line]


def test_an_orchestrator_and_its_child(state):
    """It enables itself and its child; the child compacts; everything restarts in between."""
    with ServeProgram(state=state) as server:
        for name in SESSIONS:
            body = {"agentId": name, "parentId": None if name == "boss" else "boss"}
            assert server.admin.post("/agents", json=body).status_code == 201
        assert command(state, "context", "monitor", "enable", caller="boss") == (
            "Context monitoring enabled — notifications → self (boss)\n"
        )
        assert command(state, "context", "monitor", "enable", "child", caller="boss") == (
            "Context monitoring enabled for child — notifications → boss\n"
        )
        assert post(server, session_id="child", used_percentage=72) == "ok"
        assert post(server, session_id="scout", used_percentage=95) == "not_registered"
        server.stop(signal.SIGKILL)

    with ServeProgram(state=state) as server:
        # What was said before the kill waits; said again, it is not told again.
        assert post(server, session_id="child", used_percentage=72) == "ok"
        assert post(server, session_id="child", event="compaction") == "compaction_logged"
        assert [told(state, name) for name in ("child", "scout")] == [[], []]
        (compacted,) = told(state, "boss")
        assert "Context window of child was compacted" in compacted

        assert post(server, session_id="child", event="compaction_complete") == (
            "compaction_complete_logged"
        )
        assert post(server, session_id="child", used_percentage=88) == "ok"
        assert post(server, session_id="boss", used_percentage=75) == "ok"
        command(state, "queue", "clear", "child", caller="boss")
        server.stop()

    with ServeProgram(state=state) as server:
        (own,) = told(state, "boss")
        assert own.startswith("[ultramon] Your context window is at 75% (warning, 70 %")
        assert post(server, session_id="child", used_percentage=90) == "ok"
        (fresh,) = told(state, "boss")
        assert "Context window of child is at 90% (critical, 85 %" in fresh
        assert [told(state, name) for name in ("child", "scout")] == [[], []]
        listed = server.admin.get("/sessions/context-monitor").json()["monitored"]
        assert [(one["session_id"], one["notify_session_id"]) for one in listed] == [
            ("boss", "boss"),
            ("child", "boss"),
        ]
