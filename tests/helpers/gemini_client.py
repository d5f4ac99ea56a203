"""The real Gemini CLI, pinned and cached, against a scripted stand-in for its model on loopback."""

from __future__ import annotations

import json
import re

from helpers.host_client import HostClient
from helpers.npm_client import install_client
from helpers.scripted_model import OF_ULTRAMON, ScriptedModel, Step

VERSION = "0.61.0"
MODEL = "gemini-2.5-pro"
WINDOW = 1_048_576
HEADLESS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "general": {"enableAutoUpdate": False},
}
"""Settings with which it runs anywhere and asks nobody for a key."""
SETTINGS = {
    **HEADLESS,
    "hooks": {"AfterAgent": [{"hooks": [{"type": "command", "command": "true"}]}]},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "model": {"compressionThreshold": 0.5},
}
"""What a person has chosen, and a hook of another tool."""
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
            if any(words in text for words in (*OF_ULTRAMON, "context window"))
        ]

    def write(self, step, body, path):
        """One piece of a stream, or one object where no stream was asked for."""
        parts = [{"text": step.text}] if step.text else []
        parts += [
            {"functionCall": {"id": f"call_{next(self._ids)}", "name": name, "args": arguments}}
            for name, arguments in self.calls_of(step)
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


class Client(HostClient):
    """The client, installed, with a home and a project."""

    def __init__(self, path):
        super().__init__(path, "gemini", ".gemini")
        modules = install_client(
            f"gemini-{VERSION}",
            f"@google/gemini-cli@{VERSION}",
            options=("--ignore-scripts", "--omit=optional"),
        )
        self.program = modules / ".bin" / "gemini"
        self.settings = self.configuration / "settings.json"
        (self.project / "a.txt").write_text("alpha\n")
        self.variables |= {
            "GEMINI_CLI_HOME": str(self.home), "TMPDIR": str(path / "tmp"),
            "GEMINI_API_KEY": "none", "GEMINI_CLI_NO_RELAUNCH": "true",
            "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1,localhost",
        }  # fmt: skip
        (path / "tmp").mkdir()

    def api(self, steps):
        """Serve a scripted model; the client is run inside."""
        api = Api(steps)
        self.variables["GOOGLE_GEMINI_BASE_URL"] = api.url
        return self.serve(api)

    def run(self, *arguments):
        """Run ``gemini`` without a terminal to its end; return the process."""
        return self.run_command(self.program, "-m", MODEL, "--yolo", *arguments)

    def terminal(self, *arguments):
        """Run ``gemini`` on a terminal, where it asks before it runs a command."""
        return self.on_terminal([str(self.program), "-m", MODEL, *arguments])
