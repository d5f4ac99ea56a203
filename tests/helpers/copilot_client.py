"""The real Copilot CLI, pinned and cached, against a scripted stand-in for its model."""

from __future__ import annotations

import json
import re

from helpers import qwen_client
from helpers.host_client import HostClient
from helpers.npm_client import install_client
from helpers.scripted_model import Step

VERSION = "1.0.102"
MODEL = "fake-1"
WINDOW = 100_000
_SAID = re.compile(
    r"Additional guidance from postToolUse hooks:\n(.*)\Z|<system_reminder>\n(.*?)\n</system_rem",
    re.DOTALL,
)
_SUMMARISE = "Please create a detailed summary"


def find_client():
    """Return the command: a native program."""
    modules = install_client(f"copilot-{VERSION}", f"@github/copilot@{VERSION}")
    return str(modules / "@github" / "copilot-linux-x64" / "copilot")


class Api(qwen_client.Api):
    """Speaks the Chat Completions API."""

    def shell(self, command):
        """Name and arguments of the call that runs a shell command."""
        return "bash", {"command": command, "description": "run"}

    def injected_in(self, body):
        """What hooks have put behind prompts and the results of tools."""
        texts = [qwen_client._texts(one) for one in body["messages"][1:]]
        found = [_SAID.search(text) for one in texts for text in one]
        return [one.group(1) or one.group(2) for one in found if one is not None]

    def is_turn(self, body):
        """A summary is asked for in the conversation itself."""
        last = " ".join(qwen_client._texts(body["messages"][-1]))
        return bool(body.get("tools")) and not last.startswith(_SUMMARISE)


class Client(HostClient):
    """The client, installed, with a home and a project.

    Args:
        path: A folder for them.
        window: The most tokens that a request may have.
    """

    def __init__(self, path, window=WINDOW):
        super().__init__(path, "copilot", ".copilot")
        self.command = find_client()
        self.program = path / "bin" / "copilot"
        self.program.parent.mkdir()
        self.program.symlink_to(self.command)
        self.hooks = self.configuration / "hooks" / "ultramon.json"
        (self.project / "a.txt").write_text("alpha\n")
        trusted = {"trustedFolders": [str(self.project)]}
        (self.configuration / "config.json").write_text(json.dumps(trusted))
        self.variables |= {
            "COPILOT_OFFLINE": "true", "COPILOT_AUTO_UPDATE": "false",
            "COPILOT_PROVIDER_API_KEY": "none", "COPILOT_MODEL": MODEL,
            "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": str(window),
            "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": "8000",
            "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1,localhost",
            "SHELL": "/bin/bash",
        }  # fmt: skip

    def api(self, steps, compact=None):
        """Serve a scripted model; the client is run inside."""
        api = Api(steps, compact or Step(80_000, text="<overview>[[MAIN]] so far</overview>"))
        self.variables["COPILOT_PROVIDER_BASE_URL"] = f"{api.url}/v1"
        return self.serve(api)

    def run(self, prompt, *arguments):
        """Run ``copilot`` without a terminal to its end; return the process."""
        return self.run_command(self.command, "-p", prompt, "--allow-all", *arguments)

    def terminal(self, *arguments):
        """Run ``copilot`` on a terminal, where it asks before it runs a command."""
        return self.on_terminal([self.command, *arguments])
