"""`ultramon install` without a host."""

from __future__ import annotations

import json

import pytest
from helpers.program import run_process as run

from ultramon.cli.exit_codes import ExitCode


@pytest.fixture
def machine(tmp_path):
    """A user's home with the programs of two clients; the variables that make it so."""
    for name in ("claude", "gemini"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    return {
        "HOME": str(tmp_path),
        "PATH": str(tmp_path / "bin"),
        "ULTRAMON_STATE_DIR": str(tmp_path / "state"),
    }


def test_it_lists_the_hosts_of_this_machine(machine):
    """Those that are here first, each with what to do about it."""
    assert run("install", "gemini", "--force", **machine).returncode == 0
    lines = run("install", **machine).stdout.splitlines()
    assert [line for line in lines if "transcripts only" not in line] == [
        "claude-code  is here: ultramon install claude-code",
        "gemini       reports itself",
        "codex        not on this machine",
        "copilot      not on this machine",
        "opencode     not on this machine",
        "qwen         not on this machine",
    ]


def test_what_it_cannot_read_is_unknown(machine, tmp_path):
    """With the file and the reason; the others are listed all the same."""
    path = tmp_path / ".gemini" / "settings.json"
    path.parent.mkdir()
    path.write_text("{")
    rows = {row["name"]: row for row in json.loads(run("install", "--json", **machine).stdout)}
    assert (rows["gemini"]["installed"], rows["claude-code"]["installed"]) == (None, False)
    assert str(path) in rows["gemini"]["problem"]
    assert rows["gemini"]["program"] == str(tmp_path / "bin" / "gemini")
    assert path.read_text() == "{"


def test_a_choice_needs_a_host(machine):
    """Nothing is installed anywhere."""
    done = run("install", "--project", **machine)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "Missing argument 'HOST'" in done.stderr
