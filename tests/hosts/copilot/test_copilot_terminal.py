"""The real Copilot CLI on a terminal, used as a person uses it, against a scripted model."""

import json

import pytest
from helpers.copilot_client import Client
from helpers.requirements import require_tool
from helpers.scripted_model import Step
from helpers.waiting import until

PERMISSION = ("waiting", "permission")
AT_PROMPT = ("waiting", None)
READY, QUESTION = "/ commands", "Do you want to run this command?"
pytestmark = pytest.mark.exhaustive


@pytest.fixture
def client(tmp_path):
    """A client into which ultramon was installed."""
    require_tool("tmux")
    client = Client(tmp_path)
    done = client.ultramon("install", "copilot", "--force")
    assert done.returncode == 0, done.stderr
    return client


def test_a_person_is_asked_compacts_and_leaves(client):
    """A question is a wait for permission until the tool has run; a compaction is seen later."""
    steps = [
        Step(30_000, "touch made"), Step(31_000, text="First."),
        Step(9_000, "touch more"), Step(9_500, text="Second."),
    ]  # fmt: skip
    with client.api({"MAIN": steps}), client.terminal() as screen:
        screen.wait_for(READY)
        screen.enter("[[MAIN]] work")
        screen.wait_for(QUESTION)
        until(lambda: client.state_of(0) == PERMISSION)
        assert not (client.project / "made").exists()
        screen.press("Enter")
        screen.wait_for("First.")
        until(lambda: client.state_of(0) == AT_PROMPT)
        screen.enter("/compact")
        screen.wait_for("Compaction completed")
        screen.enter("[[MAIN]] next")
        screen.wait_for(QUESTION)
        until(lambda: client.state_of(0) == PERMISSION)
        screen.press("Enter")
        screen.wait_for("Second.")
        until(lambda: client.state_of(0) == AT_PROMPT)
        (record,) = client.records()
        assert (record.epoch, record.estimated_tokens) == (2, 9_500)
        screen.enter("/exit")
        until(lambda: not any(record.active for record in client.records()))
    (record,) = client.records()
    assert (record.outcome, record.exit) == ("completed", {"reason": "user_exit"})
    assert client.failures() == []


def test_the_session_after_a_clear_takes_over(client):
    """The client's reason for the end is that of a person who leaves."""
    steps = [Step(30_000, text="First."), Step(9_000, text="Second.")]
    with client.api({"MAIN": steps}), client.terminal() as screen:
        screen.wait_for(READY)
        screen.enter("[[MAIN]] work")
        screen.wait_for("First.")
        until(lambda: client.state_of(0) == AT_PROMPT)
        screen.enter("/clear")
        until(lambda: not any(record.active for record in client.records()))
        screen.enter("[[MAIN]] next")
        screen.wait_for("Second.")
        until(lambda: len(client.records()) == 2)
        screen.enter("/exit")
        until(lambda: not any(record.active for record in client.records()))
    before, after = sorted(client.records(), key=lambda record: record.started_at)
    assert (before.label, after.label) == (None, "project: [[MAIN]] work")
    assert (before.outcome, after.outcome) == ("completed", "completed")
    assert after.estimated_tokens == 9_000
    assert client.failures() == []


def test_the_question_of_a_subagent_is_its_own_wait(client):
    """Its session works meanwhile."""
    asked = {"agent_type": "general-purpose", "name": "a", "description": "a", "mode": "sync"}
    steps = {
        "MAIN": [Step(30_000, ("task", asked | {"prompt": "[[SUB]] do"})), Step(31_000)],
        "SUB": [Step(9_000, "touch made"), Step(10_000)],
    }
    with client.api(steps), client.terminal() as screen:
        screen.wait_for(READY)
        screen.enter("[[MAIN]] work")
        screen.wait_for(QUESTION)
        until(lambda: client.state_of(1) == PERMISSION)
        assert client.state_of(0) == ("working", None)
        screen.press("Enter")
        until(lambda: client.state_of(0) == AT_PROMPT)
        _, sub = client.records()
        assert (sub.outcome, sub.estimated_tokens) == ("completed", 10_000)
        screen.enter("/exit")
        until(lambda: not any(record.active for record in client.records()))
    assert client.failures() == []


def test_the_status_line_shows_the_window_beside_the_one_that_was_there(client):
    """Of the session: what a subagent holds is a part of its own. The old line comes back."""
    settings = client.configuration / "settings.json"
    own = 'sed "s/.*last_call_input_tokens..\\([0-9]*\\).*/mine says \\1/"'
    before = f"// mine\n{json.dumps({'statusLine': {'type': 'command', 'command': own}})}"
    settings.write_text(before)
    done = client.ultramon("install", "copilot", "--force", "--status-line", "both")
    assert done.returncode == 0, done.stderr
    asked = {"agent_type": "general-purpose", "name": "a", "description": "a", "mode": "sync"}
    steps = {
        "MAIN": [Step(30_000, ("task", asked | {"prompt": "[[SUB]] do"})), Step(31_000)],
        "SUB": [Step(9_000, "touch made"), Step(10_000)],
    }
    with client.api(steps), client.terminal() as screen:
        screen.wait_for(READY)
        screen.wait_for("ctx –")
        assert client.records() == []
        screen.enter("[[MAIN]] work")
        screen.wait_for(QUESTION)
        screen.press("Enter")
        until(lambda: client.state_of(0) == AT_PROMPT)
        screen.wait_for("39% 31k/80k")
        screen.wait_for("mine says 31000")
        screen.enter("/compact")
        screen.wait_for("Compaction completed")
        until(lambda: client.records()[0].epoch == 2)
        screen.enter("/exit")
        until(lambda: not any(record.active for record in client.records()))
    assert client.failures() == []
    assert client.ultramon("uninstall", "copilot").returncode == 0
    assert settings.read_text() == before


def test_the_status_line_sees_an_interruption(client):
    """No hook is called: the event file says it."""
    done = client.ultramon("install", "copilot", "--force", "--status-line", "own")
    assert done.returncode == 0, done.stderr
    steps = [Step(30_000, "touch made; sleep 60")]
    with client.api({"MAIN": steps}), client.terminal() as screen:
        screen.wait_for(READY)
        screen.enter("[[MAIN]] work")
        screen.wait_for(QUESTION)
        screen.press("Enter")
        until((client.project / "made").exists)
        assert client.state_of(0) == PERMISSION
        screen.wait_for("esc esc interrupt")
        screen.press("Escape")
        screen.wait_for("again to interrupt")
        screen.press("Escape")
        screen.wait_for("cancelled by user")
        until(lambda: client.state_of(0) == AT_PROMPT)
        screen.enter("/exit")
        until(lambda: not any(record.active for record in client.records()))
    assert client.failures() == []
