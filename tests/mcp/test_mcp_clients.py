"""`ultramon host mcp` as a server of real clients: an agent that asks gets its own numbers."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest
from helpers import codex_client, gemini_client, qwen_client
from helpers.program import PROGRAM
from helpers.qwen_session import NEW, OLD
from helpers.scripted_model import Step

pytestmark = pytest.mark.timeout(600)

FIRST, SECOND = 30_000, 40_000
SERVER = {"mcpServers": {"ultramon": {"command": PROGRAM, "args": ["host", "mcp"]}}}
"""What docs/mcp.md shows, with the path of the program; the clients pass their environment on."""


CODEX = f"""[mcp_servers.ultramon]
command = "{PROGRAM}"
args = ["host", "mcp"]
env_vars = ["ULTRAMON_STATE_DIR", "ULTRAMON_AGENT_ID", "XDG_STATE_HOME"]
required = true
"""
GEMINI_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False},
}
QWEN_SETTINGS = {"security": {"auth": {"selectedType": "openai"}}}


def configure(client, settings):
    """Add the server and more to the settings, which hold the hooks."""
    own = json.loads(client.settings.read_text())
    client.settings.write_text(json.dumps(own | settings | SERVER))


class Codex(codex_client.Client):
    """Waits for the server, which takes a second to start."""

    ask = ("context_status", {}, "mcp__ultramon")

    def ready(self, steps):
        return self.api(steps, config=CODEX)

    def work(self):
        return self.run("[[MAIN]] work")


class Gemini(gemini_client.Client):
    """Names its tools in its own way."""

    ask = ("mcp_ultramon_context_status", {})

    def ready(self, steps):
        configure(self, GEMINI_SETTINGS)
        return self.api(steps)

    def work(self):
        return self.run("-p", "[[MAIN]] work")


class Qwen(qwen_client.Client):
    """Hides the tools of servers behind a search, and takes a call of them all the same."""

    ask = ("mcp__ultramon__context_status", {})

    def ready(self, steps):
        configure(self, QWEN_SETTINGS)
        return self.api(steps)

    def work(self):
        return self.run("[[MAIN]] work")


def keep_bodies(api):
    """Return a list that the requests from now on come into, as they are."""
    bodies, answer = [], api.answer

    def keep(body, path):
        bodies.append(body)
        return answer(body, path)

    api.answer = keep
    return bodies


@pytest.mark.parametrize(
    ("make", "host"),
    [
        pytest.param(Codex, "codex", id="codex"),
        pytest.param(Gemini, "gemini", id="gemini"),
        *(
            pytest.param(
                partial(Qwen, version=version),
                "qwen",
                id=f"qwen-{version}",
                marks=pytest.mark.exhaustive,
            )
            for version in (OLD, NEW)
        ),
    ],
)
def test_an_agent_asks_for_itself(make, host, tmp_path):
    """The answer that the model gets is of the session that asked, and no other one has a state."""
    client = make(tmp_path)
    done = client.ultramon("install", host, "--force")
    assert done.returncode == 0, done.stderr
    steps = [Step(FIRST, "true"), Step(SECOND, client.ask), Step(50_000)]
    with client.ready({"MAIN": steps}) as api:
        bodies = keep_bodies(api)
        done = client.work()
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    (record,) = client.records()
    # The answer is text inside of JSON, once or twice.
    said = json.dumps(bodies[-1]).replace("\\", "")
    (agent_id,) = set(re.findall(r'"agent_id": ?"([^"]*)"', said))
    (tokens,) = set(re.findall(r'"tokens": ?(\d+)', said))
    assert agent_id == record.agent_id
    # Nobody waits for the hook of the call that asks.
    assert int(tokens) in (FIRST, SECOND)
    assert client.failures() == []
