"""`ultramon relay` with a real client: as a program, in a project under git."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial

from helpers import codex_client, copilot_client, gemini_client, opencode_client, qwen_client
from helpers.program import PROGRAM
from helpers.qwen_session import NEW
from helpers.relayed import RelayedProject, finish
from helpers.scripted_model import Step

SETTINGS = {
    "codex": ("--dangerously-bypass-approvals-and-sandbox",),
    "copilot": ("--allow-all",),
    "gemini": ("--yolo", "-m", "gemini-2.5-pro"),
    "opencode": (),
    "qwen": ("--yolo",),
}
"""Arguments of each client: the stand-in for its model decides what is run."""


class ClientRelay(RelayedProject):
    """A project under git, and relays of it by a client.

    Args:
        client: The client, a `helpers.host_client.HostClient` that is no Claude Code.
        directory: For states and lists.
    """

    def __init__(self, client, directory):
        super().__init__(directory)
        self.client, self.agent = client, client.host
        client.states = self.state
        client.variables["ULTRAMON_STATE_DIR"] = str(self.state)

    def begin(self, *arguments, run="job", goal="Write every file.", **environ):
        """Start a new run of that name."""
        given = (goal, "--agent", self.agent, "--run", run, *arguments)
        return self.relay(*given, **environ)

    def relay(self, *arguments, extra=None, **environ):
        """Start a relay; `extra` comes last, and is what the client is given where it is None."""
        extra = ("--", *SETTINGS[self.agent]) if extra is None else extra
        return subprocess.Popen(
            [PROGRAM, "relay", *arguments, "--state-dir", str(self.state), "--json", *extra],
            cwd=self.path,
            env=self.environ(**environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def environ(self, **more):
        """The environment of a relay that finds the client."""
        folders = (os.path.dirname(PROGRAM), str(self.client.program.parent), os.environ["PATH"])
        return self.client.environ() | {"PATH": os.pathsep.join(folders), **more}


def begin_project(agent, directory):
    """Make a project for relays of a client; into Gemini CLI alone its hooks are installed."""
    clients = {
        "codex": codex_client.Client,
        "copilot": copilot_client.Client,
        "gemini": gemini_client.Client,
        "opencode": opencode_client.Client,
        "qwen": partial(qwen_client.Client, version=NEW),
    }
    relay = ClientRelay(clients[agent](directory / "client"), directory)
    if agent == "gemini":
        relay.client.settings.write_text(json.dumps(gemini_client.HEADLESS))
        done = relay.client.ultramon("install", "gemini", "--force")
        assert done.returncode == 0, done.stderr
    return relay


PLANS = {
    "codex": ("update_plan", "plan", "step"),
    "gemini": ("write_todos", "todos", "description"),
    "opencode": ("todowrite", "todos", "content"),
    "qwen": ("todo_write", "todos", "content"),
}
"""Of each client the tool of its task list, the list in it, and the name of an entry."""


def plan(*steps, agent="codex"):
    """A call that keeps steps, each with its status, as the plan."""
    if agent == "copilot":
        return _todos(steps)
    tool, entries, name = PLANS[agent]
    kept = [{name: step, "status": status} for step, status in steps]
    if agent == "opencode":
        kept = [{"priority": "high"} | entry for entry in kept]
    if agent == "qwen":
        kept = [{"id": str(number)} | entry for number, entry in enumerate(kept)]
    return tool, {entries: kept}


def _todos(steps):
    """The same by SQL, which knows another word for what is completed."""
    rows = [
        f"('{number}', '{step}', '{'done' if status == 'completed' else status}')"
        for number, (step, status) in enumerate(steps)
    ]
    query = f"INSERT OR REPLACE INTO todos (id, title, status) VALUES {', '.join(rows)}"
    return "sql", {"description": "keep todos", "query": query}


def touch(*names):
    """A call that makes files."""
    return " && ".join(f"touch -- '{name}'" for name in names)


def follows_an_overflow(relay, first_call, check, seconds):
    """Run a job whose first context is refused as too long; check that the second one learns it."""
    refusal = {
        "code": "context_length_exceeded",
        "message": "This model's maximum context length is 131072 tokens. You sent 140000 tokens.",
    }
    steps = [
        Step(20_000, first_call),
        Step(0, error=refusal),
        Step(20_000, "echo more >> a"),
        Step(21_000),
    ]
    with relay.client.api({"MAIN": steps}) as api:
        code, result, told = finish(relay.begin(*relay.items("a"), *check), seconds)
    assert code == 0, told
    assert result["contexts"][0]["end"] == "overflowed"
    said = "The one before ended: its window was full."
    assert any(said in text for prompts in api.prompts for text in prompts)
