"""Installing into Codex and taking it out again, and what the doctor finds."""

import json
import os
import time
from contextlib import closing

import pytest
from helpers import DATA, ROOT
from helpers.client_home import SHAPES
from helpers.host_home import HostHome

from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import ConfigurationError, StateCorruptError
from ultramon.hosts.codex.host import CODEX
from ultramon.hosts.codex.setup import EVENTS, hooks
from ultramon.hosts.install.plans import Choices
from ultramon.state.record import StateRecord
from ultramon.system.findings import OK, PROBLEM, WARNING
from ultramon.system.timestamps import format_time

ROLLOUT = DATA / "captures" / "codex-0.169.0" / "rollout_c1_user.jsonl"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    return HostHome(CODEX, tmp_path / "codex" / "hooks.json", tmp_path / "states")


@pytest.mark.parametrize("shape", SHAPES)
def test_every_file_comes_back_to_the_byte(home, shape):
    """Foreign hooks and members stay where they are meanwhile, and nothing else is left."""
    home.assert_comes_back(SHAPES[shape])


def test_what_was_added_meanwhile_stays(home):
    """The backup is for a file in which nothing else changed."""
    home.hooks.write_text("{}")
    home.install()
    document = json.loads(home.hooks.read_text())
    document["hooks"]["Stop"].append({"hooks": [{"type": "command", "command": "mine"}]})
    home.hooks.write_text(json.dumps(document))
    home.uninstall()
    own = [{"hooks": [{"type": "command", "command": "mine"}]}]
    assert json.loads(home.hooks.read_text()) == {"hooks": {"Stop": own}}


def test_an_installation_says_what_trust_is_needed(home):
    """Once: a second one that changes nothing says nothing."""
    (warning,) = home.install().warnings
    assert "trusted" in warning
    assert home.install().warnings == []


def test_what_codex_has_not_is_refused(home):
    """Nothing is written: a note for the summary would get nowhere, nor would another layer."""
    for asked in ({"choices": Choices(handoff_note="keep")}, {"layer": "project"}):
        with pytest.raises(ConfigurationError):
            CODEX.setup.plan_installation(home.request(force=True, **asked))
    home.hooks.write_text('{"hooks": {"Stop": 5}}')
    with pytest.raises(StateCorruptError):
        home.install()
    assert not home.states.exists()


def test_the_doctor_is_silent_where_nothing_was_installed(home):
    """Not everybody has Codex."""
    assert home.findings() == {}


def test_the_doctor_finds_hooks_that_are_gone_or_lack_an_event(home):
    """Each with the cure."""
    home.install()
    assert {status for _, status in home.findings()} == {OK}
    document = json.loads(home.hooks.read_text())
    del document["hooks"]["Stop"]
    home.hooks.write_text(json.dumps(document))
    assert "no hook for Stop" in home.findings()["codex hooks", WARNING].message
    home.hooks.write_text("{}")
    found = home.findings()["codex hooks", PROBLEM]
    assert (found.message.endswith("hooks are gone"), found.cure) == (
        True,
        "ultramon install codex",
    )


def test_the_doctor_finds_sessions_that_never_called_a_hook(home):
    """Hooks that nobody trusted are left out by the client without a word."""
    home.install(at=time.time() - 60)
    assert ("codex sessions", OK) in home.findings()
    folder = home.path / "sessions" / "2026" / "11" / "21"
    folder.mkdir(parents=True)
    first, *rest = ROLLOUT.read_bytes().splitlines()
    entry = json.loads(first) | {"timestamp": format_time(time.time() - 30)}
    rollout = folder / "rollout-2026-11-21T20-32-15-session.jsonl"
    rollout.write_bytes(b"\n".join([json.dumps(entry).encode(), *rest]))
    found = home.findings()["codex sessions", PROBLEM]
    assert "trust" in found.cure
    (session_id,) = CODEX.setup.begun_since(time.time() - 60)
    with closing(LocalBackend(str(home.states))) as backend:
        record = StateRecord(session_id, host="codex")
        started = record.event("agent_started", source="codex", at=time.time(), n=0)
        backend.append_events([started])
    assert ("codex sessions", OK) in home.findings(), "its state alone was pruned"
    rollout.write_bytes(rollout.read_bytes().replace(session_id.encode(), b"another"))
    assert "another" in home.findings()["codex sessions", PROBLEM].message
    os.utime(rollout, (1, 1))
    assert ("codex sessions", OK) in home.findings()


def test_the_page_says_what_is_so():
    """By what is installed."""
    page = (ROOT / "docs" / "codex.md").read_text(encoding="utf-8")
    assert all(event in page for event in EVENTS)


def test_the_command_stays_whatever_else_is_chosen(home):
    """Another command would lose the client's trust; what it runs is in the launcher."""
    home.install(resident=False)
    before = home.hooks.read_bytes()
    plan = home.install(resident=True)
    assert (plan.warnings, home.hooks.read_bytes()) == ([], before)
    assert {status for _, status in home.findings()} == {OK}
    (hook, *_) = hooks().our_hooks()
    assert hook.runs.program == str(home.states / "codex.ultramon-hook")
