"""What is chosen at an installation: layer, status line, rungs, interpreter, plugin folder."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.client_home import OTHER_HOOKS, ClientHome

from ultramon import __version__
from ultramon.cli.exit_codes import ExitCode
from ultramon.errors import ConfigurationError, StateSchemaError
from ultramon.hosts.claude_code.install.commands import EVENTS, HOOK_SCRIPT, script_path
from ultramon.hosts.claude_code.install.settings import Settings
from ultramon.hosts.install.interpreter import (
    check_interpreter,
    check_lasting,
    this_interpreter,
)
from ultramon.hosts.installed_choices import InstalledChoices

CCLINE = {"type": "command", "command": "ccline --bar", "padding": 0, "refreshInterval": 5}


@pytest.fixture
def client(tmp_path, monkeypatch):
    return ClientHome(tmp_path).as_home(monkeypatch)


def test_a_status_line_of_ours_under_another_spelling_is_not_chained(client):
    """Ours would otherwise run itself without end."""
    link = client.home / "site"
    link.symlink_to(Path(script_path(HOOK_SCRIPT)).parents[3])
    old = {"type": "command", "command": "python3 ~/site/ultramon/hosts/claude_code/statusline.py"}
    client.write({"statusLine": old})
    client.put()
    assert client.installed()["statusLine"] == {"show": "own", "chained": None}
    wrapper = {"type": "command", "command": f"date; {old['command']}"}
    client.take_out()
    path = client.write({"statusLine": wrapper})
    plan = client.put()
    assert any("would run itself" in warning for warning in plan.warnings)
    assert json.loads(path.read_bytes())["statusLine"] == wrapper
    assert client.installed()["statusLine"]["chained"] is None


@pytest.mark.parametrize(
    ("chosen", "expected"), [(None, "chained"), ("both", "both"), ("own", "own")]
)
def test_an_existing_status_line_is_kept_and_comes_back(client, chosen, expected):
    """Only its command is replaced; the rest of its block stays as it is."""
    path = client.write({"statusLine": CCLINE})
    before = path.read_bytes()
    client.put(status_line=chosen)
    block = json.loads(path.read_bytes())["statusLine"]
    assert block["command"] == f"exec {client.states / 'claude-code.ultramon-statusline'}"
    assert {**block, "command": CCLINE["command"]} == CCLINE
    assert client.installed()["statusLine"] == {"show": expected, "chained": CCLINE}
    client.take_out()
    assert path.read_bytes() == before


def test_no_status_line_is_touched_when_none_is_wanted(client):
    """`none` leaves the one that is there, and gives back the one that was."""
    path = client.write({"statusLine": CCLINE})
    client.put(status_line="none")
    assert json.loads(path.read_bytes())["statusLine"] == CCLINE
    client.put(status_line="both")
    assert json.loads(path.read_bytes())["statusLine"] != CCLINE
    client.put(status_line="none")
    assert json.loads(path.read_bytes())["statusLine"] == CCLINE
    assert client.installed()["statusLine"] == {"show": "none", "chained": None}


def test_the_parts_of_the_status_line_stay_as_they_were_chosen(client):
    """Not given again they stay; empty brings the usual ones back, and the file as it was."""
    client.put()
    usual = client.installed()
    client.put(status_line_parts="plan, context")
    assert client.installed()["statusLine"]["parts"] == ["plan", "context"]
    client.put(pins=True)
    assert client.installed()["statusLine"]["parts"] == ["plan", "context"]
    client.put(pins=False, status_line_parts="")
    assert client.installed()["statusLine"] == usual["statusLine"]


def test_a_status_line_that_took_over_is_chained_by_the_next_installation(client):
    """Who replaced ours is the one that comes back in the end."""
    path = client.write({"statusLine": CCLINE})
    client.put()
    settings = json.loads(path.read_bytes())
    newer = {"type": "command", "command": "prompt"}
    path.write_text(json.dumps({**settings, "statusLine": newer}))
    client.put()
    assert client.installed()["statusLine"] == {"show": "chained", "chained": newer}
    client.take_out()
    assert json.loads(path.read_bytes()) == {"statusLine": newer}


def test_a_status_line_of_a_weaker_layer_is_chained_and_not_touched(client):
    """The project's status line hides the user's, so it carries that one."""
    user = client.write({"statusLine": CCLINE})
    before = user.read_bytes()
    client.put("local")
    assert client.installed()["statusLine"] == {"show": "chained", "chained": CCLINE}
    assert user.read_bytes() == before
    client.take_out("local")
    assert not client.path("local").exists()


def test_one_carries_one_status_line(client):
    """A second layer with another status line keeps it."""
    client.write({"statusLine": CCLINE})
    client.put()
    other = {"type": "command", "command": "prompt"}
    path = client.write({"statusLine": other}, "project")
    plan = client.put("project")
    assert any("carries already" in warning for warning in plan.warnings)
    assert json.loads(path.read_bytes())["statusLine"] == other
    assert client.installed()["statusLine"]["chained"] == CCLINE


@pytest.mark.parametrize(
    "odd", ["ccline", 5, {"type": "future", "command": "x"}, {"type": "command"}]
)
def test_a_status_line_of_an_unknown_kind_is_left_alone(client, odd):
    """What cannot be chained is not replaced."""
    path = client.write({"statusLine": odd})
    plan = client.put()
    assert any("cannot be chained" in warning for warning in plan.warnings)
    assert json.loads(path.read_bytes())["statusLine"] == odd


def test_a_critical_note_stays_until_another_is_chosen(client):
    """One printable line of at most 500 characters; empty takes it away."""
    client.put(critical_note="Write\x1b[2J\nNOTES.md.")
    client.put(critical=0.9)
    assert client.installed()["criticalNote"] == "Write [2J NOTES.md."
    with pytest.raises(ConfigurationError, match="at most 500 characters"):
        client.put(critical_note="x" * 501)
    client.put(critical_note="")
    assert client.installed()["criticalNote"] is None


def test_pins_are_chosen_and_stay_until_they_are_not(client):
    """They are off unless chosen; the file says so."""
    client.put()
    assert client.installed()["pins"] is False
    client.put(pins=True)
    client.put(critical=0.9)
    assert client.installed()["pins"] is True
    assert client.install("--no-pins").returncode == 0
    assert client.installed()["pins"] is False


def test_enforcement_is_chosen_and_stays_until_it_is_not(client):
    """A dry run ends where enforcement is chosen again without it."""

    def chosen():
        return client.installed()["enforce"], client.installed()["enforceDryRun"]

    client.put()
    assert chosen() == (None, False)
    seen = []
    for arguments in (
        ["--enforce", "critical", "--enforce-dry-run"],
        ["--audience", "both"],
        ["--enforce", "critical"],
        ["--enforce-dry-run"],
        ["--enforce", "none"],
    ):
        assert client.install(*arguments).returncode == 0
        seen.append(chosen())
    critical = "critical"
    assert seen == [(critical, True), (critical, True), (critical, False), (critical, True),
                    (None, False)]  # fmt: skip
    assert "given with enforce" in client.install("--enforce-dry-run").stderr
    assert client.install("--enforce", "warning").returncode == ExitCode.USAGE


def test_only_a_level_that_asks_to_return_is_enforced(client):
    with pytest.raises(ConfigurationError, match="a level that asks to return: critical"):
        client.put(enforce="warning")


def test_installing_again_switches_enforcement_on_again(client):
    """Though no choice is another one."""
    client.put(enforce="critical")
    switch = client.states / "claude-code.enforcement-off.json"
    switch.write_text("{}")
    assert "is up to date" not in client.install().stderr
    assert not switch.exists()
    assert "is up to date" in client.install().stderr


def test_uninstalling_takes_what_enforcement_has_written_along(client):
    """The settings are the old bytes, and of the state directory nothing is left."""
    path = client.write({"hooks": {"Stop": []}, "model": "opus"})
    before = path.read_bytes()
    client.put(enforce="critical", enforce_dry_run=True)
    for name in ("enforcement-off.json", "enforced.json", "enforced.json.lock"):
        (client.states / f"claude-code.{name}").write_text("{}")
    client.take_out()
    assert path.read_bytes() == before
    assert not client.states.exists()


def test_uninstalling_leaves_the_users_pins_and_says_where(client):
    client.install("--pins")
    assert client.run("host", "pin", "Never push.").returncode == 0
    done = client.uninstall()
    assert f"pins stay in {client.states / 'pins.json'}" in done.stderr
    assert client.run("host", "pin", "--list").stdout == "1  Never push.\n"


def test_choices_of_an_older_version_have_no_critical_note(client):
    """An upgrade reads them as they are."""
    client.put()
    path = client.states / "claude-code.json"
    choices = json.loads(path.read_bytes())
    for name in ("criticalNote", "pins", "enforce", "enforceDryRun"):
        del choices[name]
    path.write_text(json.dumps(choices))
    assert InstalledChoices.load(str(path)).critical_note is None


def test_choices_stay_until_they_are_made_anew(client):
    """What is not given again is as before."""
    client.put(audience="both", context_limit_tokens=150_000, warning=0.5, handoff_note="Keep ids.")
    client.put(critical=0.9)
    installed = client.installed()
    assert installed["audience"] == "both"
    assert installed["contextLimitTokens"] == 150_000
    assert [rung["ratio"] for rung in installed["ladder"]["rungs"]] == [0.5, 0.9]
    assert installed["ladder"]["roundPercent"] is True
    assert installed["handoffNote"] == "Keep ids."
    client.put(context_limit_tokens=0, handoff_note="")
    installed = client.installed()
    assert (installed["contextLimitTokens"], installed["handoffNote"]) == (None, None)


def test_levels_of_all_hold_for_rungs_that_nobody_chose_here(client, monkeypatch):
    """`--warning` of an earlier installation is nearer; without `[levels]` the defaults return."""
    monkeypatch.setenv("ULTRAMON_LEVELS", "60,80")
    ratios = lambda: [rung["ratio"] for rung in client.installed()["ladder"]["rungs"]]  # noqa: E731
    client.put()
    assert ratios() == [0.6, 0.8]
    client.put(warning=0.65)
    monkeypatch.setenv("ULTRAMON_LEVELS", "50,70")
    client.put()
    assert (ratios(), client.installed()["chosenLevels"]) == ([0.65, 0.7], ["warning"])
    monkeypatch.delenv("ULTRAMON_LEVELS")
    client.put()
    assert ratios() == [0.65, 0.75]


def test_what_an_older_version_stored_counts_as_chosen_where_it_is_no_default(client, monkeypatch):
    """It did not say which rung a person chose."""
    client.put(critical=0.9)
    path = client.states / "claude-code.json"
    choices = json.loads(path.read_bytes())
    del choices["chosenLevels"]
    path.write_text(json.dumps(choices))
    monkeypatch.setenv("ULTRAMON_LEVELS", "60,80")
    client.put()
    assert [rung["ratio"] for rung in client.installed()["ladder"]["rungs"]] == [0.6, 0.9]


def test_doctor_names_levels_that_changed_since_the_installation(client):
    """Hooks look nothing up, so a table that was changed waits for the next `install`."""
    client.install()
    assert "hooks have" not in client.run("doctor", "claude-code").stdout
    said = " ".join(client.run("doctor", "claude-code", ULTRAMON_LEVELS="60,75").stdout.split())
    assert "hooks have warning at 65%, not 60%" in said
    assert "ultramon install claude-code takes them over" in said


@pytest.mark.parametrize(
    "choices",
    [
        {"warning": 0.9, "critical": 0.8},
        {"warning": 0.655},
        {"warning": 0.0},
        {"critical": 1.5},
        {"audience": "everybody"},
        {"status_line": "mine"},
        {"status_line_parts": "mine"},
        {"status_line_parts": "plan,plan"},
        {"handoff_note": "x" * 2_001},
    ],
)
def test_a_choice_that_is_not_allowed_changes_nothing(client, choices):
    """It is refused before anything is written."""
    before = client.tree()
    with pytest.raises(ConfigurationError):
        client.plan(**choices)
    assert client.tree() == before


def test_two_layers_are_two_installations(client):
    """Each is taken out by itself; the choices go with the last."""
    client.write(OTHER_HOOKS.encode())
    client.put()
    plan = client.put("local")
    assert any("the user settings" in warning for warning in plan.warnings)
    client.take_out()
    assert client.settings.read_bytes() == OTHER_HOOKS.encode()
    (record,) = client.installed()["installations"]
    assert record["settings"] == str(client.path("local"))
    assert Settings(str(client.path("local"))).holds_ours()
    assert list(client.states.glob("*.backup")) == []
    client.take_out("local")
    assert not client.states.exists()


def test_an_installation_elsewhere_keeps_the_choices(client, monkeypatch):
    """A project that is not looked at now still needs them, until it is gone."""
    client.put("project")
    client.write(b"{}")
    client.put()
    elsewhere = client.home / "elsewhere"
    elsewhere.mkdir()
    done = client.uninstall(cwd=elsewhere)
    assert f"still installed in {client.path('project')}" in done.stderr
    assert (client.states / "claude-code.json").exists()
    client.install(cwd=elsewhere)
    shutil.rmtree(client.project)
    client.uninstall(cwd=elsewhere)
    assert not client.states.exists()


def test_what_switches_hooks_off_is_said(client):
    """disableAllHooks, here or in another layer, and shared project settings."""
    client.write({"disableAllHooks": True})
    assert any("disableAllHooks" in warning for warning in client.put().warnings)
    plan = client.put("project")
    assert any("disableAllHooks is true" in warning for warning in plan.warnings)
    assert any("is usually shared" in warning for warning in plan.warnings)
    assert client.settings.exists()


def test_choices_that_cannot_be_read_are_set_aside(client):
    """They are made anew and kept as evidence; those of a newer ultramon are not touched."""
    client.put(audience="both")
    path = client.states / "claude-code.json"
    path.write_bytes(b"\x00torn")
    plan = client.put()
    assert any("set aside" in warning for warning in plan.warnings)
    assert client.installed()["audience"] == "agent"
    (kept,) = client.states.glob("claude-code.json.corrupt-*")
    assert kept.read_bytes() == b"\x00torn"
    path.write_text(json.dumps({**client.installed(), "schema": 2}))
    with pytest.raises(StateSchemaError, match="newer ultramon"):
        client.plan()
    path.write_bytes(b"torn again")
    client.take_out()
    assert not client.states.exists()


def test_a_path_with_spaces_and_quotes_works(tmp_path, monkeypatch):
    """The command is one for the shell, whatever the directories are called."""
    client = ClientHome(tmp_path / "it's a $HOME; żółw").as_home(monkeypatch)
    client.install()
    settings = Settings(str(client.settings))
    assert len(settings.our_hooks()) == len(EVENTS)
    command = settings.get("hooks", "Stop", 0, "hooks", 0, "command")
    assert shlex.split(command) == ["exec", str(client.states / "claude-code.ultramon-hook")]
    assert "problem" not in client.run("doctor").stdout
    done = subprocess.run(command, shell=True, input=b"{}", capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    client.uninstall()
    assert not client.settings.exists()


def test_the_layers_exclude_each_other(client):
    """One at a time."""
    assert client.install("--user", "--local").returncode == ExitCode.USAGE
    assert client.install("--plugin", "x", "--local").returncode == ExitCode.USAGE
    done = client.install("--local", "--audience", "orchestrator")
    assert done.returncode == 0
    assert client.path("local").exists()
    assert client.installed()["audience"] == "orchestrator"


def test_the_clients_own_variable_names_the_settings(client):
    """CLAUDE_CONFIG_DIR moves the user's settings."""
    folder = client.home / "config"
    client.install(CLAUDE_CONFIG_DIR=str(folder))
    assert Settings(str(folder / "settings.json")).holds_ours()
    assert not client.settings.exists()
    client.uninstall(CLAUDE_CONFIG_DIR=str(folder))
    assert not folder.exists()


