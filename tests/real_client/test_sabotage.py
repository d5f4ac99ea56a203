"""Whatever breaks on our side, the session continues as if we were not there."""

import json
import shutil
import sys

import pytest
from helpers.requirements import read_only

from real_client.api import Reply, bash, marked
from real_client.client import WINDOW_TOKENS
from real_client.watch import Note, new_notes, notes
from ultramon.hosts.claude_code.install.commands import (
    HOOK_SCRIPT,
    LAUNCHERS,
    script_path,
)
from ultramon.hosts.failure_log import log_path
from ultramon.hosts.failure_log import read as read_failures
from ultramon.hosts.install.hook_commands import command_line, package_directory

pytestmark = pytest.mark.real_client

AT_70 = Note(140_000, WINDOW_TOKENS, 70)
AT_80 = Note(160_000, WINDOW_TOKENS, 80)


def change_commands(installed, change):
    """Replace every command that was installed, hooks and status line alike."""
    settings = json.loads(installed.settings.read_text())
    hooks = [
        hook for groups in settings["hooks"].values() for group in groups for hook in group["hooks"]
    ]
    for hook in [*hooks, settings["statusLine"]]:
        changed = change(hook["command"])
        assert changed != hook["command"]
        hook["command"] = changed
    installed.settings.write_text(json.dumps(settings))


def change_launchers(states, before, after):
    """Replace a part of every launcher."""
    for name in LAUNCHERS.values():
        launcher = states.directory / name
        text = launcher.read_text()
        assert before in text
        launcher.write_text(text.replace(before, after))


def fill(installed, api):
    """Fill a window; the session plays all its steps."""
    api.play(
        *(bash(tokens, "echo 1") for tokens in (60_000, 140_000, 160_000)), Reply(161_000, "Done.")
    )
    session = installed.run(marked("fill the window"))
    assert (session.returncode, session.result["result"]) == (0, "Done.")
    assert "Traceback" not in session.errors
    assert len(api.turns()) == 4


def assert_undisturbed(installed, api):
    """Fill a window; nothing of ultramon is in the session."""
    fill(installed, api)
    assert notes(api.turns()[-1]) == []
    for word in ("ultramon", "Traceback", "hook", "claude-code.json"):
        assert api.turns()[-1].count(word) == api.turns()[0].count(word), word


def test_the_interpreter_is_gone(installed, api, states):
    """A Python that was upgraded away hurts no session."""
    change_launchers(states, f"#!{sys.executable} ", "#!/gone/python3 ")
    assert_undisturbed(installed, api)


def test_the_package_is_gone(installed, api, states):
    """An ultramon that was removed without its uninstall blocks no prompt and no tool."""
    change_launchers(states, ascii(package_directory()), "'/gone'")
    assert_undisturbed(installed, api)


def test_the_launcher_is_gone(installed, api, states):
    """The shell finds no program, which blocks no prompt and no tool."""
    for name in LAUNCHERS.values():
        (states.directory / name).unlink()
    assert_undisturbed(installed, api)


@pytest.mark.parametrize("gone", [sys.executable, "/hosts/claude_code/"])
def test_what_a_shell_command_names_is_gone(installed, api, states, gone):
    """The commands for where no launcher can run test first that their files are there."""
    choices = str(states.directory / "claude-code.json")
    change_commands(
        installed,
        lambda _: command_line(sys.executable, script_path(HOOK_SCRIPT), choices).replace(
            gone, "/gone/"
        ),
    )
    assert_undisturbed(installed, api)


def few(first, second, *others):
    """Two kinds of garbage for the common run, the others for the exhaustive one."""
    return [first, second, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in others)]


@pytest.mark.parametrize("data", few(b"{", b"{}", b"", b"\xff\xfe\x00", b"[" * 100_000, b"null"))
def test_the_frozen_file_is_corrupt(installed, api, states, data):
    """Rules that cannot be read notify no agent; the failure is written down."""
    (states.directory / "claude-code.json").write_bytes(data)
    assert_undisturbed(installed, api)
    assert (
        "claude-code.json"
        in read_failures(log_path(str(states.directory), "claude-code"))[-1]["problem"]
    )


def test_the_state_directory_is_read_only(installed, api, states):
    """The agent is warned once at each rung, as its transcript tells."""
    with read_only(states.directory):
        fill(installed, api)
    assert [new_notes(turn) for turn in api.turns()] == [[], [], [AT_70], [AT_80]]
    assert states.all() == {}


def test_there_is_a_file_in_place_of_the_state_directory(installed, api, states):
    """It is left alone."""
    shutil.rmtree(states.directory)
    states.directory.write_text("mine")
    api.observe = lambda: None
    assert_undisturbed(installed, api)
    assert states.directory.read_text() == "mine"


def test_the_state_directory_is_gone(installed, api, states):
    """The session plays on; its user reads which program is gone with the directory."""
    shutil.rmtree(states.directory)
    api.play(bash(20_000, "echo 1"), bash(40_000, "echo 2"), Reply(41_000, "Done."))
    session = installed.run(marked("do the work"))
    assert (session.returncode, session.result["result"]) == (0, "Done.")
    assert f"{LAUNCHERS[HOOK_SCRIPT]}: not found" in session.errors
    assert all(turn.count("ultramon") == 0 for turn in api.turns())


@pytest.mark.parametrize(
    "data", few("{", '{"hook_event_name": 7}', "", '"text"', r"\377\376", "[[[[")
)
def test_the_hook_gets_garbage(installed, api, states, data):
    """Input that is no payload ends in a line in the failures, and in nothing else."""
    change_commands(installed, lambda command: f"printf '{data}' | {{ {command}; }}")
    assert_undisturbed(installed, api)
    assert states.all() == {}
    assert read_failures(log_path(str(states.directory), "claude-code"))


def test_the_state_of_the_session_is_corrupt(installed, api, states):
    """A state that cannot be read is kept aside; the session never hears of it."""
    api.play(bash(20_000, "echo 1"), Reply(21_000, "Done."))
    session_id = installed.run(marked("begin")).session_id
    path = states.directory / "subagents" / f"{session_id}.json"
    path.write_bytes(path.read_bytes()[:-40])
    api.play(bash(22_000, "echo 2"), Reply(23_000, "Done."))
    session = installed.run(marked("go on"), "--resume", session_id)
    assert (session.returncode, session.result["result"]) == (0, "Done.")
    assert all(turn.count("ultramon") == 0 for turn in api.turns())
    assert list(path.parent.glob(f"{session_id}.json.corrupt-*"))
