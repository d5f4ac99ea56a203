"""The real opencode against a scripted stand-in for its model."""

from __future__ import annotations

import json

from helpers import qwen_client
from helpers.host_client import HostClient
from helpers.npm_client import install_client
from helpers.scripted_model import Step
from helpers.waiting import until
from ultramon.hosts.resident.place import Place

VERSION = "1.18.33"
QUIET = ("MODELS_FETCH", "AUTOUPDATE", "DEFAULT_PLUGINS", "LSP_DOWNLOAD")
"""What the client would fetch from the network."""
_FETCHED = {"lockfileVersion": 3, "packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}


def find_client():
    """Return the command: a native program."""
    modules = install_client(f"opencode-{VERSION}", f"opencode-ai@{VERSION}")
    return [str(modules / "opencode-linux-x64" / "bin" / "opencode")]


class Api(qwen_client.Api):
    """Speaks the Chat Completions API, to whose prompts the plugin adds some."""

    def shell(self, command):
        """Name and arguments of the call that runs a shell command."""
        return "bash", {"command": command, "description": "run"}

    def is_turn(self, body):
        """A title and a summary are asked for without tools."""
        return bool(body.get("tools"))


def settings_for(api, context, output):
    """Return the settings of the client, or of a fork, for a scripted model."""
    limit = {"context": context, "output": output}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{api.url}/v1", "apiKey": "none"},
        "models": {"fake-1": {"limit": limit, "tool_call": True}},
    }
    return {
        "model": "fake/fake-1",
        "small_model": "fake/fake-1",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"*": "allow"},
        "provider": {"fake": provider},
    }


class Client(HostClient):
    """The client, installed, with a home and a project.

    Args:
        path: A folder for them.
        context: The window of its model, in tokens.
        output: The longest reply.
    """

    run_seconds = 170

    def __init__(self, path, context=200_000, output=8_000):
        super().__init__(path, "opencode", ".config/opencode")
        self.command = find_client()
        self.program = path / "bin" / "opencode"
        self.program.parent.mkdir()
        self.program.symlink_to(self.command[0])
        self.context, self.output = context, output
        self.settings = self.configuration / "opencode.json"
        self.plugin = self.configuration / "plugin" / "ultramon.js"
        self.database = self.home / ".local" / "share" / "opencode" / "opencode.db"
        self.compaction = {}
        self.variables |= {f"OPENCODE_DISABLE_{name}": "1" for name in QUIET}
        self.variables["XDG_CONFIG_HOME"] = str(self.home / ".config")
        self.variables |= {"NO_PROXY": "127.0.0.1,localhost", "SHELL": "/bin/bash"}
        # As the client leaves it where it has fetched its package, for which it would wait here.
        (self.configuration / "node_modules" / "@opencode-ai" / "plugin").mkdir(parents=True)
        (self.configuration / "package-lock.json").write_text(json.dumps(_FETCHED))

    def api(self, steps, compact=None):
        """Serve a scripted model; the client is run inside."""
        api = Api(steps, compact or Step(90_000, text="[[MAIN]] summary"))
        own = settings_for(api, self.context, self.output)
        self.settings.write_text(json.dumps({**own, "compaction": self.compaction}))
        return self.serve(api)

    def has_resident(self):
        """Whether a resident runs: before that what ultramon says comes one request later."""
        return Place(str(self.states), self.variables).running() is not None

    def ended(self):
        """The states of all agents once none is active: the client does not wait for its end."""
        until(lambda: not any(record.active for record in self.records()))
        return self.records()

    def run(self, prompt, *arguments):
        """Run the client on one prompt to its end; return the process."""
        return self.run_command(
            *self.command, "run", "--format", "json", "--print-logs", *arguments, prompt
        )

    def terminal(self, *arguments):
        """Run the client on a terminal."""
        return self.on_terminal([*self.command, *arguments])
