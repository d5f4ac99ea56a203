"""The real Codex on a terminal: its question about hooks, and what runs once it is answered."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.codex_client import Client, Step
from helpers.requirements import require_tool
from helpers.waiting import until


@pytest.fixture
def client(tmp_path):
    """A client into which ultramon was installed, and whose daemon ends with the test."""
    require_tool("tmux")
    client = Client(tmp_path)
    done = client.ultramon("install", "codex", "--force")
    assert "Trust all and continue" in done.stderr + done.stdout
    yield client
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.fsencode(client.configuration) in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


@pytest.mark.exhaustive
def test_hooks_run_once_a_person_has_trusted_them(client):
    """In every later run as well; installing again changes no command, so nobody is asked again."""
    configuration = client.configuration / "config.toml"
    steps = [Step(20_000, "true"), Step(181_000, text="First."), Step(190_000, text="Second.")]
    with client.api({"MAIN": steps}) as api:
        assert client.run("[[MAIN]] work", trusted=False).returncode == 0
        assert client.records() == []
        with client.terminal() as screen:
            screen.wait_for("Hooks need review")

            def is_listed():
                if "t trust all" not in screen.screen:
                    screen.press("Enter")
                return "t trust all" in screen.screen

            def is_trusted():
                screen.press("t")
                return "trusted_hash" in configuration.read_text()

            until(is_listed)
            until(is_trusted)
        assert client.ultramon("install", "codex", "--force").returncode == 0
        done = client.run("[[MAIN]] again", trusted=False)
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    (record,) = client.records()
    assert (record.outcome, record.estimated_tokens) == ("completed", 190_000)
