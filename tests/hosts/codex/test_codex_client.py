"""The real Codex with ultramon's hooks, against a scripted model."""

import signal

import pytest
from helpers.codex_client import Client
from helpers.scripted_model import Step

from ultramon.hosts.calls.hosted_agent import CUT_TURN

OTHER_HOOKS = b"""{
  "hooks": {
    "Stop": [ {"hooks": [{"type": "command", "command": "true"}]} ]
  }
}
"""


@pytest.fixture
def client(tmp_path):
    """A client into which ultramon was installed, beside another tool's hook."""
    client = Client(tmp_path)
    client.hooks.write_bytes(OTHER_HOOKS)
    done = client.ultramon("install", "codex", "--force")
    assert done.returncode == 0, done.stderr
    return client


def test_a_session_is_seen_and_told_and_leaves_no_trace(client):
    """The right number in the right request, once for each crossing; the old file comes back."""
    crossing = Step(180_000, "true", "true")
    steps = [Step(30_000, "true"), crossing, Step(185_000, "true"), Step(200_000)]
    with client.api({"MAIN": steps}) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    first, second, third, last = api.told("MAIN")
    assert (first, second, last) == ([], [], [])
    (text,) = third
    assert "(70 %" in text
    (record,) = client.records()
    assert (record.host, record.estimated_tokens, record.context_limit) == (
        "codex", 200_000, 258_400,
    )  # fmt: skip
    assert (record.outcome, record.threshold_status) == ("completed", "critical")
    assert client.failures() == []
    assert "77 %" in client.ultramon("status", "--all").stdout
    assert "problem" not in client.ultramon("doctor").stdout
    assert client.ultramon("uninstall", "codex").returncode == 0
    assert client.hooks.read_bytes() == OTHER_HOOKS


@pytest.mark.exhaustive
def test_subagents_are_told_their_own_numbers(client):
    """A child that crosses a rung is notified in its own next request, its parent never."""
    spawn = ("spawn_agent", {"message": "[[SUB]] look"}, "multi_agent_v1")
    steps = {
        "MAIN": [Step(20_000, spawn), Step(22_000, until=client.has_child_ended)],
        "SUB": [Step(10_000, "true"), Step(181_000, "true"), Step(182_000, "true"), Step(183_000)],
    }
    with client.api(steps) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    assert [len(texts) for texts in api.told("SUB")] == [0, 0, 1, 0]
    assert not any(api.told("MAIN"))
    main, sub = sorted(client.records(), key=lambda record: record.estimated_tokens)
    assert (main.estimated_tokens, sub.estimated_tokens) == (22_000, 183_000)
    assert (sub.parent_id, sub.outcome, sub.active) == (main.agent_id, "completed", False)
    assert client.failures() == []


@pytest.mark.exhaustive
def test_a_subagent_that_overflows_fails(client):
    """No hook reports it; its rollout says so when its session ends."""
    spawn = ("spawn_agent", {"message": "[[SUB]] look"}, "multi_agent_v1")
    refusal = {
        "code": "context_length_exceeded",
        "message": "too long",
        "type": "invalid_request_error",
    }
    steps = {
        "MAIN": [Step(20_000, spawn), Step(22_000, until=client.has_child_overflowed)],
        "SUB": [Step(240_000, "true"), Step(0, error=refusal)],
    }
    with client.api(steps) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    sub = next(record for record in client.records() if record.parent_id)
    assert (sub.active, sub.outcome, sub.estimated_tokens) == (False, "failed", 240_000)
    assert sub.exit["error"] == "Prompt is too long"


@pytest.mark.exhaustive
def test_a_session_that_overflows_has_failed_and_one_that_is_killed_is_lost(client):
    """Of one that is killed no hook is called; of the other the rollout says why."""
    refusal = {"code": "context_length_exceeded", "message": "too long"}
    with client.api({"MAIN": [Step(240_000, "true"), Step(0, error=refusal)]}):
        assert client.run("[[MAIN]] work").returncode != 0
    (record,) = client.records()
    assert (record.outcome, record.exit["error"]) == ("failed", "Prompt is too long")
    assert record.estimated_tokens == 240_000
    with client.api({"MAIN": [Step(30_000, "true"), Step(31_000, until=client.kill)]}):
        client.run("resume", "--last", "go on")
    assert "LOST" in client.ultramon("status").stdout
    (record,) = client.records()
    assert (record.generation, record.outcome) == (2, None)


@pytest.mark.exhaustive
def test_a_session_that_an_interrupt_ends_in_a_turn_is_cancelled(client):
    """The client calls the hook of its end; `resume` lists it."""
    interrupt = client.cut(signal.SIGINT)
    with client.api({"MAIN": [Step(30_000, "true"), Step(31_000, until=interrupt)]}):
        assert client.run("[[MAIN]] work").returncode != 0
    (record,) = client.records()
    assert (record.active, record.outcome, record.exit) == (
        False,
        "cancelled",
        {"reason": CUT_TURN},
    )
    assert "codex resume" in client.ultramon("resume").stdout


@pytest.mark.exhaustive
def test_a_compaction_starts_an_epoch_and_is_said_once(client):
    """What was read before is no longer announced, and the next crossing is."""
    config = "model_auto_compact_token_limit = 190000"
    steps = [
        Step(180_000, "true"),
        Step(200_000, "true"),
        Step(9_000, "true"),
        Step(181_000, "true"),
        Step(182_000),
    ]
    with client.api(
        {"MAIN": steps}, config=config, compact=Step(201_000, text="[[MAIN]] so far")
    ) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    (record,) = client.records()
    assert (record.epoch, record.estimated_tokens, record.context_limit) == (2, 182_000, 190_000)
    assert [agent for agent, _ in api.requests].count("compact") == 1
    texts = [text for told in api.told("MAIN") for text in told]
    assert [text.split()[2] for text in texts].count("compacted") == 1
    assert client.failures() == []


@pytest.mark.exhaustive
def test_a_resumed_session_is_the_same_agent(client):
    """The second process continues where the first one ended."""
    with client.api({"MAIN": [Step(30_000, "true"), Step(180_000)]}) as api:
        assert client.run("[[MAIN]] work").returncode == 0
    with client.api({"MAIN": [Step(190_000, "true"), Step(195_000)]}) as api:
        assert client.run("resume", "--last", "go on").returncode == 0
    (record,) = client.records()
    assert (record.generation, record.epoch, record.estimated_tokens) == (2, 1, 195_000)
    assert len([text for told in api.told("MAIN") for text in told]) == 1


@pytest.mark.exhaustive
def test_hooks_without_trust_are_never_called_and_the_doctor_says_so(client):
    """The client leaves them out without a word."""
    with client.api({"MAIN": [Step(30_000)]}):
        assert client.run("[[MAIN]] work", trusted=False).returncode == 0
    assert not client.states.joinpath("agents").exists()
    done = client.ultramon("doctor")
    assert "problem  codex sessions: no hook has written anything of" in done.stdout


@pytest.mark.exhaustive
def test_the_plan_of_the_agent_is_its_plan(client):
    """update_plan calls the hook as any tool does."""
    plan = {
        "plan": [
            {"step": "read", "status": "completed"},
            {"step": "write", "status": "in_progress"},
        ]
    }
    steps = {"MAIN": [Step(30_000, ("update_plan", plan)), Step(31_000)]}
    with client.api(steps, config="tools.update_plan.enabled = true") as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    (record,) = client.records()
    assert [(task["name"], task["status"]) for task in record.tasks or ()] == [
        ("read", "done"), ("write", "in_progress"),
    ]  # fmt: skip
