"""The real Gemini CLI, pinned and cached, against a scripted stand-in for its model on loopback."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import contextmanager

from helpers.npm_client import install_client
from helpers.program import run_process
from helpers.scripted_model import RUN_SECONDS, ScriptedModel, Step
from ultramon.backends.local.state_files import StateDirectory
from ultramon.hosts import failure_log

VERSION = "0.61.0"
MODEL = "gemini-2.5-pro"
WINDOW = 1_048_576
SUMMARY = "<state_snapshot><overall_goal>[[MAIN]] so far</overall_goal></state_snapshot>"
TOO_LONG = {
    "code": 400,
    "status": "INVALID_ARGUMENT",
    "message": f"The input token count (1200000) exceeds the maximum number of tokens allowed"
    f" ({WINDOW}).",
}
_INJECTED = re.compile(r"<hook_context>(.*?)</hook_context>", re.DOTALL)


class Api(ScriptedModel):
    """Speaks the Gemini API."""

    def __init__(self, steps):
        super().__init__(steps, Step(100, text=SUMMARY))

    def prompts_of(self, body):
        """What users have written, one text for each message."""
        return [_text(one) for one in body["contents"] if one.get("role") == "user"]

    def injected_in(self, body):
        """What hooks have put around prompts and behind the results of tools."""
        return [
            text
            for item in body["contents"]
            for text in _INJECTED.findall(_text(item))
            if "ontext window" in text or "[ultramon]" in text
        ]

    def write(self, step, body, path):
        """One piece of a stream, or one object where no stream was asked for."""
        calls = [
            ("run_shell_command", {"command": one, "description": "run"})
            if isinstance(one, str)
            else one
            for one in step.calls
        ]
        parts = [{"text": step.text}] if step.text else []
        parts += [
            {"functionCall": {"id": f"call_{next(self._ids)}", "name": name, "args": arguments}}
            for name, arguments in calls
        ]
        usage = {"promptTokenCount": step.tokens, "candidatesTokenCount": 5}
        reply = {
            "candidates": [
                {"index": 0, "finishReason": "STOP", "content": {"role": "model", "parts": parts}}
            ],
            "usageMetadata": {**usage, "totalTokenCount": step.tokens + 5},
            "modelVersion": MODEL,
        }
        if "streamGenerateContent" in path:
            return 200, "text/event-stream", b"data: %s\n\n" % json.dumps(reply).encode()
        if "countTokens" in path:
            reply = {"totalTokens": 100}
        return 200, "application/json", json.dumps(reply).encode()


def _text(item):
    """All texts of a message, those in the results of tools too."""
    texts = []
    for part in item.get("parts", []):
        response = part.get("functionResponse", {}).get("response", {})
        texts.append(part.get("text") or str(response.get("output", "")))
    return "\n".join(texts)


class Client:
    """A home of the client and a project, and a state directory beside them."""

    def __init__(self, path):
        modules = install_client(
            f"gemini-{VERSION}",
            f"@google/gemini-cli@{VERSION}",
            options=("--ignore-scripts", "--omit=optional"),
        )
        self.program = modules / ".bin" / "gemini"
        self.home, self.project, self.states = path / "home", path / "project", path / "state"
        self.settings = self.home / ".gemini" / "settings.json"
        for folder in (self.settings.parent, self.project):
            folder.mkdir(parents=True)
        (self.project / "a.txt").write_text("alpha\n")
        self.variables = {
            "HOME": str(self.home),
            "GEMINI_CLI_HOME": str(self.home),
            "ULTRAMON_STATE_DIR": str(self.states),
        }

    def ultramon(self, *arguments):
        """Run ultramon beside the client."""
        return run_process(*arguments, **self.variables)

    @contextmanager
    def api(self, steps):
        """Serve a scripted model; the client is run inside."""
        api = Api(steps)
        self.variables["GOOGLE_GEMINI_BASE_URL"] = api.url
        try:
            yield api
        finally:
            api.close()

    def run(self, *arguments):
        """Run ``gemini`` without a terminal to its end; return the process."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return subprocess.run(
            [self.program, "-m", MODEL, "--yolo", *arguments],
            env=kept | self.variables | {
                "GEMINI_API_KEY": "none", "GEMINI_CLI_NO_RELAUNCH": "true",
                "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1,localhost",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            cwd=self.project,
            check=False,
            timeout=RUN_SECONDS,
        )  # fmt: skip

    def records(self):
        """The states of all agents, sessions first."""
        directory = StateDirectory(str(self.states))
        return [directory.read(agent_id) for agent_id in sorted(directory.list_ids(), key=len)]

    def failures(self):
        """The problems in the failure log."""
        path = failure_log.log_path(str(self.states), "gemini")
        return [failure["problem"] for failure in failure_log.read(path)]
