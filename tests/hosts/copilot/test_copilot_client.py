"""The real Copilot CLI with ultramon's hooks, against a scripted model."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.copilot_client import WINDOW, Client
from helpers.scripted_model import COMPACT, Step

from ultramon.hosts.calls.enforcement import REPLIES_TO_RETURN
from ultramon.hosts.calls.hosted_agent import CUT_TURN, NOT_RETURNED

RULE = "a hook ends this turn after 3 more replies"
LIMIT = WINDOW * 8 // 10
"""Where the client begins to compact."""
SLOW = "sleep 0.3"
"""A call that takes longer than the client needs to write down the reply that made it."""
READ = ("view", {"path": "a.txt"})


def launch(name, prompt, kind="general-purpose"):
    """A call that launches a subagent."""
    asked = {"agent_type": kind, "name": name, "description": name, "mode": "sync"}
    return "task", {**asked, "prompt": prompt}


def tokens_at(percent):
    """Tokens at which the client's limit is so full."""
    return LIMIT * percent // 100


@pytest.fixture
def client(tmp_path):
    """A client into which ultramon was installed."""
    client = Client(tmp_path)
    done = client.ultramon("install", "copilot", "--force")
    assert done.returncode == 0, done.stderr
    return client


def test_a_session_is_seen_and_warned_and_leaves_no_trace(client):
    """The right number in the right request, once for each crossing; no file is left."""
    crossing = Step(tokens_at(70), SLOW)
    steps = [Step(30_000, SLOW), crossing, Step(tokens_at(71), SLOW), Step(tokens_at(72))]
    with client.api({"MAIN": steps}) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    first, second, third, last = api.told("MAIN")
    assert (first, second, last) == ([], [], [])
    assert ["(70 %" in text for text in third] == [True]
    (record,) = client.records()
    assert (record.host, record.estimated_tokens) == ("copilot", tokens_at(72))
    assert (record.context_limit, record.context_window) == (LIMIT, WINDOW)
    assert (record.outcome, record.label) == ("completed", "project: [[MAIN]] work")
    assert client.failures() == []
    assert "72 %" in client.ultramon("status", "--all").stdout
    assert "problem" not in client.ultramon("doctor").stdout
    assert client.ultramon("uninstall", "copilot").returncode == 0
    assert not client.hooks.parent.exists()


@pytest.mark.exhaustive
def test_subagents_are_warned_of_their_own_numbers(client):
    """Two at once, and one that a subagent has launched; their session reads how they ended."""
    steps = {
        "MAIN": [
            Step(20_000, launch("a", "[[SUBA]] do a"), launch("b", "[[SUBB]] do b")),
            Step(22_000),
        ],
        "SUBA": [
            Step(50_000, SLOW), Step(tokens_at(70), SLOW), Step(tokens_at(71), SLOW),
            Step(tokens_at(72)),
        ],
        "SUBB": [Step(12_000, launch("c", "[[SUBC]] do c", "explore")), Step(15_000)],
        "SUBC": [Step(9_000, READ), Step(61_000, READ), Step(62_000)],
    }  # fmt: skip
    with client.api(steps) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    assert [len(texts) for texts in api.told("SUBA")] == [0, 0, 1, 0]
    assert not any(api.told("SUBB"))
    main, *subs = client.records()
    found = {sub.label.rpartition(" ")[2]: sub for sub in subs}
    assert {name: one.estimated_tokens for name, one in found.items()} == {
        "a": tokens_at(72), "b": 15_000, "c": 62_000,
    }  # fmt: skip
    assert {(sub.parent_id, sub.outcome, sub.active) for sub in subs} == {
        (main.agent_id, "completed", False)
    }
    assert main.estimated_tokens == 22_000
    assert all("Context window:" not in text for told in api.told("MAIN") for text in told)
    assert client.failures() == []


