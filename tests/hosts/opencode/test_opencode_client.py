"""The real opencode with ultramon's plugin, against a scripted model."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.opencode_client import Client
from helpers.scripted_model import Step
from helpers.waiting import until

from ultramon.hosts.calls.enforcement import REPLIES_TO_RETURN
from ultramon.hosts.calls.hosted_agent import NOT_RETURNED

pytestmark = pytest.mark.timeout(600)  # the client takes 5 s to start, on two busy cores 20 s
REFUSAL = {
    "message": "This model's maximum context length is 100000 tokens. However, your messages"
    " resulted in 131072 tokens.",
    "code": "context_length_exceeded",
}


@pytest.fixture
def client(tmp_path, request):
    """A client into which ultramon was installed; its folder of plugins was not there."""
    client = Client(tmp_path, **getattr(request, "param", {}))
    install(client)
    return client


def install(client, *options):
    done = client.ultramon("install", "opencode", "--force", *options)
    assert done.returncode == 0, done.stderr


SMALL = pytest.mark.parametrize("client", [{"context": 100_000}], indirect=True)


def calls(*tokens):
    """Replies that each call a tool."""
    return [Step(one, f"echo {one}") for one in tokens]


def percents(api, name):
    """The fullness in what an agent reads before each of its requests."""
    return [re.findall(r"\((\d+) %", " ".join(texts)) for texts in api.told(name)]


def test_a_session_is_seen_and_warned_in_the_very_request_and_leaves_no_trace(client):
    """By the numbers of the reply before; what it has read stays in its conversation."""
    before = sorted(os.listdir(client.configuration))
    steps = [
        Step(30_000, "true", until=client.has_resident),
        *calls(130_000, 131_000, 150_000),
        Step(160_000),
    ]
    with client.api({"MAIN": steps}) as api:
        done = client.run("[[MAIN]] do the work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    assert percents(api, "MAIN") == [[], [], ["68"], [], ["78"]]
    assert len(api.requests[-1][1]) == 2
    (record,) = client.ended()
    assert (record.host, record.context_window, record.context_limit) == (
        "opencode",
        200_000,
        192_000,
    )
    assert (record.estimated_tokens, record.threshold_status) == (160_000, "critical")
    assert (record.active, record.outcome) == (False, "completed")
    assert (record.current_task, record.model) == ("[[MAIN]] do the work", "fake-1")
    assert client.failures() == []
    assert "problem" not in client.ultramon("doctor").stdout
    assert client.ultramon("uninstall", "opencode").returncode == 0
    left = set(os.listdir(client.configuration)) - {"opencode.json", ".gitignore"}
    assert sorted(left) == [one for one in before if one != "plugin"]


@pytest.mark.exhaustive
def test_two_subagents_at_once_have_their_own_numbers(client):
    """Each is warned in its own next request; its parent only reads how they ended."""

    def launch(name):
        asked = {"description": name, "prompt": f"[[{name}]] look", "subagent_type": "general"}
        return "task", asked

    plan = {"todos": [{"content": "join", "status": "in_progress", "priority": "high"}]}
    steps = {
        "MAIN": [Step(20_000, launch("SUBA"), launch("SUBB"), until=client.has_resident),
                 Step(22_000, ("todowrite", plan)),
                 Step(23_000)],
        "SUBA": [*calls(10_000, 170_000, 171_000), Step(172_000)],
        "SUBB": [*calls(11_000, 140_000), Step(141_000)],
    }  # fmt: skip
    with client.api(steps) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    assert percents(api, "SUBA") == [[], [], ["89"], []]
    assert percents(api, "SUBB") == [[], [], ["73"]]
    told = [text for texts in api.told("MAIN") for text in texts]
    assert all(text.startswith("[ultramon] Subagent ses_") for text in told)
    main, *subs = sorted(client.ended(), key=lambda record: record.estimated_tokens)
    assert [one.estimated_tokens for one in (main, *subs)] == [23_000, 141_000, 172_000]
    assert {one.parent_id for one in subs} == {main.agent_id}
    assert [one.outcome for one in (main, *subs)] == ["completed"] * 3
    assert [task["name"] for task in main.tasks] == ["join"]
    assert client.failures() == []


@pytest.mark.exhaustive
def test_two_sessions_at_once_are_not_confused(client):
    """Two processes of the client ask one resident."""
    begin = Step(30_000, "true", until=client.has_resident)
    steps = {
        "ONE": [begin, *calls(140_000), Step(141_000)],
        "TWO": [begin, *calls(61_000), Step(62_000)],
    }
    with client.api(steps | {"FIRST": [Step(1_000)]}) as api:
        client.run("[[FIRST]] make the database")
        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(client.run, f"[[{one}]] go") for one in steps]
        assert [run.result().returncode for run in runs] == [0, 0]
    assert api.left() == {}
    assert percents(api, "ONE") == [[], [], ["73"]]
    assert percents(api, "TWO") == [[], [], []]
    _, *records = sorted(client.ended(), key=lambda record: record.estimated_tokens)
    assert [record.estimated_tokens for record in records] == [62_000, 141_000]
    assert {record.outcome for record in records} == {"completed"}
    assert len({record.pid for record in records}) == 2


@pytest.mark.exhaustive
@SMALL
def test_two_compactions_are_two_epochs(client):
    """The count of the summarising request is none; the levels are announced anew."""
    steps = [*calls(30_000, 92_100, 9_000, 80_000, 92_200, 8_000), Step(8_500)]
    with client.api({"MAIN": steps}) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    assert sum(name == "compact" for name, _ in api.requests) == 3  # the title's too
    (record,) = client.ended()
    assert (record.epoch, record.estimated_tokens, record.threshold_status) == (3, 8_500, "normal")
    assert record.context_limit == 92_000
    assert client.failures() == []


@pytest.mark.exhaustive
@SMALL
@pytest.mark.parametrize("compacts", [True, False])
def test_a_refused_request_is_an_overflow(client, compacts):
    """The client compacts and continues, or the session has failed."""
    client.compaction = {"auto": compacts}
    refused = Step(0, error=REFUSAL)
    steps = [*calls(60_000), refused, Step(9_500)]
    with client.api({"MAIN": steps}):
        done = client.run("[[MAIN]] work")
    assert done.returncode == 1
    (record,) = client.ended()
    found = (record.outcome, record.epoch, record.estimated_tokens)
    assert found == (("completed", 2, 9_500) if compacts else ("failed", 1, 60_000))
    assert record.context_limit == (92_000 if compacts else 100_000)


@pytest.mark.exhaustive
def test_a_killed_session_is_lost_and_continues_as_the_same_agent(client):
    """Neither the plugin nor the database says an end."""
    with client.api({"MAIN": [*calls(52_000), Step(53_000, until=client.kill)]}):
        assert client.run("[[MAIN]] work").returncode == -signal.SIGKILL
    status = client.ultramon("status", "--all").stdout
    assert "LOST" in status
    (record,) = client.records()
    assert (record.active, record.estimated_tokens) == (True, 52_000)
    words = client.ultramon("resume").stdout
    assert f"opencode -s {record.agent_id}" in words
    with client.api({"MAIN": [*calls(40_000), Step(41_000)]}) as api:
        done = client.run("and now", "-s", record.agent_id)
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    (record,) = client.ended()
    assert (record.outcome, record.generation, record.estimated_tokens) == ("completed", 2, 41_000)


@pytest.mark.exhaustive
def test_a_session_that_does_not_return_is_ended(client):
    """Its request is not sent, and what it did is kept."""
    client.enforce(100_000)
    with client.api({"MAIN": calls(30_000, *range(80_000, 81_000, 100))}) as api:
        client.run("[[MAIN]] work")
    assert api.replies_after("MAIN", "Your instructions") == REPLIES_TO_RETURN
    (record,) = client.ended()
    assert (record.active, record.outcome) == (False, "cancelled")
    assert record.exit == {"reason": NOT_RETURNED}
    assert client.was_ended(record)


@pytest.mark.exhaustive
def test_a_subagent_that_does_not_return_is_ended_alone(client):
    """Its parent continues, and reads why its result is empty."""
    client.enforce(100_000)
    asked = {"description": "look", "prompt": "[[SUB]] look", "subagent_type": "general"}
    steps = {
        "MAIN": [Step(20_000, ("task", asked)), Step(22_000)],
        "SUB": calls(30_000, *range(80_000, 81_000, 100)),
    }
    with client.api(steps) as api:
        done = client.run("[[MAIN]] work")
    assert done.returncode == 0, done.stderr
    assert api.replies_after("SUB", "Your instructions") == REPLIES_TO_RETURN
    main, sub = client.ended()
    assert (main.outcome, sub.outcome, sub.exit) == (
        "completed",
        "cancelled",
        {"reason": NOT_RETURNED},
    )
    assert "ended" in " ".join(api.told("MAIN")[1])


@pytest.mark.exhaustive
def test_on_a_terminal_a_session_waits_and_a_new_one_is_another_agent(client):
    """No event says that a person has left a session for a new one; both end with the client."""
    steps = {"MAIN": [Step(20_000)], "NEXT": [Step(30_000)]}
    with client.api(steps), client.terminal() as terminal:
        terminal.wait_for("Ask anything")
        terminal.enter("[[MAIN]] hello")
        until(lambda: client.state_of(0) == ("waiting", None))
        terminal.press("C-x")
        terminal.press("n")
        terminal.wait_for("Ask anything")
        terminal.enter("[[NEXT]] hello")
        until(lambda: client.state_of(1) == ("waiting", None))
        first, second = client.records()
        assert first.pid == second.pid
        assert (first.active, second.active) == (True, True)
        terminal.enter_until("/exit", lambda: not any(one.active for one in client.records()))
    assert {record.outcome for record in client.records()} == {"completed"}
