"""Installing into Copilot CLI and taking it out again, and what the doctor finds."""

import json
import os
import shutil
import time

import pytest
from helpers import ROOT
from helpers.copilot_session import MAIN, RECORDED
from helpers.host_home import HostHome

from ultramon.errors import ConfigurationError, StateCorruptError
from ultramon.hosts.copilot.host import COPILOT
from ultramon.hosts.copilot.setup import ENFORCING_EVENTS, EVENTS
from ultramon.hosts.install.plans import Choices
from ultramon.system.findings import OK, PROBLEM, WARNING
from ultramon.system.timestamps import format_time

OWN = '{"version": 1, "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}}\n'


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COPILOT_HOME", str(tmp_path / ".copilot"))
    found = HostHome(COPILOT, tmp_path / ".copilot" / "hooks" / "ultramon.json", tmp_path / "s")
    (found.path / "other.json").write_text(OWN)
    return found


@pytest.mark.parametrize("before", [OWN, "{}\n", '{"hooks": {}}', '{"version": 1}'])
def test_a_file_of_a_person_comes_back_to_the_byte(home, before):
    """One of that name may hold other hooks already."""
    home.assert_comes_back(before.encode())


def test_the_form_is_that_of_the_client(home):
    """Its version, and seconds; with enforcement the one event that can end a turn."""
    home.install()
    document = json.loads(home.hooks.read_text())
    assert document["version"] == 1
    (entry,) = document["hooks"]["PostToolUse"]
    (hook,) = entry["hooks"]
    assert (hook["type"], hook["timeout"]) == ("command", 10)
    assert not set(ENFORCING_EVENTS) & set(document["hooks"])
    home.install(enforce="critical")
    assert set(ENFORCING_EVENTS) < set(json.loads(home.hooks.read_text())["hooks"])


def test_what_the_client_has_not_is_refused(home):
    """No text reaches its summary, and hooks of ultramon are those of a user."""
    for asked in ({"choices": Choices(handoff_note="keep")}, {"layer": "project"}):
        with pytest.raises(ConfigurationError):
            COPILOT.setup.plan_installation(home.request(force=True, **asked))
    home.hooks.write_text("{")
    with pytest.raises(StateCorruptError, match="line 1"):
        home.install()
    assert not home.states.exists()


def test_the_doctor_finds_what_is_missing(home):
    """Each with the cure; nothing where nothing was installed."""
    assert home.findings() == {}
    home.install()
    assert {status for _, status in home.findings()} == {OK}
    document = json.loads(home.hooks.read_text())
    del document["hooks"]["SessionEnd"]
    home.hooks.write_text(json.dumps(document))
    assert "no hook for SessionEnd" in home.findings()["copilot hooks", WARNING].message
    home.hooks.write_text("{}")
    assert home.findings()["copilot hooks", PROBLEM].message.endswith("hooks are gone")


def test_the_doctor_finds_sessions_that_never_called_a_hook(home):
    """A session from before the installation need not have called."""
    home.install(at=time.time() - 60)
    folder = home.path.parent / "session-state" / MAIN
    folder.mkdir(parents=True)
    file = folder / "events.jsonl"
    shutil.copy(RECORDED / "subagents" / "events.jsonl", file)
    assert ("copilot sessions", OK) in home.findings()
    now = format_time(time.time() - 30)
    lines = [json.loads(line) | {"timestamp": now} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert MAIN in home.findings()["copilot sessions", PROBLEM].message


def test_files_of_instructions_are_those_that_the_client_loads(home):
    """The user's, and those of the repository."""
    project = home.path.parent / "project"
    (project / ".github").mkdir(parents=True)
    (project / ".git").mkdir()
    own = project / ".github" / "copilot-instructions.md"
    for file in (own, project / "AGENTS.md", project.parent / "AGENTS.md"):
        file.write_text("Rule.")
    found = list(COPILOT.setup.memory_files(os.environ, str(project)))
    assert found == [
        str(home.path.parent / "copilot-instructions.md"),
        str(own),
        str(project / "AGENTS.md"),
    ]


def test_the_page_says_what_is_so():
    """By what is installed."""
    page = (ROOT / "docs" / "copilot.md").read_text(encoding="utf-8")
    assert all(event in page for event in (*EVENTS, *ENFORCING_EVENTS))
