"""Installing into Gemini and taking it out again, and what the doctor finds."""

import json
import shutil
import time
from contextlib import nullcontext

import pytest
from helpers import ROOT
from helpers.client_home import SHAPES
from helpers.gemini_session import RECORDED
from helpers.host_home import HostHome

from ultramon.errors import ConfigurationError, StateCorruptError
from ultramon.hosts.gemini.configuration import compression_ratio
from ultramon.hosts.gemini.host import GEMINI
from ultramon.hosts.gemini.setup import ENFORCING_EVENTS, EVENTS, hooks
from ultramon.hosts.install.plans import Choices
from ultramon.relay.launchers.gemini import GeminiLauncher
from ultramon.system.findings import OK, PROBLEM, WARNING
from ultramon.system.timestamps import format_time

SETTINGS = """{
  "hooks": { "disabled": ["other"], "PreCompress": [] },
  "security": {"auth": {"selectedType": "gemini-api-key"}}
}
"""
"""As older clients wrote it: a list of names among the events."""
COMMENTED = """// mine
{
  "security": {"auth": {"selectedType": "gemini-api-key"}}, // the key is in the environment
  "model": {"compressionThreshold": 0.3 /* early */}
  // "hooks": {}
}
"""
HUGE = '{"model": {"compressionThreshold": 1e999}}'


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMINI_CLI_HOME", str(tmp_path))
    return HostHome(GEMINI, tmp_path / ".gemini" / "settings.json", tmp_path / "states")


@pytest.mark.parametrize("shape", [*SHAPES, "settings", "comments"])
def test_every_file_comes_back_to_the_byte(home, shape):
    """Foreign hooks and settings stay where they are meanwhile, and nothing else is left."""
    own = {"settings": SETTINGS.encode(), "comments": COMMENTED.encode()}
    home.assert_comes_back({**SHAPES, **own}[shape])


def test_enforcement_needs_one_more_hook(home):
    """Which goes with it; the doctor finds it missing, and a dry run needs it too."""
    (warning,) = home.install(enforce="critical").warnings
    assert "--context-limit" in warning
    assert [hook.event for hook in hooks().our_hooks()] == [*EVENTS, *ENFORCING_EVENTS]
    assert home.install(context_limit_tokens=100_000).warnings == []
    assert not GEMINI.setup.plan_installation(home.request(force=True)).changes
    document = json.loads(home.hooks.read_text())
    del document["hooks"]["BeforeModel"]
    home.hooks.write_text(json.dumps(document))
    assert "BeforeModel" in home.findings()["gemini hooks", WARNING].message
    home.install(enforce="critical", enforce_dry_run=True)
    assert "BeforeModel" in json.loads(home.hooks.read_text())["hooks"]
    home.install(enforce="none")
    assert [hook.event for hook in hooks().our_hooks()] == list(EVENTS)
    assert ("gemini hooks", OK) in home.findings()


def test_a_comment_written_since_stays(home):
    """The backup lacks it, so that ultramon's entries are taken out instead."""
    home.hooks.write_text(COMMENTED)
    home.install()
    with home.hooks.open("a") as stream:
        stream.write("// since\n")
    home.uninstall()
    assert home.hooks.read_text() == COMMENTED + "// since\n"


def test_a_hook_has_a_name_and_milliseconds(home):
    """By its name the client's user switches it off."""
    home.path.rmdir()
    home.install()
    (entry,) = json.loads(home.hooks.read_text())["hooks"]["AfterTool"]
    (hook,) = entry["hooks"]
    assert (hook["name"], hook["timeout"], hook["type"]) == ("ultramon", 10_000, "command")
    home.uninstall()
    assert not home.path.exists()


def test_what_gemini_has_not_is_refused(home):
    """Nothing is written: no text reaches a compression, and the client takes no such comment."""
    for asked in ({"choices": Choices(handoff_note="keep")}, {"layer": "project"}):
        with pytest.raises(ConfigurationError):
            GEMINI.setup.plan_installation(home.request(force=True, **asked))
    home.hooks.write_text("{}\n# mine")
    with pytest.raises(StateCorruptError, match="line 2 column 1"):
        home.install()
    assert not home.states.exists()


