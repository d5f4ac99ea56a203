"""The real Qwen Code with ultramon's hooks, against a scripted model."""

import json
import signal

import pytest
from helpers.qwen_client import SETTINGS, Client
from helpers.qwen_session import NEW, OLD
from helpers.scripted_model import Step
from helpers.waiting import until

from ultramon.hosts.calls.enforcement import REPLIES_TO_RETURN
from ultramon.hosts.calls.hosted_agent import CUT_TURN, NOT_RETURNED

RULE = "a hook ends this turn after 3 more replies"
pytestmark = pytest.mark.timeout(600)  # each round of tools starts several processes

BOTH = pytest.mark.parametrize("client", [OLD, NEW], indirect=True)


@pytest.fixture
def client(tmp_path, request):
    """A client into which ultramon was installed, beside another tool's hook."""
    client = Client(tmp_path, getattr(request, "param", OLD))
    write(client, {})
    return client


def write(client, more, *options):
    """Write the client's settings, and install."""
    client.settings.write_text(json.dumps(SETTINGS | more))
    done = client.ultramon("install", "qwen", "--force", *options)
    assert done.returncode == 0, done.stderr


def calls(*tokens):
    """Replies that each call a tool: never the same call, which the client takes for a loop."""
    return [Step(one, f"echo {one}") for one in tokens]


def all_told(api, name, since=0):
    """What an agent has read of hooks, from one of its requests on."""
    return [text for texts in api.told(name)[since:] for text in texts]


def test_a_session_is_seen_and_warned_and_leaves_no_trace(client):
    """Once for each crossing, at once or a call later; the old file comes back."""
    before = json.dumps(SETTINGS).encode()
    steps = [*calls(30_000, 60_600, 61_000, 61_200), Step(70_000)]
    with client.api({"MAIN": steps}) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    assert api.told("MAIN")[:2] == [[], []]
    (text,) = all_told(api, "MAIN")
    assert "(66 %" in text
    (record,) = client.records()
    assert (record.host, record.estimated_tokens, record.context_limit) == ("qwen", 70_000, 91_750)
    assert (record.outcome, record.threshold_status) == ("completed", "critical")
    assert client.failures() == []
    assert "problem" not in client.ultramon("doctor").stdout
    assert client.ultramon("uninstall", "qwen").returncode == 0
    assert client.settings.read_bytes() == before


@pytest.mark.exhaustive
@pytest.mark.parametrize("client", [NEW], indirect=True)
def test_subagents_are_warned_of_their_own_numbers(client):
    """A child that crosses a rung reads it in its own next request, its parent never."""
    launch = {"description": "look", "prompt": "[[SUB]] look", "subagent_type": "general-purpose"}
    steps = {
        "MAIN": [Step(20_000, ("agent", launch)), Step(22_000, until=client.have_children_ended)],
        "SUB": [Step(10_000, "true"), Step(600_000, "true"), Step(610_000, "true"), Step(620_000)],
    }
    with client.api(steps) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    assert api.told("SUB")[:2] == [[], []]
    assert len(all_told(api, "SUB")) == 1
    assert all_told(api, "MAIN") == []
    main, sub = sorted(client.records(), key=lambda record: record.estimated_tokens)
    assert (main.estimated_tokens, sub.estimated_tokens) == (22_000, 620_000)
    assert (sub.parent_id, sub.outcome, sub.active) == (main.agent_id, "completed", False)
    assert sub.context_window == 1_000_000
    assert client.failures() == []


@pytest.mark.exhaustive
@BOTH
def test_a_session_that_does_not_return_is_ended(client):
    """The client asks its model no more and exits; resumed, it is not ended again."""
    client.enforce(100_000)
    with client.api({"MAIN": calls(30_000, *range(80_000, 81_000, 100))}) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
    assert api.replies_after("MAIN", RULE) == REPLIES_TO_RETURN
    (record,) = client.records()
    assert (record.active, record.outcome) == (False, "cancelled")
    assert record.exit == {"reason": NOT_RETURNED}
    assert client.was_ended(record)
    with client.api({"MAIN": [*calls(*range(82_000, 82_700, 100)), Step(83_000)]}) as api:
        done = client.run("go on", "--resume", record.agent_id)
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    (record,) = client.records()
    assert (record.active, record.outcome, record.generation) == (False, "completed", 2)
    assert client.failures() == []


