"""The real Gemini CLI on a terminal, used as a person uses it, against a scripted model."""

import json
import threading

import pytest
from helpers.gemini_client import Client
from helpers.requirements import require_tool
from helpers.scripted_model import Step
from helpers.waiting import until
from test_gemini_client import SETTINGS

PERMISSION = ("waiting", "permission")
AT_PROMPT = ("waiting", None)
WORKING = ("working", None)
READY, QUESTION = "Type your message", "Allow execution"
COMMENT = "// the user's own\n"


@pytest.fixture
def client(tmp_path):
    """A client with comments in its settings, into which ultramon was installed."""
    require_tool("tmux")
    client = Client(tmp_path)
    client.settings.write_text(COMMENT + json.dumps(SETTINGS, indent=4))
    done = client.ultramon("install", "gemini", "--force")
    assert done.returncode == 0, done.stderr
    return client


def shown(client):
    """What `ultramon status` says of each agent: its label, how it ended, and its epoch."""
    found = json.loads(client.ultramon("status", "--all", "--json").stdout)["agents"]
    return [
        (one["label"], one["outcome"], (one["exit"] or {}).get("reason"), one["epoch"])
        for one in sorted(found, key=lambda one: (len(one["agentId"]), one["startedAt"]))
    ]


def liveness(client):
    """What `ultramon status` says of the life of each agent."""
    found = json.loads(client.ultramon("status", "--all", "--json").stdout)["agents"]
    return [one["liveness"] for one in found]


def test_a_person_is_asked_clears_and_leaves(client):
    """A question is a wait for permission until the tool has run; `/clear` begins another agent."""
    steps = [Step(30_000, "touch made"), Step(31_000, text="First."), Step(9_000, text="Second.")]
    with client.api({"MAIN": steps}), client.terminal() as screen:
        screen.wait_for(READY)
        screen.enter("[[MAIN]] work")
        screen.wait_for(QUESTION)
        # The client shows the question when the hook that hears of it has ended.
        assert client.state_of(0) == PERMISSION
        assert not (client.project / "made").exists()
        screen.press("Enter")
        screen.wait_for("First.")
        until(lambda: client.state_of(0) == AT_PROMPT)
        screen.wait_for(READY)
        screen.enter("/clear", "Clear the screen")
        until(lambda: len(client.records()) == 2 and shown(client)[0][0] is None)
        screen.wait_for(READY)
        screen.enter("[[MAIN]] next")
        screen.wait_for("Second.")
        screen.wait_for(READY)
        screen.enter("/quit", "Exit the cli")
        until(lambda: not any(record.active for record in client.records()))
    assert shown(client) == [
        (None, "completed", "clear", 1),
        ("project: [[MAIN]] work", "completed", "exit", 1),
    ]
    assert client.failures() == []
    assert client.ultramon("uninstall", "gemini").returncode == 0
    assert client.settings.read_text() == COMMENT + json.dumps(SETTINGS, indent=4)


@pytest.mark.exhaustive
def test_a_turn_is_interrupted_and_a_conversation_compressed(client):
    """Ctrl-C ends the turn, twice the session; a compression shows with the next prompt."""
    gate = threading.Event()
    steps = [
        Step(30_000, text="First."), Step(31_000, text="Late.", until=gate.is_set),
        Step(9_000, text="Third."),
    ]  # fmt: skip
    with client.api({"MAIN": steps}) as api, client.terminal("-i", "[[MAIN]] work") as screen:
        screen.wait_for("First.")
        until(lambda: client.state_of(0) == AT_PROMPT)
        screen.wait_for(READY)
        screen.enter("go on")
        until(lambda: len(api.requests) == 2)
        assert client.state_of(0) == WORKING
        screen.press("C-c")
        until(lambda: client.state_of(0) == AT_PROMPT)
        gate.set()
        screen.wait_for(READY)
        screen.enter("/compress", "Compresses the context")
        screen.wait_for("Chat history compressed")
        (record,) = client.records()
        assert (record.epoch, record.estimated_tokens) == (1, 30_000)
        screen.wait_for(READY)
        screen.enter_until("more", lambda: client.records()[0].current_task == "more")
        screen.wait_for("Third.")
        until(lambda: client.records()[0].estimated_tokens == 9_000)
        screen.wait_for(READY)
        screen.press("C-c")
        screen.wait_for("again to exit")
        screen.press("C-c")
        until(lambda: not client.records()[0].active)
    assert shown(client) == [("project: [[MAIN]] work", "completed", "exit", 2)]
    assert client.failures() == []


@pytest.mark.exhaustive
def test_a_subagent_asks_for_itself(client):
    """It has its name from the first call on; its session works meanwhile."""
    asked = {"agent_name": "generalist", "prompt": "[[SUB]] look"}
    steps = {
        "MAIN": [Step(20_000, ("invoke_agent", asked)), Step(22_000, text="All done.")],
        "SUB": [Step(10_000, "touch one"), Step(11_000, "touch two")],
    }
    with client.api(steps), client.terminal("-i", "[[MAIN]] work") as screen:
        screen.wait_for(QUESTION)
        assert [client.state_of(0), client.state_of(1)] == [WORKING, PERMISSION]
        assert client.records()[1].label == "project: [[SUB]] look"
        screen.press("Enter")
        until((client.project / "one").exists)
        until(lambda: client.records()[1].estimated_tokens == 11_000)
        until(lambda: client.state_of(1) == PERMISSION)
    assert client.failures() == []


@pytest.mark.exhaustive
def test_after_a_closed_terminal_nobody_seems_to_live(client):
    """The client calls its hook, though not always: then the session is lost."""
    with (
        client.api({"MAIN": [Step(30_000, text="First.")]}),
        client.terminal("-i", "[[MAIN]] work") as screen,
    ):
        screen.wait_for("First.")
        until(lambda: client.state_of(0) == AT_PROMPT)
    until(lambda: liveness(client) in (["ended"], ["lost"]))
