"""The real Qwen Code on a terminal, used as a person uses it, against a scripted model."""

import threading

import pytest
from helpers.qwen_client import Client
from helpers.qwen_session import NEW, OLD
from helpers.requirements import require_tool
from helpers.scripted_model import Step
from helpers.waiting import until
from test_qwen_client import write

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(600)]

PERMISSION = ("waiting", "permission")
AT_PROMPT = ("waiting", None)
QUESTION = "Allow execution"
READY = "Type your message"
ALONE = {
    "ui": {"enableFollowupSuggestions": False},
    "memory": {"enableManagedAutoMemory": False, "enableAutoSkill": False},
}
"""Without requests that nobody has asked for: they would take steps of the script."""


@pytest.fixture
def client(tmp_path, request):
    """A client into which ultramon was installed."""
    require_tool("tmux")
    client = Client(tmp_path, getattr(request, "param", NEW))
    write(client, ALONE)
    return client


@pytest.mark.parametrize("client", [OLD, NEW], indirect=True)
def test_a_person_is_asked_and_interrupts(client):
    """A question is a wait for permission; after Escape the client waits for the next prompt."""
    gate = threading.Event()
    steps = [
        Step(30_000, "touch made"), Step(31_000, text="First."), Step(32_000, "touch more"),
        Step(33_000, text="Late.", until=gate.is_set),
    ]  # fmt: skip
    with client.api({"MAIN": steps}), client.terminal("-i", "[[MAIN]] work") as screen:
        screen.wait_for(QUESTION)
        until(lambda: client.state_of(0) == PERMISSION)
        assert not (client.project / "made").exists()
        screen.press("Enter")
        screen.wait_for("First.")
        until(lambda: client.state_of(0) == AT_PROMPT)
        screen.wait_for(READY)
        screen.enter("again")
        screen.wait_for(QUESTION)
        until(lambda: client.state_of(0) == PERMISSION)
        screen.press("Escape")
        until(lambda: client.state_of(0) == AT_PROMPT)
        screen.wait_for(READY)
        screen.enter("go on")
        until(lambda: client.state_of(0) == ("working", None))
        screen.press("C-c")
        until(lambda: client.state_of(0) == AT_PROMPT)
        gate.set()
    assert not (client.project / "more").exists()
    assert client.failures() == []


def test_a_subagent_that_is_refused_asks_nobody(client):
    """In the background the client refuses by itself; its session waits for its own next prompt."""
    launch = {"description": "look", "prompt": "[[SUB]] look", "subagent_type": "general-purpose"}
    steps = {
        "MAIN": [Step(20_000, ("agent", launch)), Step(22_000, text="Launched.")],
        "SUB": [Step(5_000, "touch one"), Step(6_000, text="Refused.")],
    }
    with client.api(steps), client.terminal("-i", "[[MAIN]] work") as screen:
        screen.wait_for("Do you want to proceed?")
        until(lambda: client.state_of(0) == PERMISSION)
        screen.press("Enter")
        until(client.have_children_ended)
        until(lambda: client.state_of(0) == AT_PROMPT)
        (*_, child) = client.records()
        assert (child.outcome, child.estimated_tokens) == ("completed", 6_000)
    assert not (client.project / "one").exists()
    assert client.failures() == []
