"""The real Gemini CLI with ultramon's hooks, against a scripted model."""

import json
import signal
import threading

import pytest
from helpers.gemini_client import SETTINGS, TOO_LONG, WINDOW, Client
from helpers.scripted_model import COMPACT, RUN_SECONDS, Step

from ultramon.hosts.calls.enforcement import REPLIES_TO_RETURN
from ultramon.hosts.calls.hosted_agent import CUT_TURN, NOT_RETURNED

RULE = "a hook ends this turn after 3 more replies"
READ = ("read_file", {"file_path": "a.txt"})
END = (
    "complete_task",
    {"report": {"SummaryOfFindings": "x", "ExplorationTrace": [], "RelevantLocations": []}},
)


@pytest.fixture
def client(tmp_path):
    """A client into which ultramon was installed, beside another tool's hook."""
    client = Client(tmp_path)
    client.settings.write_text(json.dumps(SETTINGS, indent=4))
    done = client.ultramon("install", "gemini", "--force")
    assert done.returncode == 0, done.stderr
    return client


LONG = ("seq 1 6000", "seq 1 6001")
"""Calls whose results alone are more than one part in a hundred of the window."""


def compress_early(client):
    """Let the client compress at one part in a hundred of the window."""
    settings = json.loads(client.settings.read_text())
    settings["model"]["compressionThreshold"] = 0.01
    client.settings.write_text(json.dumps(settings))


def pairs(tokens):
    """Replies that each call two tools: never the same, which the client takes for a loop."""
    return [Step(one, f"echo {one}", f"echo b{one}") for one in tokens]


def tokens_at(percent):
    """Tokens of a window that is so full."""
    return WINDOW * percent // 100


