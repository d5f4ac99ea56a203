"""Hooks that an earlier ultramon wrote as requests: commands are made of them, or they go."""

from __future__ import annotations

import json
import re

import pytest
from helpers.client_home import OTHER_HOOKS, ClientHome
from helpers.earlier_installation import CASES, EarlierInstallation
from helpers.program import loaded_by
from helpers.running_server import Serving

from ultramon.cli.exit_codes import ExitCode
from ultramon.hosts.claude_code.install.http_hooks import PATH

BY_HTTP = {name: case for name, case in CASES.items() if "--via" in case["options"]}
FOREIGN = {"type": "http", "url": f"http://127.0.0.1:9000{PATH}", "headers": {"X-Key": "k"}}


@pytest.fixture(params=BY_HTTP.values(), ids=BY_HTTP.keys())
def earlier(request, tmp_path, monkeypatch):
    return EarlierInstallation(request.param, tmp_path).as_home(monkeypatch)


@pytest.fixture
def client(tmp_path):
    return ClientHome(tmp_path)


def hooks(settings):
    """The hooks of each event as they stand in the settings."""
    found = json.loads(settings.read_bytes())["hooks"]
    return {event: [one for entry in entries for one in entry["hooks"]]
            for event, entries in found.items()}  # fmt: skip


def test_the_doctor_names_them_and_the_cure(earlier):
    """No tool call is reported by them any more."""
    found = earlier.findings()["requests"]
    assert (found["status"], found["cure"]) == ("problem", "ultramon install claude-code")
    assert f"{earlier.settings}: tool calls go to http://127.0.0.1:8420" in found["message"]
    earlier.run("install", "claude-code", "--force")
    assert "requests" not in earlier.findings()


def test_installing_shows_no_secret(earlier):
    """The lines that go hold it."""
    given = re.search('Bearer ([^$"]+)', earlier.settings.read_text())
    done = earlier.run("install", "claude-code", "--force", "--verbose")
    assert '-                        "type": "http"' in done.stdout
    assert given is None or given[1] not in done.stdout + done.stderr


def test_a_removal_needs_no_installation_before(earlier):
    """Bytes and mode come back as they were before the requests."""
    earlier.run("uninstall", "claude-code")
    assert earlier.tree() == earlier.clean


def test_they_are_replaced_where_they_stand(earlier):
    """A matcher of a person stays, and so does another tool's request to the same path."""
    text = json.loads(earlier.settings.read_bytes())
    text["hooks"]["PostToolUse"][1]["matcher"] = "Bash|Read"
    text["hooks"]["PostToolUse"].append({"hooks": [FOREIGN]})
    earlier.settings.write_text(json.dumps(text))
    earlier.run("install", "claude-code", "--force")
    found = hooks(earlier.settings)
    assert [hook["type"] for hook in found["PostToolUse"]] == ["command", "command", "http"]
    assert found["PreToolUse"][0]["async"] is True
    left = json.loads(earlier.settings.read_bytes())["hooks"]["PostToolUse"]
    assert left[1]["matcher"] == "Bash|Read"
    earlier.run("uninstall", "claude-code")
    assert hooks(earlier.settings)["PostToolUse"][1:] == [FOREIGN]


@pytest.mark.parametrize("given", [("--via", "http"), ("--via", "command"), ("--url", "http://x"),
                                   ("--secret-in", "environment")])  # fmt: skip
def test_their_options_are_refused_by_name(client, given):
    """One line says what to do; nothing is written."""
    client.write(OTHER_HOOKS.encode())
    before = client.tree()
    done = client.install(*given)
    assert done.returncode == ExitCode.USAGE
    assert f"{given[0]} is gone: tool calls are reported by commands" in done.stderr
    assert client.tree() == before
    assert given[0] not in client.run("install", "--help").stdout


def test_the_route_names_the_command_that_makes_commands_of_them(tmp_path):
    """With the secret of the hooks; no other caller learns what is here."""
    with Serving(directory=tmp_path / "state") as serving:
        done = serving.hooks.post(PATH, json={})
        assert done.status_code == 410
        assert "run `ultramon install claude-code`" in done.json()["detail"]
        assert serving.anybody.post(PATH, json={}).status_code == 401


@pytest.mark.parametrize("command", ["doctor", "install"])
def test_neither_needs_the_packages_of_the_server(client, command):
    """Installing and asking need no extra."""
    arguments = [command] if command == "doctor" else [command, "claude-code", "--force"]
    heavy = ["fastapi", "starlette", "uvicorn", "httpx"]
    assert loaded_by(arguments, heavy, **client.variables) == ""
