"""Inside a relay an installation does nothing, and the relay's own hooks work."""

import os

import pytest
from helpers.hooked_session import HookedSession, tokens_at

from ultramon.backends.local.state_files import StateDirectory
from ultramon.hosts.calls.switches import RELAY_FOLDER, RELAY_SESSION, is_left_to_relay
from ultramon.hosts.installed_choices import InstalledChoices
from ultramon.relay.prompts import RelayGoal, first_prompt


@pytest.fixture
def session(tmp_path):
    return HookedSession(tmp_path)


@pytest.fixture
def relayed(session):
    """The same session, with the choices of a relay named review."""
    folder = session.state / RELAY_FOLDER / "review"
    folder.mkdir(parents=True)
    session.installed = folder / "claude-code.json"
    session.environ["ULTRAMON_STATE_DIR"] = str(session.state)
    return session


def test_an_installed_hook_stands_down_in_a_relay(session):
    """It reads nothing, writes nothing and says nothing; without the variable it warns."""
    inside = {"ULTRAMON_RELAY": "review"}
    assert session.tool(tokens_at(20), env=inside).stdout == b""
    assert list(session.state.iterdir()) == []
    assert session.tool(tokens_at(20), env={"ULTRAMON_RELAY": ""}).text
    assert session.ids() == ["session"]


def test_the_hook_of_the_relay_works(relayed):
    """Its choices lie in the folder of the run, its states where all states are."""
    assert relayed.tool(tokens_at(20), env={"ULTRAMON_RELAY": "review"}).text
    assert relayed.ids() == ["session"]


def test_the_hook_of_another_relay_stands_down(relayed):
    """One run inside another counts for the inner one only."""
    assert relayed.tool(tokens_at(20), env={"ULTRAMON_RELAY": "view"}).stdout == b""
    assert relayed.ids() == []


def test_an_installed_hook_serves_a_relay_whose_client_takes_no_others(session):
    """By the choices of the run, and for the session of the context alone."""
    folder = session.state / RELAY_FOLDER / "review"
    folder.mkdir(parents=True)
    choices = InstalledChoices(str(folder / "claude-code.json"))
    choices.context_limit_tokens = 50_000
    choices.save()
    inside = {"ULTRAMON_RELAY": "review", "ULTRAMON_STATE_DIR": str(session.state)}
    others = {**inside, RELAY_SESSION: "another"}
    assert session.tool(tokens_at(70), env=others).stdout == b""
    assert session.ids() == []
    assert "50,000" in session.tool(tokens_at(70), env={**inside, RELAY_SESSION: "session"}).text
    assert session.ids() == ["session"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/state/claude-code.json", True),
        ("/state/relay/claude-code.json", True),
        ("/state/relay/review/claude-code.json", False),
        ("/state/relay/review-2/claude-code.json", True),
        ("/state/myrelay/review/claude-code.json", True),
        ("claude-code.json", True),
    ],
)
def test_only_choices_in_the_folder_of_the_run_are_the_relays(path, expected):
    """No other folder that ends alike."""
    assert is_left_to_relay({"ULTRAMON_RELAY": "review"}, path) is expected
    assert is_left_to_relay({}, path) is False


def test_the_session_of_a_context_is_stored_as_that_context(relayed):
    """Supervisor, commands and hooks speak of one agent; the state names the client's session."""
    relayed.environ |= {
        "ULTRAMON_RELAY": "review", "ULTRAMON_AGENT_ID": "review.3", "ULTRAMON_RUN": "review",
    }  # fmt: skip
    relayed.call("SessionStart", source="startup")
    relayed.tool(tokens_at(80))
    relayed.call("SubagentStart", agent="a1")
    relayed.tool(tokens_at(70), agent="a1")
    assert relayed.ids() == ["review.3", "review.3.a1"]
    directory = StateDirectory(str(relayed.state))
    session, child = (directory.read(name) for name in relayed.ids())
    assert (session.session_id, child.session_id) == ("session", "session")
    assert (session.run, session.parent_id, child.parent_id) == ("review", None, "review.3")
    assert session.extra["claudeCode"]["environment"]["CLAUDE_PID"] == str(os.getpid())
    relayed.call("Stop")
    relayed.call("SessionEnd", reason="other")
    ended = [directory.read(name).outcome for name in relayed.ids()]
    assert ended == ["completed", "cancelled"]
    assert relayed.failures() == []


def test_an_agents_name_counts_in_a_relay_only(session):
    """An orchestrator's own id is no name for the sessions that people start beneath it."""
    session.tool(tokens_at(80), env={"ULTRAMON_AGENT_ID": "review.3"})
    assert session.ids() == ["session"]


@pytest.mark.parametrize(
    ("note_from", "heard"),
    [("prepare_handoff", [False, True, True]), ("force_return", [False, False, True])],
)
def test_the_hand_over_is_asked_for_from_the_chosen_rung_on(relayed, note_from, heard):
    """At the warning by choice, else at the critical rung."""
    relayed.freeze(critical_note="Hand over now.", note_from=note_from)
    relayed.environ["ULTRAMON_RELAY"] = "review"
    said = [relayed.tool(tokens_at(left)).text for left in (60, 34, 20)]
    assert ["Hand over now." in text for text in said] == heard


def test_a_relay_that_stops_asks_its_context_at_the_next_call(relayed):
    """Once, at any fill; a request to an earlier life of the agent is no request."""
    relayed.freeze(critical_note="Hand over now.")
    relayed.environ |= {"ULTRAMON_RELAY": "review", "ULTRAMON_AGENT_ID": "review.1"}
    relayed.tool(tokens_at(80))
    directory = StateDirectory(str(relayed.state))
    directory.put_request("review.1", {"requestId": "a", "generation": 7}, 1.0)
    assert relayed.tool(tokens_at(79)).text == ""
    directory.put_request("review.1", {"requestId": "b", "generation": 1}, 1.0)
    assert [relayed.tool(tokens_at(left)).text for left in (78, 77)] == ["Hand over now.", ""]


def test_a_context_is_named_after_the_goal(relayed):
    """The heading of the relay's prompt says nothing about it."""
    relayed.environ["ULTRAMON_RELAY"] = "review"
    prompt = first_prompt(RelayGoal("Port the parser.")).text
    relayed.call("UserPromptSubmit", prompt=prompt)
    assert relayed.record().label.startswith("project: Port the parser.")
