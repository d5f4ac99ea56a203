"""The real Codex, pinned and cached, against a scripted stand-in for its model on loopback."""

from __future__ import annotations

import json

from helpers.host_client import HostClient
from helpers.npm_client import install_client
from helpers.scripted_model import OF_ULTRAMON, ScriptedModel, Step

VERSION = "0.169.0"
MODEL = "gpt-5.2"


class Api(ScriptedModel):
    """Speaks the Responses API."""

    def __init__(self, steps, compact=None):
        super().__init__(steps, compact or Step(100, text="[[MAIN]] summary"))

    def prompts_of(self, body):
        """What users have written, one text for each message."""
        return ["\n".join(_texts(one)) for one in body["input"] if one.get("role") == "user"]

    def injected_in(self, body):
        """The messages of a developer that are ultramon's."""
        return [
            text
            for item in body["input"]
            if item.get("role") == "developer"
            for text in _texts(item)
            if text.startswith(OF_ULTRAMON)
        ]

    def shell(self, command):
        """Name and arguments of the call that runs a shell command."""
        return "exec_command", {"cmd": command}

    def write(self, step, body, path):
        """A stream of events."""
        events = "".join(
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in self._events(step)
        )
        return 200, "text/event-stream", events.encode()

    def _events(self, step):
        done, calls = {"status": "completed"}, self.calls_of(step)
        items = [
            {"type": "function_call", "id": f"fc_{n}", "call_id": f"call_{n}", "name": name,
             "arguments": json.dumps(arguments), **done,
             **({"namespace": namespace[0]} if namespace else {})}
            for (name, arguments, *namespace), n in zip(calls, self._ids, strict=False)
        ]  # fmt: skip
        if step.text:
            content = [{"type": "output_text", "text": step.text, "annotations": []}]
            message = {"type": "message", "id": f"msg_{next(self._ids)}", "role": "assistant"}
            items.append({**message, "content": content, **done})
        usage = {"input_tokens": step.tokens, "output_tokens": 5, "total_tokens": step.tokens + 5}
        response = {"id": f"resp_{next(self._ids)}", "object": "response", "output": items}
        yield {"type": "response.created", "response": {**response, "output": []}}
        for number, item in enumerate(items):
            yield {"type": "response.output_item.done", "output_index": number, "item": item}
        yield {"type": "response.completed", "response": {**response, "usage": usage, **done}}


def _texts(item):
    content = item.get("content")
    return [part.get("text", "") for part in content] if isinstance(content, list) else []


class Client(HostClient):
    """The client, installed, with a home and a project."""

    def __init__(self, path):
        super().__init__(path, "codex", ".codex")
        modules = install_client(f"codex-{VERSION}", f"@openai/codex@{VERSION}")
        self.program = modules / ".bin" / "codex"
        self.hooks = self.configuration / "hooks.json"
        self.variables |= {
            "CODEX_HOME": str(self.configuration),
            "SCRIPT_KEY": "none", "HTTPS_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1,localhost",
        }  # fmt: skip

    def configure(self, api, config=""):
        """Write the client's configuration for a scripted model."""
        self.configuration.joinpath("config.toml").write_text(
            f'model = "{MODEL}"\nmodel_provider = "script"\napproval_policy = "never"\n'
            f"check_for_update_on_startup = false\n{config}\n"
            "[analytics]\nenabled = false\n[feedback]\nenabled = false\n"
            f'[model_providers.script]\nname = "script"\nbase_url = "{api.url}/v1"\n'
            'wire_api = "responses"\nenv_key = "SCRIPT_KEY"\nrequest_max_retries = 0\n'
            f'stream_max_retries = 0\n[projects."{self.project}"]\ntrust_level = "trusted"\n'
        )

    def api(self, steps, *, config="", compact=None):
        """Write the client's configuration for a scripted model, and serve it."""
        api = Api(steps, compact)
        self.configure(api, config)
        return self.serve(api)

    def run(self, *arguments, trusted=True):
        """Run ``codex exec`` to its end; return the process."""
        trust = ["--dangerously-bypass-hook-trust"] if trusted else []
        return self.run_command(
            self.program, "exec", *trust, "--dangerously-bypass-approvals-and-sandbox",
            "--skip-git-repo-check", *arguments,
        )  # fmt: skip

    def terminal(self, *arguments):
        """Run ``codex`` on a terminal."""
        return self.on_terminal([str(self.program), *arguments])

    def has_child_ended(self):
        """Whether the hooks have seen a subagent end."""
        return any(record.parent_id and not record.active for record in self.records())

    def has_child_overflowed(self):
        """Whether a rollout says that a request was refused as too large."""
        rollouts = self.configuration.rglob("rollout-*.jsonl")
        return any("context_window_exceeded" in file.read_text() for file in rollouts)