@pytest.mark.exhaustive
def test_a_compaction_begins_an_epoch_when_it_is_over(client):
    """A reply that comes meanwhile is still one of the old window; the agent reads of it once."""
    steps = [
        Step(60_000, SLOW), Step(79_000, SLOW), Step(80_500, SLOW), Step(81_500, "sleep 3"),
        Step(21_000, SLOW), Step(21_500),
    ]  # fmt: skip
    with client.api({"MAIN": steps}) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    assert [agent for agent, _ in api.requests].count(COMPACT) == 1
    (record,) = client.records()
    assert (record.epoch, record.estimated_tokens) == (2, 21_500)
    *_, last = api.told("MAIN")
    assert [text.split()[2] for text in last] == ["compacted"]
    assert client.failures() == []


@pytest.mark.exhaustive
def test_a_session_that_does_not_return_is_ended(client):
    """At a call that needs a permission, though all are granted; resumed, not again."""
    client.enforce(60_000)
    steps = [Step(30_000, SLOW), *[Step(50_000 + one, SLOW, "echo b") for one in range(9)]]
    with client.api({"MAIN": steps}) as api:
        done = client.run("[[MAIN]] work")
    assert done.returncode == 0, done.stderr
    assert api.replies_after("MAIN", RULE) == REPLIES_TO_RETURN
    (record,) = client.records()
    assert (record.active, record.outcome) == (False, "cancelled")
    assert record.exit == {"reason": NOT_RETURNED}
    assert client.was_ended(record)
    steps = [*[Step(51_000 + one, SLOW) for one in range(6)], Step(52_000)]
    with client.api({"MAIN": steps}) as api:
        done = client.run("go on", "--continue")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    (record,) = client.records()
    assert (record.outcome, record.generation) == ("completed", 2)
    assert client.failures() == []


@pytest.mark.exhaustive
def test_a_subagent_that_does_not_return_is_ended_alone(client):
    """Its session continues, and reads where the handoff and the working tree are."""
    client.enforce(60_000)
    full = [Step(50_000 + one, SLOW) for one in range(9)]
    steps = {
        "MAIN": [Step(20_000, launch("a", "[[SUB]] do a")), Step(22_000, SLOW), Step(23_000)],
        "SUB": full,
    }
    with client.api(steps) as api:
        done = client.run("[[MAIN]] work")
    assert done.returncode == 0, done.stderr
    assert [agent for agent, _ in api.requests].count("SUB") == 1 + REPLIES_TO_RETURN
    main, sub = client.records()
    assert (main.outcome, sub.active, sub.outcome) == ("completed", False, "cancelled")
    assert client.was_ended(sub)
    (text,) = (text for told in api.told("MAIN") for text in told)
    assert "The working tree at its end is kept as" in text
    assert client.failures() == []


TOO_LONG = {
    "message": "This model's maximum context length is 100000 tokens. However, your messages"
    " resulted in 131072 tokens.",
    "type": "invalid_request_error",
    "code": "context_length_exceeded",
}


@pytest.mark.exhaustive
def test_a_session_that_overflows_has_failed(client):
    """The client exits with 1 then."""
    with client.api({"MAIN": [Step(60_000, SLOW), Step(0, error=TOO_LONG)]}):
        assert client.run("[[MAIN]] work").returncode == 1
    (record,) = client.records()
    assert (record.outcome, record.estimated_tokens) == ("failed", 60_000)
    assert record.exit["error"] == "Prompt is too long"


