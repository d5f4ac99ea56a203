"""`ultramon doctor`: of all coding agents or of one."""

import pytest
from helpers.program import run

from ultramon.hosts.registry import host_names


@pytest.fixture
def ultramon(tmp_path, monkeypatch):
    """Run a command as a user for whom nothing is installed."""
    monkeypatch.chdir(tmp_path)
    where = {"HOME": str(tmp_path), "ULTRAMON_STATE_DIR": str(tmp_path / "states")}
    for name in ("CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    return lambda *words: run(*words, **where)


def test_without_an_installation_it_names_all(ultramon):
    """One warning, whichever agent a person uses."""
    done = ultramon("doctor")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("warning")]
    assert line.startswith("warning  hooks: are not installed; ultramon install claude-code or ")
    for host in ("codex", "gemini", "opencode", "qwen"):
        assert f"or ultramon install {host}" in line


def test_what_a_person_does_not_use_is_no_finding(ultramon):
    """Of several agents those count that were installed into."""
    assert ultramon("install", "codex", "--force").returncode == 0
    shown = ultramon("doctor").stdout
    assert "ok       codex hooks: " in shown
    assert "warning" not in shown
    assert ".claude" not in shown


def test_one_agent_is_looked_at_alone(ultramon):
    """And it is said where nothing is installed into it."""
    for host in ("codex", "gemini"):
        assert ultramon("install", host, "--force").returncode == 0
    shown = ultramon("doctor", "codex").stdout
    assert "ok       codex hooks: " in shown
    assert "gemini" not in shown
    assert "state directory" in shown
    done = ultramon("doctor", "qwen")
    assert "warning  hooks: are not installed; ultramon install qwen\n" in done.stdout
    assert (done.returncode, done.stderr) == (0, "1 warning, no problem\n")


def test_an_unknown_agent_is_refused(ultramon):
    """With the names that are allowed."""
    done = ultramon("doctor", "nobody")
    assert done.returncode != 0
    assert f"one of {', '.join(host_names())}" in done.stderr
