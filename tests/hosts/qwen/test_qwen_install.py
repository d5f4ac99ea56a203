"""Installing into Qwen Code and taking it out again, and what the doctor finds."""

import json
import time

import pytest
from helpers import ROOT
from helpers.client_home import SHAPES
from helpers.host_home import HostHome
from helpers.qwen_session import NEW, recording

from ultramon.errors import ConfigurationError, StateCorruptError
from ultramon.hosts.qwen.configuration import SESSION_VARIABLE, compaction_tokens
from ultramon.hosts.qwen.host import QWEN
from ultramon.hosts.qwen.setup import EVENTS
from ultramon.system.findings import OK, PROBLEM
from ultramon.system.timestamps import format_time


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("QWEN_HOME", str(tmp_path / ".qwen"))
    monkeypatch.delenv("QWEN_RUNTIME_DIR", raising=False)
    return HostHome(QWEN, tmp_path / ".qwen" / "settings.json", tmp_path / "states")


@pytest.mark.parametrize("shape", SHAPES)
def test_every_file_comes_back_to_the_byte(home, shape):
    """Foreign hooks and members stay where they are meanwhile, and nothing else is left."""
    home.assert_comes_back(SHAPES[shape])


def test_what_the_client_adds_stays(home):
    """It writes the version of its settings into them at its next start."""
    home.install()
    document = json.loads(home.hooks.read_text())
    home.hooks.write_text(json.dumps(document | {"$version": 4}))
    home.uninstall()
    assert json.loads(home.hooks.read_text()) == {"$version": 4}


def test_what_qwen_code_has_not_is_refused(home):
    """Nothing is written."""
    with pytest.raises(ConfigurationError):
        QWEN.setup.plan_installation(home.request(force=True, layer="project"))
    home.hooks.write_text('{"hooks": {"Stop": 5}}')
    with pytest.raises(StateCorruptError):
        home.install()
    assert not home.states.exists()


def test_hooks_that_are_switched_off_are_said_twice(home):
    """By the installation, and by the doctor."""
    home.hooks.write_text('{"disableAllHooks": true}')
    (warning,) = home.install().warnings
    assert "disableAllHooks" in warning
    assert "disableAllHooks" in home.findings()["qwen hooks", PROBLEM].message


def test_the_doctor_finds_sessions_that_never_called_a_hook(home):
    """And is silent where nothing was installed."""
    assert home.findings() == {}
    home.install(at=time.time() - 60)
    assert {status for _, status in home.findings()} == {OK}
    (path,) = recording(NEW, "plain").glob("*-*.jsonl")
    first, *rest = path.read_bytes().splitlines()
    entry = json.loads(first) | {"timestamp": format_time(time.time() - 30)}
    folder = home.path / "projects" / "-home-user-project" / "chats"
    folder.mkdir(parents=True)
    folder.joinpath(path.name).write_bytes(b"\n".join([json.dumps(entry).encode(), *rest]))
    assert path.stem in home.findings()["qwen sessions", PROBLEM].message


@pytest.mark.parametrize(
    ("chosen", "window", "old", "new"),
    [
        ({}, 100_000, 70_000, 67_000),
        ({}, 1_000_000, 700_000, 850_000),
        ({}, 30_000, 21_000, 25_500),
        ({"model": {"chatCompression": {"contextPercentageThreshold": 0}},
          "context": {"autoCompactThreshold": 0.5}}, 1_000_000, None, 500_000),
        ({"model": 5, "context": {"autoCompactThreshold": "x"}}, 1_000_000, 700_000, 850_000),
        ({}, None, None, None),
    ],
)  # fmt: skip
def test_the_client_compacts_where_it_says(home, chosen, window, old, new):
    """By its own arithmetic, which differs between versions."""
    home.hooks.write_text(json.dumps(chosen))
    environ = {"QWEN_HOME": str(home.path)}
    assert compaction_tokens(environ, None, window) == old
    assert compaction_tokens(environ | {SESSION_VARIABLE: "s"}, None, window) == new


def test_the_settings_of_the_project_win(home):
    """As in the client."""
    home.hooks.write_text('{"context": {"autoCompactThreshold": 0.5}}')
    project = home.path / "project"
    (project / ".qwen").mkdir(parents=True)
    (project / ".qwen" / "settings.json").write_text('{"context": {"autoCompactThreshold": 0.4}}')
    environ = {"QWEN_HOME": str(home.path), SESSION_VARIABLE: "s"}
    assert compaction_tokens(environ, str(project), 1_000_000) == 400_000


def test_the_page_says_what_is_so():
    """Each event that is hooked is on it."""
    page = (ROOT / "docs" / "qwen.md").read_text(encoding="utf-8")
    assert all(event in page for event in EVENTS)
    assert QWEN.setup.resume_words("s") == ("qwen", "--resume", "s")
