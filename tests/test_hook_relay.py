"""Inside a relay an installation stands down, and the relay's own hooks work."""

import pytest
from helpers.hooked_session import HookedSession, tokens_at

from ultramon.hosts.hook_program import RELAY_FOLDER, stands_down


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
    assert stands_down({"ULTRAMON_RELAY": "review"}, path) is expected
    assert stands_down({}, path) is False