def test_a_session_is_seen_and_warned_and_leaves_no_trace(client):
    """The right number in the right request, once for each crossing; the old file comes back."""
    crossing = Step(tokens_at(70), "true", "true")
    steps = [Step(30_000, "true"), crossing, Step(tokens_at(71), "true"), Step(tokens_at(72))]
    with client.api({"MAIN": steps}) as api:
        done = client.run("-p", "[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    first, second, third, last = api.told("MAIN")
    assert (first, second, last) == ([], [], [])
    assert {"(70 %" in text for text in third} == {True}
    (record,) = client.records()
    assert (record.host, record.estimated_tokens) == ("gemini", tokens_at(72))
    assert (record.context_limit, record.outcome) == (WINDOW, "completed")
    assert client.failures() == []
    assert "72 %" in client.ultramon("status", "--all").stdout
    assert "problem" not in client.ultramon("doctor").stdout
    assert client.ultramon("uninstall", "gemini").returncode == 0
    assert client.settings.read_text() == json.dumps(SETTINGS, indent=4)


@pytest.mark.exhaustive
def test_a_subagent_is_warned_of_its_own_number(client):
    """A subagent that crosses a rung is warned in its own next request, its session never."""
    asked = {"agent_name": "codebase_investigator", "prompt": "[[SUB]] look"}
    steps = {
        "MAIN": [Step(20_000, ("invoke_agent", asked)), Step(22_000, "true"), Step(23_000)],
        "SUB": [
            Step(10_000, READ), Step(tokens_at(70), READ), Step(tokens_at(71), READ),
            Step(tokens_at(72), END),
        ],
    }  # fmt: skip
    with client.api(steps) as api:
        done = client.run("-p", "[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    assert [len(texts) for texts in api.told("SUB")] == [0, 0, 1, 0]
    main, sub = client.records()
    assert (main.estimated_tokens, sub.estimated_tokens) == (23_000, tokens_at(72))
    assert (sub.parent_id, sub.outcome, sub.active) == (main.agent_id, "completed", False)
    # The session reads how its subagent ended, and no number as its own.
    assert all("Context window:" not in text for told in api.told("MAIN") for text in told)
    assert client.failures() == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["text", "stream-json"])
def test_a_session_that_does_not_return_is_ended(client, form):
    """The client asks its model no more and exits well; resumed, it is not ended again."""
    client.enforce(100_000)
    steps = [Step(30_000, "true"), *pairs(range(80_000, 80_009))]
    with client.api({"MAIN": steps}) as api:
        done = client.run("-o", form, "-p", "[[MAIN]] work")
    assert done.returncode == 0, done.stderr
    assert ("ended this turn" in done.stderr) is (form == "text")
    assert api.replies_after("MAIN", RULE) == REPLIES_TO_RETURN
    (record,) = client.records()
    assert (record.active, record.outcome) == (False, "cancelled")
    assert record.exit == {"reason": NOT_RETURNED}
    assert client.was_ended(record)
    steps = [*pairs(range(82_000, 82_007)), Step(83_000)]
    with client.api({"MAIN": steps}) as api:
        done = client.run("--resume", "latest", "-p", "go on")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    (record,) = client.records()
    assert (record.outcome, record.generation) == ("completed", 2)
    assert client.failures() == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("last", "outcome", "said"), [(END, "completed", "ended"), (READ, "failed", "failed")]
)
def test_a_subagent_that_does_not_return_has_one_last_request(client, last, outcome, said):
    """In which the client tells it to complete its task; its session continues in both cases."""
    client.enforce(100_000)
    asked = {"agent_name": "codebase_investigator", "prompt": "[[SUB]] look"}
    full = [Step(80_000 + number, READ) for number in range(1 + REPLIES_TO_RETURN)]
    steps = {
        "MAIN": [Step(20_000, ("invoke_agent", asked)), Step(22_000, "true"), Step(23_000)],
        "SUB": [*full, Step(81_000, last)],
    }
    with client.api(steps) as api:
        done = client.run("-p", "[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    assert [agent for agent, _ in api.requests].count("SUB") == len(steps["SUB"])
    assert "You have one final chance" in api.prompts[-3][-1]
    main, sub = client.records()
    assert (main.outcome, sub.active, sub.outcome) == ("completed", False, outcome)
    assert client.was_ended(sub)
    (text,) = (text for told in api.told("MAIN") for text in told)
    assert f" {said}" in text
    assert "The working tree at its end is kept as" in text
    assert client.failures() == []


@pytest.mark.exhaustive
def test_of_several_subagents_nobody_is_warned(client):
    """Their readings are taken all the same, and each ends with its own."""
    # Both have begun before either calls a tool.
    both = threading.Barrier(2, timeout=RUN_SECONDS / 2)

    def child(tokens):
        first = Step(9_000, READ, until=lambda: both.wait() >= 0)
        return [first, Step(tokens, READ), Step(tokens + 9, READ), Step(tokens + 18, END)]

    calls = [
        ("invoke_agent", {"agent_name": "codebase_investigator", "prompt": f"[[SUB{one}]] look"})
        for one in "AB"
    ]
    steps = {
        "MAIN": [Step(20_000, *calls), Step(22_000)],
        "SUBA": child(tokens_at(70)),
        "SUBB": child(30_000),
    }
    with client.api(steps) as api:
        done = client.run("-p", "[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    assert not any(api.told("SUBB"))
    _, *subs = client.records()
    found = sorted(sub.estimated_tokens for sub in subs)
    assert found == [30_018, tokens_at(70) + 18]
    assert {sub.outcome for sub in subs} == {"completed"}
    assert client.failures() == []


@pytest.mark.exhaustive
def test_a_compression_starts_an_epoch_and_is_said_once(client):
    """Behind the second prompt the threshold is the limit, and a crossing is said anew."""
    compress_early(client)
    with client.api({"MAIN": [Step(3_000, *LONG), Step(9_000)]}):
        assert client.run("-p", "[[MAIN]] work").returncode == 0
    (record,) = client.records()
    assert record.context_limit == WINDOW
    steps = [Step(3_000, "true"), Step(7_400, "true"), Step(7_500)]
    with client.api({"MAIN": steps}) as api:
        done = client.run("--resume", "latest", "-p", "[[MAIN]] go on")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    assert COMPACT in [agent for agent, _ in api.requests]
    (record,) = client.records()
    assert (record.epoch, record.estimated_tokens) == (2, 7_500)
    assert (record.generation, record.context_limit) == (2, WINDOW // 100)
    first, second, third = api.told("MAIN")
    assert "(86 %" in first[0]
    assert [text.split()[2] for text in second] == ["compacted"]
    assert "(71 %" in third[0]
    assert client.failures() == []


@pytest.mark.exhaustive
def test_a_resumed_compression_is_not_another_one(client):
    """The client writes the conversation anew with the summary that it had."""
    compress_early(client)
    with client.api({"MAIN": [Step(3_000, *LONG), Step(9_000)]}):
        assert client.run("-p", "[[MAIN]] work").returncode == 0
    for tokens in (3_000, 4_000):
        with client.api({"MAIN": [Step(tokens, "true"), Step(tokens + 500)]}):
            assert client.run("--resume", "latest", "-p", "[[MAIN]] go on").returncode == 0
    (record,) = client.records()
    assert (record.generation, record.epoch, record.estimated_tokens) == (3, 2, 4_500)
    assert client.failures() == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["text", "stream-json"])
def test_a_session_that_overflows_has_failed(client, form):
    """Also where the client calls no hook then: its report of the request says so."""
    with client.api({"MAIN": [Step(tokens_at(95), "true"), Step(0, error=TOO_LONG)]}):
        assert client.run("-o", form, "-p", "[[MAIN]] work").returncode != 0
    assert "failed" in client.ultramon("status", "--all").stdout
    (record,) = client.records()
    assert (record.outcome, record.estimated_tokens) == ("failed", tokens_at(95))


@pytest.mark.exhaustive
def test_a_session_whose_first_request_fails_has_failed(client):
    """The client takes the request out of the conversation again."""
    with client.api({"MAIN": [Step(0, error=TOO_LONG)]}):
        assert client.run("-p", "[[MAIN]] work").returncode != 0
    (record,) = client.records()
    assert (record.outcome, record.estimated_tokens) == ("failed", 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["TERM", "HUP", "INT"])
@pytest.mark.parametrize("place", ["tool", "reply"])
def test_a_session_that_a_signal_ends_in_a_turn_is_cancelled(client, place, name):
    """In a tool and while its model replies; `resume` lists it."""
    steps = [Step(30_000, f"mkfifo gate; kill -{name} $PPID; cat gate")]
    if place == "reply":
        cut = client.cut(getattr(signal, f"SIG{name}"))
        steps = [Step(30_000, "true"), Step(31_000, until=cut)]
    with client.api({"MAIN": steps}):
        client.run("-p", "[[MAIN]] work")
    (record,) = client.records()
    assert (record.active, record.outcome, record.exit) == (
        False,
        "cancelled",
        {"reason": CUT_TURN},
    )
    assert "gemini --resume" in client.ultramon("resume").stdout


@pytest.mark.exhaustive
def test_a_session_that_is_killed_is_lost(client):
    """In the middle of a request, which then has no reply either."""
    with client.api({"MAIN": [Step(30_000, "true"), Step(31_000, until=client.kill)]}):
        client.run("-o", "stream-json", "-p", "[[MAIN]] work")
    assert "LOST" in client.ultramon("status").stdout
    (record,) = client.records()
    assert (record.active, record.estimated_tokens) == (True, 30_000)


@pytest.mark.exhaustive
def test_a_subagent_that_overflows_fails(client):
    """The tool that launched it says why."""
    asked = {"agent_name": "codebase_investigator", "prompt": "[[SUB]] look"}
    steps = {
        "MAIN": [Step(20_000, ("invoke_agent", asked)), Step(22_000)],
        "SUB": [
            Step(tokens_at(95), ("read_file", {"file_path": "a.txt"})),
            Step(0, error=TOO_LONG),
        ],
    }
    with client.api(steps) as api:
        done = client.run("-p", "[[MAIN]] work")
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    _, sub = client.records()
    assert (sub.active, sub.outcome, sub.estimated_tokens) == (False, "failed", tokens_at(95))
    assert sub.exit["error"] == "Prompt is too long"


@pytest.mark.exhaustive
def test_the_list_of_the_agent_is_its_plan(client):
    """write_todos calls the hook as any tool does; what is cancelled is left out."""
    todos = [
        {"description": "read", "status": "completed"},
        {"description": "drop", "status": "cancelled"},
        {"description": "write", "status": "in_progress"},
    ]
    with client.api({"MAIN": [Step(30_000, ("write_todos", {"todos": todos})), Step(31_000)]}):
        assert client.run("-p", "[[MAIN]] work").returncode == 0
    (record,) = client.records()
    assert [(task["name"], task["status"]) for task in record.tasks or ()] == [
        ("read", "done"), ("write", "in_progress"),
    ]  # fmt: skip
