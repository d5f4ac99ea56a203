"""Installing into the client's settings and taking it out again: exactly ours, and all of it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pexpect
import pytest
from helpers import ROOT
from helpers.client_home import OTHER_HOOKS, SHAPES, ClientHome, json_objects
from helpers.requirements import require_root_mount, unmount
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ultramon.cli.exit_codes import ExitCode
from ultramon.errors import StateCorruptError
from ultramon.hosts.claude_code.install.commands import HOOK_SCRIPT, script_path
from ultramon.hosts.claude_code.install.settings import Settings
from ultramon.hosts.install.status_line import REFRESH_SECONDS

CCLINE = {"type": "command", "command": "ccline --bar", "padding": 0, "refreshInterval": 5}


@pytest.fixture
def client(tmp_path, monkeypatch):
    return ClientHome(tmp_path).as_home(monkeypatch)


@pytest.mark.parametrize("layer", ["user", "project", "local"])
def test_nothing_is_left_of_an_installation_where_nothing_was(client, layer):
    """Settings, folder, backups, choices: what installing made, uninstalling takes away."""
    before = client.tree()
    done = client.install(f"--{layer}")
    assert done.returncode == 0, done.stderr
    assert Settings(str(client.path(layer))).holds_ours()
    assert stat.S_IMODE(client.path(layer).stat().st_mode) == 0o600
    done = client.uninstall(f"--{layer}")
    assert done.returncode == 0, done.stderr
    assert client.tree() == before


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_settings_comes_back_byte_for_byte(client, shape):
    """Install, install again, uninstall, uninstall again: the old bytes."""
    path = client.write(SHAPES[shape])
    path.chmod(0o644)
    before = client.tree()
    assert client.put().changes
    installed = client.tree()
    assert path.read_bytes() != SHAPES[shape]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    again = client.put()
    assert not again.changes
    assert again.diff() == ""
    assert client.tree() == installed
    client.take_out()
    assert path.read_bytes() == SHAPES[shape]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert client.tree() == before
    assert not client.take_out().changes
    assert client.tree() == before


@pytest.mark.parametrize("examples", [20, pytest.param(300, marks=pytest.mark.exhaustive)])
def test_any_settings_come_back_byte_for_byte(examples):
    """Whatever JSON object the settings are, the round trip gives the same bytes."""
    # It waits for a disk.
    hypothesis_settings(deadline=None, max_examples=examples)(given(**WRITTEN)(round_trip))()


WRITTEN = {
    "value": json_objects,
    "line": st.sampled_from([None, CCLINE, {**CCLINE, "command": "é"}]),
    "indent": st.sampled_from([None, 0, 2, "\t"]),
    "compact": st.booleans(),
}


def round_trip(value, line, indent, compact):
    if line is not None:
        value = {**value, "statusLine": line}
    separators = (",", ":") if compact else None
    data = json.dumps(value, indent=indent, separators=separators, ensure_ascii=not compact)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        client = ClientHome(Path(folder)).as_home(monkeypatch)
        path = client.write(data.encode("utf-8", "surrogatepass"))
        try:
            Settings(str(path))
        except StateCorruptError:
            return  # a lone surrogate outside an escape is not UTF-8
        client.put()
        installed = json.loads(path.read_bytes())
        foreign = {key: installed[key] for key in installed if key not in ("hooks", "statusLine")}
        assert foreign == {key: value[key] for key in value if key != "statusLine"}
        assert not client.put().changes
        client.take_out()
        assert path.read_bytes() == data.encode()
        assert not client.states.exists()


def test_the_diff_goes_to_stdout_and_words_to_stderr(client):
    """What changes is data where it is asked for; a dry run shows the same and writes nothing."""
    client.write(SHAPES["no final line end"])
    before = client.tree()
    dry = client.install("--dry-run")
    assert client.tree() == before
    assert dry.stdout.startswith(f"--- {client.settings}\n+++ {client.settings}\n@@ ")
    assert "would be changed; nothing was written" in dry.stderr
    done = client.install("--verbose")
    assert done.stdout == dry.stdout
    assert f"installed in {client.settings}" in done.stderr
    removed = [line for line in done.stdout.splitlines() if line.startswith("-")]
    assert removed == [f"--- {client.settings}", '-  "model": "opus"']
    again = client.install()
    assert (again.stdout, again.stderr) == ("", f"{client.settings} is up to date\n")
    dry = client.uninstall("--dry-run")
    assert "would be restored; nothing was written" in dry.stderr
    assert Settings(str(client.settings)).holds_ours()
    assert client.uninstall("--verbose").stdout == dry.stdout
    again = client.uninstall()
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr == f"{client.settings} holds nothing of ultramon\n"


def test_json_says_the_same_as_words(client):
    """--json gives the diff, what was decided, and what went."""
    client.write(b"{}")
    done = json.loads(client.install("--json", "--audience", "both").stdout)
    assert done["changed"] is True
    assert done["settings"] == str(client.settings)
    assert done["stateDirectory"] == str(client.states)
    assert (done["statusLine"], done["resident"]) == ("own", True)
    assert done["diff"].startswith(f"--- {client.settings}\n")
    gone = json.loads(client.uninstall("--json").stdout)
    assert str(client.states / "claude-code.json") in gone["deleted"]


def test_the_installed_commands_run(client):
    """The client's shell starts them, and they take a payload without a word."""
    client.install()
    settings = json.loads(client.settings.read_bytes())
    command = settings["hooks"]["SessionStart"][0]["hooks"][0]["command"]
    payload = {
        "session_id": "s1",
        "hook_event_name": "SessionStart",
        "source": "startup",
        "cwd": str(client.project),
        "transcript_path": str(client.home / "none.jsonl"),
    }
    done = subprocess.run(
        command, shell=True, input=json.dumps(payload), capture_output=True, text=True,
        check=False, cwd="/", env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (client.states / "subagents" / "s1.json").exists()
    line = settings["statusLine"]["command"]
    done = subprocess.run(line, shell=True, input="{}", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    client.uninstall()
    assert sorted(os.listdir(client.states)) != []
    assert not (client.states / "claude-code.json").exists()


def test_a_package_that_is_gone_blocks_nothing(client, tmp_path):
    """Python ends with 2 where its script is missing, and 2 would stop every tool of the client."""
    package = tmp_path / "site" / "ultramon"
    shutil.copytree(ROOT / "ultramon", package, ignore=shutil.ignore_patterns("__pycache__"))
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ultramon.cli import main; main()"
    program = [sys.executable, "-c", code, str(tmp_path / "site")]
    arguments = ["install", "claude-code", "--force"]
    subprocess.run([*program, *arguments], check=True, capture_output=True, cwd=client.project)
    command = json.loads(client.settings.read_bytes())["hooks"]["Stop"][0]["hooks"][0]["command"]
    assert str(package.parent) in Path(shlex.split(command)[-1]).read_text()
    shutil.rmtree(package)
    done = subprocess.run(command, shell=True, input=b"{}", capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_another_spelling_of_ours_is_brought_up_to_date(client):
    """An older entry is found by its script, and changed where it stands."""
    link = client.home / "site"
    link.symlink_to(Path(script_path(HOOK_SCRIPT)).parents[3])
    old = f"python3 ~/site/ultramon/hosts/claude_code/{HOOK_SCRIPT} /old/claude-code.json"
    client.write({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": old}]}]}, "z": 1})
    client.put()
    settings = json.loads(client.settings.read_bytes())
    assert list(settings) == ["hooks", "z", "statusLine"]
    assert settings["statusLine"]["refreshInterval"] == REFRESH_SECONDS
    assert len(settings["hooks"]["Stop"]) == 1
    assert old not in client.settings.read_text()
    client.take_out()
    assert json.loads(client.settings.read_bytes()) == {"z": 1}


def test_edits_between_install_and_uninstall_survive(client):
    """Where something else was changed since, only our entries go."""
    path = client.write(SHAPES["status line"])
    client.put()
    settings = json.loads(path.read_bytes())
    settings["permissions"] = {"allow": ["Read"]}
    settings["hooks"]["Stop"].append({"hooks": [{"type": "command", "command": "beep"}]})
    settings["hooks"]["PreToolUse"][0]["hooks"].append({"type": "command", "command": "boop"})
    settings["statusLine"]["padding"] = 2
    path.write_text(json.dumps(settings))
    client.take_out()
    assert json.loads(path.read_bytes()) == {
        "statusLine": {**json.loads(SHAPES["status line"])["statusLine"], "padding": 2},
        "hooks": {
            "PreToolUse": [{"matcher": "*", "hooks": [{"type": "command", "command": "boop"}]}],
            "Stop": [{"hooks": [{"type": "command", "command": "beep"}]}],
        },
        "permissions": {"allow": ["Read"]},
    }
    assert not client.states.exists()


def test_a_client_that_writes_its_settings_anew_loses_nothing_of_the_old_bytes(client):
    """Another layout with the same content is no edit: the original comes back."""
    path = client.write(SHAPES["spellings of numbers"])
    client.put()
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=2))
    client.take_out()
    assert path.read_bytes() == SHAPES["spellings of numbers"]


def test_uninstalling_works_without_the_choices(client):
    """When the state directory is gone, ours still go and the rest stays."""
    path = client.write(OTHER_HOOKS.encode())
    client.put(status_line="none")
    shutil.rmtree(client.states)
    client.take_out()
    assert path.read_bytes() == OTHER_HOOKS.encode()
    assert not client.states.exists()


def test_a_backup_is_found_without_the_choices(client):
    """The original bytes come back though nothing remembers where they are."""
    path = client.write(SHAPES["status line, spread out"])
    client.put()
    (client.states / "claude-code.json").unlink()
    client.take_out()
    assert path.read_bytes() == SHAPES["status line, spread out"]


def test_the_backup_is_private_and_holds_the_first_bytes(client):
    """What is kept is what was there before the first change, for this user alone."""
    client.write(OTHER_HOOKS.encode())
    client.put()
    client.put(audience="both")
    (backup,) = client.states.glob("*.backup")
    assert backup.read_bytes() == OTHER_HOOKS.encode()
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert stat.S_IMODE((client.states / "claude-code.json").stat().st_mode) == 0o600
    assert client.installed()["installations"][0]["backup"] == str(backup)


def test_settings_behind_a_link_are_written_through(client):
    """A link into somebody's dotfiles stays a link."""
    dotfiles = client.home / "dotfiles" / "claude.json"
    dotfiles.parent.mkdir()
    dotfiles.write_bytes(b'{"model": "opus"}\n')
    client.settings.parent.mkdir()
    client.settings.symlink_to(dotfiles)
    before = client.tree()
    client.put()
    assert client.settings.is_symlink()
    assert Settings(str(dotfiles)).holds_ours()
    client.take_out()
    assert client.tree() == before


def test_a_corrupt_file_is_left_alone(client):
    """Neither command touches what it cannot read; the error says where to look."""
    path = client.write(b'{\n  "model": opus\n}\n')
    before = client.tree()
    for command in (client.install, client.uninstall):
        done = command()
        assert (done.returncode, done.stdout) == (ExitCode.FAILURE, "")
        assert done.stderr.startswith(f"Error: {path}: line 2 column 12: ")
        assert done.stderr.count("\n") == 1
    assert client.tree() == before


def test_a_disk_that_refuses_leaves_the_settings_as_they_were(client):
    """One line says so, no part of a file is left, and uninstalling cleans up."""
    client.settings.parent.mkdir()
    require_root_mount(client.settings.parent)
    try:
        client.write(OTHER_HOOKS.encode())
        again = ["mount", "-o", "remount,ro", str(client.settings.parent)]
        subprocess.run(again, check=True, capture_output=True)
        before = client.tree()
        done = client.install()
        assert done.returncode == ExitCode.FAILURE
        assert done.stderr == (
            f"Error: {client.settings}: cannot be written: Read-only file system\n"
        )
        assert client.uninstall().returncode == 0
        assert client.tree() == before
    finally:
        unmount(client.settings.parent)


def test_an_installation_says_in_three_lines_what_it_did_and_how_to_see_it(client):
    """What was put where, from when on it counts, how to look and how to undo."""
    client.write(b"{}")
    done = client.install()
    assert done.stdout == ""
    first, second, third, fourth = done.stderr.splitlines()
    own = "hooks, and a status line that shows the window"
    answers = "one process answers for all sessions, unless --no-resident"
    assert first == f"installed in {client.settings}: {own}; {answers}"
    assert second.startswith("sessions that start from now on report themselves")
    assert third.startswith("`ultramon watch` shows them; `ultramon uninstall claude-code` ")
    # Of a state directory that other shells do not use.
    assert fourth.startswith(f"they report to {client.states}: ")
    client.uninstall()
    assert len(client.install(ULTRAMON_STATE_DIR="").stderr.splitlines()) == 3


@pytest.mark.parametrize(("answer", "shown"), [("y", "both"), ("", "chained")])
def test_a_person_with_a_status_line_is_asked_once_whether_to_see_both(client, answer, shown):
    """Nothing is forced: Enter leaves theirs alone, and a pipe gets the option by name."""
    client.write(b'{"statusLine": {"type": "command", "command": "echo mine"}}')
    terminal = client.on_terminal("install", "claude-code", "--force")
    terminal.expect_exact("Show ultramon's beside it? [y/N]")
    terminal.sendline(answer)
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    assert client.installed()["statusLine"]["show"] == shown
    assert (b"beside yours" in terminal.before) == bool(answer)
    again = client.on_terminal("install", "claude-code", "--force")
    again.expect(pexpect.EOF)
    assert b"[y/N]" not in again.before
    client.uninstall()
    piped = client.install()
    assert piped.stderr.endswith("--status-line both shows ultramon's status line too\n")
