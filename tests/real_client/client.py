"""Runs the real client, headless or on a terminal, in directories of its own, always with an end.

It sees no setting of the machine, reaches nothing but the stand-in API, and only one runs at a time
on one machine.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from helpers.requirements import missing
from helpers.terminal import Terminal

from real_client.api import Api

Found = TypeVar("Found")

MODEL = "claude-haiku-4-5"
WINDOW_TOKENS = 200_000
RUN_SECONDS = 60
_KEY = "sk-ant-no-key-of-anybody-0000000000"


def find_client() -> Path:
    """Return the client that the Python SDK brings along, or skip; under ``CI=true`` fail."""
    package = importlib.util.find_spec("claude_agent_sdk")
    if package is None or not package.submodule_search_locations:
        missing("the wheel claude-agent-sdk is not installed")
    client = Path(package.submodule_search_locations[0]) / "_bundled" / "claude"
    if not client.exists():
        missing("this claude-agent-sdk brings no client along")
    return client


def until(check: Callable[[], Found], what: str, seconds: float = 90) -> Found:
    """Return the first true value of a check, made every 20 ms; fail after the time."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds} s in vain: {what}")
        threading.Event().wait(0.02)
    return found


@dataclass(frozen=True)
class Session:
    """A headless session that has ended."""

    returncode: int
    output: list[dict[str, Any]]
    errors: str

    @property
    def session_id(self) -> str:
        """The id that the client gave it."""
        return next(line["session_id"] for line in self.output if line.get("subtype") == "init")

    @property
    def result(self) -> dict[str, Any]:
        """The client's own last word: `is_error`, `result`, `num_turns`."""
        return self.output[-1]


class Client:
    """A client with its own home, settings and project.

    Args:
        directory: Where these are created.
        api: What it talks to.

    Attributes:
        settings: Path of the user's settings.json.
        project: The directory that it works in.
    """

    def __init__(self, directory: Path, api: Api) -> None:
        self.program = find_client()
        self.home = directory / "home"
        self.configuration = directory / "configuration"
        self.project = directory / "project"
        self.settings = self.configuration / "settings.json"
        for path in (self.home, self.configuration, self.project):
            path.mkdir()
        self.api = api
        self._key: str | None = _KEY
        api.has_written = self.has_written
        self.settings.write_text(json.dumps({"permissions": {"allow": ["Bash", "Read", "Agent"]}}))
        # What a person has answered at the first start.
        self._write_answers()

    def _write_answers(self) -> None:
        trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        answers = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [_KEY[-20:]], "rejected": []},
            "projects": {str(self.project): trusted},
        }
        (self.configuration / ".claude.json").write_text(json.dumps(answers))

    def log_in_to_plan(self) -> None:
        """Let the client have the login of a subscription in the place of a key."""
        until = int((time.time() + 86_400 * 300) * 1_000)
        login = {
            "accessToken": "sk-ant-oat01-nobody", "refreshToken": "sk-ant-ort01-nobody",
            "expiresAt": until, "scopes": ["user:inference", "user:profile"],
            "subscriptionType": "max", "rateLimitTier": "default_claude_max_5x",
        }  # fmt: skip
        (self.configuration / ".credentials.json").write_text(json.dumps({"claudeAiOauth": login}))
        path = self.configuration / ".claude.json"
        account = {
            "accountUuid": "00000000-0000-4000-8000-000000000001",
            "organizationUuid": "00000000-0000-4000-8000-000000000002",
            "emailAddress": "dev@example.com", "organizationRole": "admin",
        }  # fmt: skip
        path.write_text(json.dumps(json.loads(path.read_text()) | {"oauthAccount": account}))
        self._key = None

    def has_written(self, call_id: str) -> bool:
        """Return whether a transcript holds a tool call."""
        mark = f'"id":"{call_id}"'
        return any(
            mark in path.read_text() for path in self.configuration.glob("projects/**/*.jsonl")
        )

    def environment(self, **more: str) -> dict[str, str]:
        """Return all that the client sees of the environment."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "CLAUDE_CONFIG_DIR": str(self.configuration),
            "ANTHROPIC_BASE_URL": self.api.url,
            **({} if self._key is None else {"ANTHROPIC_API_KEY": self._key}),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_TELEMETRY": "1",
            # Whatever else it tries to reach ends at a closed port.
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1,localhost",
            **more,
        }

    def start(self, prompt: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start a headless session in a process group of its own."""
        return subprocess.Popen(
            [self.program, "-p", prompt, "--model", MODEL, "--output-format", "stream-json",
             "--verbose", *arguments],
            cwd=self.project,
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )  # fmt: skip

    def run(self, prompt: str, *arguments: str, **environment: str) -> Session:
        """Run a headless session to its end."""
        return finish(self.start(prompt, *arguments, **environment))

    @contextmanager
    def terminal(self, *arguments: str, **environment: str) -> Iterator[Terminal]:
        """Give an interactive session on a terminal, killed when the block is left."""
        command = [str(self.program), "--model", MODEL, *arguments]
        terminal = Terminal(command, self.project, self.environment(**environment), RUN_SECONDS)
        try:
            yield terminal
        finally:
            terminal.close()


def finish(process: subprocess.Popen[str], seconds: float = RUN_SECONDS) -> Session:
    """Wait for the end of a headless session; one that takes too long is killed and fails."""
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        pytest.fail(f"the client did not end within {seconds} s: {output[-2000:]} {errors}")
    # A client that was killed may have left half a line.
    lines = [json.loads(line) for line in output.split("\n")[:-1]]
    return Session(process.returncode, lines, errors)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold a lock that every test of the client on this machine takes."""
    with find_client().open("rb") as program:
        fcntl.flock(program, fcntl.LOCK_EX)
        yield