@pytest.mark.parametrize(
    ("switch", "value"), [("enabled", False), ("disabled", ["x", "ultramon"]), ("enabled", True)]
)
def test_hooks_that_are_switched_off_are_named_wherever_they_are_needed(home, switch, value):
    """By an installation, the doctor, and a relay, which would see nothing."""
    home.install()
    launcher = GeminiLauncher("job", str(home.states))
    launcher.check_settings(str(home.path))
    document = json.loads(home.hooks.read_text()) | {"hooksConfig": {switch: value}}
    home.hooks.write_text(json.dumps(document))
    name, is_off = f"hooksConfig.{switch}", value is not True
    assert any(name in one for one in home.install().warnings) == is_off
    assert (("gemini hooks", PROBLEM) in home.findings()) == is_off
    with pytest.raises(ConfigurationError, match=name) if is_off else nullcontext():
        launcher.check_settings(str(home.path))


def test_the_doctor_finds_what_is_missing_or_switched_off(home):
    """Each with the cure; nothing where nothing was installed."""
    assert home.findings() == {}
    home.install()
    assert {status for _, status in home.findings()} == {OK}
    document = json.loads(home.hooks.read_text())
    document["hooksConfig"] = {"disabled": ["ultramon"]}
    del document["hooks"]["SessionEnd"]
    home.hooks.write_text(json.dumps(document))
    assert "no hook for SessionEnd" in home.findings()["gemini hooks", WARNING].message
    assert "hooksConfig.disabled" in home.findings()["gemini hooks", PROBLEM].cure
    document["hooksConfig"] = {"enabled": False}
    home.hooks.write_text(json.dumps(document))
    assert "hooksConfig.enabled" in home.findings()["gemini hooks", PROBLEM].cure
    home.hooks.write_text("{}")
    assert home.findings()["gemini hooks", PROBLEM].message.endswith("hooks are gone")


def test_the_doctor_finds_sessions_that_never_called_a_hook(home):
    """Subagents are none; a session from before the installation need not have called."""
    home.install(at=time.time() - 60)
    assert ("gemini sessions", OK) in home.findings()
    chats = home.path / "tmp" / "project" / "chats"
    shutil.copytree(RECORDED / "subagent" / "chats", chats)
    assert ("gemini sessions", OK) in home.findings()
    for file in chats.rglob("*.jsonl"):
        now = format_time(time.time() - 30)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        text = "".join(
            json.dumps(one | {"startTime": now, "timestamp": now}) + "\n" for one in lines
        )
        file.write_text(text)
    found = home.findings()["gemini sessions", PROBLEM]
    assert "55782342-25ad-46e0-b781-3f65e85245e8" in found.message
    assert "3358df89" not in found.message


@pytest.mark.parametrize(
    ("user", "project", "ratio"),
    [
        (None, None, 0.5), (COMMENTED, None, 0.3), ("[]", None, 0.5),
        ({"model": {"compressionThreshold": 0.3}}, None, 0.3),
        ({"model": {"compressionThreshold": 0.3}}, {"model": {"compressionThreshold": 0.7}}, 0.7),
        ({"model": {"compressionThreshold": "x"}}, {"model": []}, 0.5), ("{", [], 0.5),
        ({"model": {"compressionThreshold": 0.4}}, HUGE, 0.4), (HUGE, None, 0.5),
        ({"model": {"compressionThreshold": 0}}, {"model": {"compressionThreshold": True}}, 0.5),
    ],
)  # fmt: skip
def test_where_the_client_compresses(home, user, project, ratio):
    """The project's settings outrank the user's; what makes no sense says nothing."""
    folder = home.path / "project"
    (folder / ".gemini").mkdir(parents=True)
    for file, value in ((home.hooks, user), (folder / ".gemini" / "settings.json", project)):
        if value is not None:
            file.write_text(value if isinstance(value, str) else json.dumps(value))
    environ = {"GEMINI_CLI_HOME": str(home.path.parent)}
    assert compression_ratio(environ, str(folder)) == ratio
    limits = GEMINI.dialect.compaction_limits(environ, str(folder), "gemini-2.5-pro", 1_000_000)
    assert limits == (int(ratio * 1_000_000), None)


def test_the_page_says_what_is_so():
    """By what is installed."""
    page = (ROOT / "docs" / "gemini.md").read_text(encoding="utf-8")
    assert all(event in page for event in EVENTS)