@pytest.mark.exhaustive
def test_a_subagent_that_overflows_fails_by_itself(client):
    """No event reports its end but the failed call of its session, which takes no answer."""
    steps = {
        "MAIN": [Step(20_000, launch("a", "[[SUB]] do a")), Step(22_000, SLOW), Step(23_000)],
        "SUB": [Step(60_000, SLOW), Step(0, error=TOO_LONG)],
    }
    with client.api(steps) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    main, sub = client.records()
    assert (main.outcome, sub.active, sub.outcome) == ("completed", False, "failed")
    assert (sub.estimated_tokens, sub.exit["error"]) == (60_000, "Prompt is too long")
    (text,) = (text for told in api.told("MAIN") for text in told)
    assert "failed: Prompt is too long" in text


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["TERM", "HUP", "INT"])
def test_a_session_that_a_signal_ends_in_a_turn_is_cancelled(client, name):
    """While its model replies; `resume` lists it."""
    cut = client.cut(getattr(signal, f"SIG{name}"))
    with client.api({"MAIN": [Step(30_000, SLOW), Step(31_000, until=cut)]}):
        client.run("[[MAIN]] work")
    (record,) = client.records()
    assert (record.active, record.outcome, record.exit) == (
        False, "cancelled", {"reason": CUT_TURN},
    )  # fmt: skip
    assert "copilot --resume" in client.ultramon("resume").stdout


@pytest.mark.exhaustive
def test_a_session_that_is_killed_is_lost_until_it_is_resumed(client):
    """The same agent, in another process."""
    with client.api({"MAIN": [Step(30_000, SLOW), Step(31_000, until=client.kill)]}):
        client.run("[[MAIN]] work")
    assert "LOST" in client.ultramon("status").stdout
    (record,) = client.records()
    assert (record.active, record.estimated_tokens) == (True, 30_000)
    with client.api({"MAIN": [Step(32_000)]}):
        done = client.run("go on", "--resume", record.agent_id)
    assert done.returncode == 0, done.stderr
    (record,) = client.records()
    assert (record.outcome, record.generation, record.estimated_tokens) == (
        "completed", 2, 32_000,
    )  # fmt: skip


@pytest.mark.exhaustive
def test_the_list_of_the_agent_is_its_plan(client):
    """The client keeps it in a database, where the agent writes by SQL."""

    def sql(query):
        return "sql", {"description": "todos", "query": query}

    steps = [
        Step(30_000, sql("INSERT INTO todos (id, title) VALUES ('a', 'read'), ('b', 'write')")),
        Step(31_000, sql("UPDATE todos SET status = 'done' WHERE id = 'a'")),
        Step(32_000),
    ]
    with client.api({"MAIN": steps}):
        assert client.run("[[MAIN]] work").returncode == 0
    (record,) = client.records()
    assert [(task["name"], task["status"]) for task in record.tasks or ()] == [
        ("read", "done"), ("write", "pending"),
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_two_sessions_at_once_are_two_agents(client):
    """Each is warned of its own number, in its own request."""
    steps = {
        "MAIN": [Step(50_000, SLOW), Step(tokens_at(70), SLOW), Step(tokens_at(71))],
        "OTHER": [Step(10_000, SLOW), Step(11_000, SLOW), Step(12_000)],
    }
    with client.api(steps) as api, ThreadPoolExecutor() as pool:
        ended = list(pool.map(client.run, ["[[MAIN]] work", "[[OTHER]] work"]))
    assert ([done.returncode for done in ended], api.left()) == ([0, 0], {})
    assert [len(texts) for texts in api.told("MAIN")] == [0, 0, 1]
    assert not any(api.told("OTHER"))
    found = {record.label: record.estimated_tokens for record in client.records()}
    assert found == {"project: [[MAIN]] work": tokens_at(71), "project: [[OTHER]] work": 12_000}
    assert client.failures() == []


@pytest.mark.exhaustive
def test_two_compactions_are_two_epochs(client):
    """A second one begins when the new window is as full again."""
    first = [Step(80_500, SLOW), Step(81_500, "sleep 2"), Step(21_000, SLOW)]
    second = [Step(82_000, SLOW), Step(83_000, "sleep 2"), Step(22_000, SLOW), Step(22_500)]
    with client.api({"MAIN": [Step(60_000, SLOW), *first, *second]}) as api:
        done = client.run("[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    assert [agent for agent, _ in api.requests].count(COMPACT) == 2
    (record,) = client.records()
    assert (record.epoch, record.estimated_tokens) == (3, 22_500)
    assert client.failures() == []