def test_a_projects_own_environment_is_refused(client):
    """The interpreter of a checkout comes and goes; the hint says how to install for oneself."""
    done = client.run("install", "claude-code")
    assert done.returncode == ExitCode.FAILURE
    assert f"pipx install {shlex.quote(str(ROOT))}" in done.stderr
    assert "--force" in done.stderr
    assert not client.settings.exists()


def test_which_environments_last(tmp_path, monkeypatch):
    """Tool installs and the system's Python last; venvs of projects and caches do not."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))

    def check(*parts, mark=None, cwd="/"):
        venv = home.joinpath(*parts)
        venv.mkdir(parents=True, exist_ok=True)
        if mark:
            (venv / mark).touch()
        check_lasting(str(cwd), prefix=str(venv), base="/usr")

    (home / ".claude").mkdir(parents=True)
    (home / ".git").mkdir()
    check_lasting("/", prefix="/usr", base="/usr")
    check(".local", "share", "pipx", "venvs", "ultramon")
    check(".venv")
    check("src", "loose", "venv")
    (home / "src" / "shop").mkdir(parents=True)
    (home / "src" / "shop" / "pyproject.toml").touch()
    check("src", "shop", "tools", "ultramon", mark="uv-receipt.toml")
    check("src", "shop", "pipx", mark="pipx_metadata.json")
    for parts, cwd in (
        (("src", "shop", ".venv"), "/"),
        (("src", "shop", "deep", "er", "env"), "/"),
        (("src", "loose", "venv"), home / "src" / "loose"),
        ((".cache", "uv", "archive-v0", "x"), "/"),
    ):
        with pytest.raises(ConfigurationError, match="`pipx install "):
            check(*parts, cwd=cwd)


def test_the_interpreter_is_the_venvs_own(tmp_path):
    """The link in the venv under its shortest name, and it must be able to run the hook."""
    assert this_interpreter() == str(Path(sys.executable).parent / "python")
    check_interpreter(this_interpreter())
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such module >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(ConfigurationError, match="no such module"):
        check_interpreter(str(broken))
    with pytest.raises(ConfigurationError, match="does not start"):
        check_interpreter(str(tmp_path / "gone"))


def test_a_plugin_folder_instead_of_settings(client, tmp_path):
    """The same hooks in the client's plugin shape; nothing else is changed, and it can go again."""
    before = client.tree()
    folder = tmp_path / "plugins" / "ultramon"
    done = client.install("--plugin", str(folder))
    assert done.returncode == 0, done.stderr
    assert not client.settings.exists()
    manifest = json.loads((folder / ".claude-plugin" / "plugin.json").read_bytes())
    assert manifest["name"] == "ultramon"
    assert manifest["version"] == __version__
    assert manifest["description"]
    hooks = json.loads((folder / "hooks" / "hooks.json").read_bytes())
    assert set(hooks) == {"description", "hooks"}
    assert list(hooks["hooks"]) == list(EVENTS)
    assert client.install("--plugin", str(folder)).stdout == ""
    (folder / "README").write_text("mine")
    client.uninstall("--plugin", str(folder))
    assert os.listdir(folder) == ["README"]
    shutil.rmtree(tmp_path / "plugins")
    assert client.tree() == before


def test_a_folder_with_something_else_is_no_plugin(client, tmp_path):
    """It is refused, and stays as it is."""
    folder = tmp_path / "mine"
    (folder / ".claude-plugin").mkdir(parents=True)
    (folder / ".claude-plugin" / "plugin.json").write_text('{"name": "other"}')
    before = client.tree()
    for command in (client.install, client.uninstall):
        done = command("--plugin", str(folder))
        assert done.returncode == ExitCode.FAILURE
        assert "holds ultramon's plugin" in done.stderr
    assert client.tree() == before
