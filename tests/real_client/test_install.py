"""What an installation does to sessions, and that nothing of it is left behind."""

import json

import pytest
from helpers import program

from real_client.api import Reply, agent, bash, marked
from real_client.client import WINDOW_TOKENS
from real_client.watch import Note, new_notes, notes

pytestmark = pytest.mark.real_client

FILLING = (
    bash(20_000, "echo 1"),
    bash(120_000, "echo 2"),
    bash(140_000, "echo 3"),
    Reply(141_000, "Done."),
)
AT_70 = Note(140_000, WINDOW_TOKENS, 70)


def test_after_uninstall_no_session_is_seen(client, install, states, api):
    """The settings are what they were, byte for byte, and sessions leave no state."""
    before = client.settings.read_bytes()
    install()
    assert client.settings.read_bytes() != before
    done = program.run_process(
        "uninstall", "claude-code", "--user",
        HOME=str(client.home),
        CLAUDE_CONFIG_DIR=str(client.configuration),
        ULTRAMON_STATE_DIR=str(states.directory),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert client.settings.read_bytes() == before
    api.play(*FILLING)
    assert client.run(marked("fill the window")).result["result"] == "Done."
    assert [notes(turn) for turn in api.turns()] == [[], [], [], []]
    assert states.all() == {}


def test_hooks_of_others_go_on_beside_ours(client, install, api):
    """A hook that was there speaks as before; both texts arrive."""
    answer = {"hookEventName": "PostToolUse", "additionalContext": "somebody else was here"}
    says = f"echo '{json.dumps({'hookSpecificOutput': answer})}'"
    settings = json.loads(client.settings.read_text())
    settings["hooks"] = {"PostToolUse": [{"hooks": [{"type": "command", "command": says}]}]}
    client.settings.write_text(json.dumps(settings))
    install()
    api.play(*FILLING)
    client.run(marked("fill the window"))
    assert [len(turn.fresh("somebody else was here")) for turn in api.turns()] == [0, 1, 1, 1]
    assert new_notes(api.turns()[-1]) == [AT_70]


def test_a_plugin_does_the_same_without_settings(client, install, tmp_path, states, api):
    """The folder that `--plugin` writes is all that a session needs."""
    before = client.settings.read_bytes()
    install("--plugin", str(tmp_path / "plugin"))
    assert client.settings.read_bytes() == before
    api.play(*FILLING)
    session = client.run(marked("fill the window"), "--plugin-dir", str(tmp_path / "plugin"))
    assert new_notes(api.turns()[-1]) == [AT_70]
    assert set(states.all()) == {session.session_id}


def test_one_project_only(client, install, states, api, monkeypatch):
    """Installed for a project, a session elsewhere is not seen."""
    monkeypatch.chdir(client.project)
    install("--local")
    api.play(*FILLING)
    client.run(marked("fill the window"))
    assert new_notes(api.turns()[-1]) == [AT_70]
    client.project = client.home
    api.play(*FILLING)
    client.run(marked("fill another"))
    assert notes(api.turns()[-1]) == []
    assert len(states.all()) == 1


def test_a_handoff_note_is_in_the_instructions_of_a_compaction(install, api):
    """What the user wants kept over a compaction is given to the model that writes the summary."""
    wish = "Keep the list of files that are half done."
    client = install("--handoff-note", wish)
    api.play(bash(20_000, "echo 1"), bash(70_000, "echo 2"), Reply(15_000, "Done."))
    client.run(marked("fill the window"), CLAUDE_CODE_AUTO_COMPACT_WINDOW="100000")
    (compaction,) = api.compactions()
    assert len(compaction.fresh(wish)) == 1
    assert [turn.count(wish) for turn in api.turns()] == [0, 0, 0]


def test_a_cap_and_rungs_of_the_user_decide(install, api):
    """A smaller limit and other rungs are those of the notes, for subagents too."""
    client = install("--context-limit", "100000", "--warning", "0.4", "--critical", "0.9")
    api.play(
        bash(20_000, "echo 1"),
        bash(38_000, "echo 2"),
        bash(45_000, "echo 3"),
        agent(46_000, "scout"),
        Reply(47_000, "It looks."),
        Reply(48_000, "Done."),
    )
    api.play(
        bash(20_000, "echo 4"),
        bash(35_000, "echo 5"),
        bash(91_000, "echo 6"),
        Reply(92_000, "Seen."),
        conversation="scout",
    )
    client.run(marked("fill the window"))
    assert notes(api.turns()[-1]) == [Note(45_000, 100_000, 45)]
    assert notes(api.turns("scout")[-1]) == [Note(91_000, 100_000, 91)]
    assert api.turns()[-1].count("The limit was set by the user") == 1


@pytest.mark.parametrize(
    "model",
    [
        "claude-sonnet-4-5[1m]",
        "haiku",
        "some-model-of-tomorrow",
        pytest.param("claude-opus-4-6", marks=pytest.mark.exhaustive),
        pytest.param("claude-sonnet-4-5", marks=pytest.mark.exhaustive),
        pytest.param("claude-sonnet-5", marks=pytest.mark.exhaustive),
        pytest.param("opus", marks=pytest.mark.exhaustive),
        pytest.param("sonnet", marks=pytest.mark.exhaustive),
    ],
)
def test_the_window_of_a_headless_session_is_what_the_client_says(installed, states, api, model):
    """Without a status line the table decides; the client's own accounts show that it is right."""
    api.play(bash(20_000, "echo 1"), bash(21_000, "echo 2"), Reply(22_000, "Done."))
    session = installed.run(marked("begin"), "--model", model)
    (used,) = session.result["modelUsage"].values()
    assert states.only().context_window == used["contextWindow"]


@pytest.mark.parametrize(
    "environment",
    [
        {"CLAUDE_CODE_DISABLE_1M_CONTEXT": "1"},
        {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "150000", "DISABLE_COMPACT": "1"},
    ],
    ids=["no 1M", "most tokens"],
)
def test_a_window_that_was_made_smaller_is_known(installed, states, api, environment):
    """What the user's environment takes away from the window counts in a headless session too."""
    api.play(bash(20_000, "echo 1"), bash(21_000, "echo 2"), Reply(22_000, "Done."))
    session = installed.run(marked("begin"), "--model", "claude-sonnet-5", **environment)
    (used,) = session.result["modelUsage"].values()
    assert states.only().context_window == used["contextWindow"] < 1_000_000