@pytest.mark.exhaustive
@BOTH
def test_a_compaction_starts_an_epoch(client):
    """What was read before counts no more; the last instruction is given back, once."""
    write(client, {"model": {"generationConfig": {"contextWindowSize": 100_000}}}, "--pins")
    steps = [*calls(30_000, 50_000, 71_000, 9_000, 51_000, 51_500), Step(52_000)]
    with client.api(
        {"MAIN": steps}, Step(70_000, text="<state_snapshot>[[MAIN]] so far</state_snapshot>")
    ) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    (record,) = client.records()
    assert (record.epoch, record.estimated_tokens) == (2, 52_000)
    assert [agent for agent, _ in api.requests].count("compact") == 1
    assert client.failures() == []
    # The first request behind the summary may still hold what the last tool before it said.
    told = [text.split(":")[0] for text in all_told(api, "MAIN", since=4)]
    assert told[0] == "The user's last instruction, word for word"
    assert told[1].startswith("Context window compacted at ")
    assert told[2:] == ["Context window"]


@pytest.mark.exhaustive
@BOTH
def test_a_resumed_session_is_the_same_agent(client):
    """By the command that `ultramon resume` shows."""
    with client.api({"MAIN": [Step(30_000, "true"), Step(40_000)]}):
        assert client.run("[[MAIN]] work").returncode == 0
    (record,) = client.records()
    shown = client.ultramon("resume", "--all").stdout
    assert f"qwen --resume {record.agent_id}" in shown
    with client.api({"MAIN": [Step(45_000, "true"), Step(46_000)]}):
        assert client.run("go on", "--resume", record.agent_id).returncode == 0
    (record,) = client.records()
    assert (record.generation, record.epoch, record.estimated_tokens) == (2, 1, 46_000)
    assert client.failures() == []


@pytest.mark.exhaustive
@BOTH
def test_a_session_that_overflows_has_failed_and_the_replay_shows_it(client):
    """No hook reports it; the session's file says so."""
    refusal = {"code": "context_length_exceeded", "message": "prompt is too long: 9 tokens > 8"}
    with client.api({"MAIN": [Step(30_000, "true"), Step(0, error=refusal)]}):
        client.run("[[MAIN]] work")
    assert "failed" in client.ultramon("status", "--all").stdout
    (record,) = client.records()
    assert (record.outcome, record.estimated_tokens) == ("failed", 30_000)
    assert record.exit["error"] == "Prompt is too long"
    found = json.loads(client.ultramon("report", "--json").stdout)
    assert (found["sessions"], found["overflows"]) == (1, 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("client", [NEW], indirect=True)
def test_a_run_of_one_prompt_without_its_option_completes(client):
    """No hook reports its end; the client keeps a record of the sessions that it has closed."""
    with client.api({"MAIN": [Step(30_000, "true"), Step(31_000)]}):
        assert client.run_command(*client.command, "[[MAIN]] work", "--yolo").returncode == 0
    (record,) = client.records()
    assert record.active
    assert "completed" in client.ultramon("status", "--all").stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("client", [NEW], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_session_that_a_signal_ends_in_a_turn_is_cancelled(client, number):
    """The client calls no hook then, but writes that it has closed the session."""
    cut = client.cut(number)
    with client.api({"MAIN": [Step(30_000, "true"), Step(31_000, until=cut)]}):
        assert client.run("[[MAIN]] work").returncode != 0
    assert "qwen --resume" in client.ultramon("resume").stdout
    (record,) = client.records()
    assert (record.active, record.outcome, record.exit) == (
        False,
        "cancelled",
        {"reason": CUT_TURN},
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("client", [NEW], indirect=True)
def test_a_run_that_the_clients_guard_against_loops_ends_has_failed(client):
    """Its model makes the same call again and again; the hook of the failure may outlive it."""
    with client.api({"MAIN": [Step(30_000, "true")]}):
        assert client.run("[[MAIN]] work").returncode != 0
    until(lambda: client.records()[0].extra["qwen"].get("failedWith"))
    assert "failed" in client.ultramon("status", "--all").stdout
    (record,) = client.records()
    failed = {"reason": "turn failed", "error": "loop_detected"}
    assert (record.active, record.outcome, record.exit) == (False, "failed", failed)


@pytest.mark.exhaustive
@BOTH
def test_a_session_that_is_killed_is_lost(client):
    """In the middle of a turn."""
    with client.api({"MAIN": [Step(30_000, "true"), Step(31_000, until=client.kill)]}):
        client.run("[[MAIN]] work")
    assert "LOST" in client.ultramon("status").stdout
    (record,) = client.records()
    assert (record.active, record.estimated_tokens) == (True, 30_000)
