"""The six built-in hosts pass the suite that every host of ultramon passes."""

import shutil
import subprocess
import sys

import pytest
from helpers import host_plays
from helpers.distributions import EXTENSIONS
from helpers.program import environment

from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.codex.host import CODEX
from ultramon.hosts.copilot.host import COPILOT
from ultramon.hosts.gemini.host import GEMINI
from ultramon.hosts.opencode.host import OPENCODE
from ultramon.hosts.qwen.host import QWEN
from ultramon.testing import HostContract

SETTINGS = b'{\n  "hooks": {"Stop": []},\n  "theme": "dark"\n}\n'


def fresh(folder):
    """Make a folder."""
    folder.mkdir()
    return folder


class Recorded(HostContract):
    @pytest.fixture
    def play(self, tmp_path):
        make = getattr(host_plays, f"play_{self.host.package.rpartition('.')[2].split('_')[0]}")
        return lambda scenario: make(fresh(tmp_path / scenario), scenario)


class TestClaudeCode(Recorded):
    host = CLAUDE_CODE
    variables = {"CLAUDE_CONFIG_DIR": ""}
    files = {".claude/settings.json": SETTINGS}


class TestCodex(Recorded):
    host = CODEX
    variables = {"CODEX_HOME": "{home}/.codex"}
    files = {".codex/hooks.json": SETTINGS, ".codex/config.toml": b"model = 'm'\n"}


class TestCopilot(Recorded):
    host = COPILOT
    variables = {"COPILOT_HOME": "{home}/.copilot"}
    files = {".copilot/hooks/ultramon.json": SETTINGS, ".copilot/hooks/other.json": SETTINGS}


class TestGemini(Recorded):
    host = GEMINI
    variables = {"GEMINI_CLI_HOME": "{home}"}
    files = {".gemini/settings.json": SETTINGS}


class TestOpencode(Recorded):
    host = OPENCODE
    variables = {"XDG_CONFIG_HOME": "{home}/.config", "XDG_DATA_HOME": "{home}/data"}
    files = {
        ".config/opencode/plugin/other.js": b"export const Other = async () => ({})\n",
        ".config/opencode/plugin/ultramon.js": b"// mine\n",
    }

    @pytest.fixture
    def play(self, tmp_path, monkeypatch):
        return lambda one: host_plays.play_opencode(fresh(tmp_path / one), monkeypatch, one)


class TestQwen(Recorded):
    host = QWEN
    variables = {"QWEN_HOME": "{home}/.qwen"}
    files = {".qwen/settings.json": SETTINGS}


@pytest.mark.parametrize(
    ("said", "instead", "test", "problem"),
    [
        ('"tasks": "it keeps no list",', "", "tasks", "acme claims it, and has no run 'tasks'"),
        ('"tasks"', '"tasks": "none", "subagents"', "subagent", "not any("),
        ('"tasks"', '"tasks": "none", "warned"', "warned", "1 failed"),
        ('"relay"', '"coffee"', "relay or lacking", "2 failed"),
    ],
)
def test_a_host_that_says_what_is_not_so_fails(tmp_path, said, instead, test, problem):
    """It claims what it has no run of, lacks what it has, or names a column that there is not."""
    folder = shutil.copytree(EXTENSIONS / "host", tmp_path / "host")
    file = folder / "ultramon_acme" / "capabilities.py"
    file.write_text(file.read_text().replace(said, instead))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder, "-k", test],
        capture_output=True,
        encoding="utf-8",
        env=environment(PYTHONPATH=str(folder)),
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    assert problem in done.stdout
