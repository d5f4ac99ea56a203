"""What the other tests rely on: the client hands a hook's text to the right agent, once."""

import json
import shlex
import sys

import pytest

from real_client.api import Reply, agent, bash, marked

pytestmark = pytest.mark.real_client

HOOK = """
import json, sys
payload = json.load(sys.stdin)
who = payload.get("agent_id", "nobody")
print(json.dumps({"hookSpecificOutput": {
    "hookEventName": payload["hook_event_name"],
    "additionalContext": f"a hook greets {who} after {payload['tool_use_id']}",
}}))
"""


@pytest.fixture
def greeted(client, tmp_path):
    """A client with a hook that greets after every tool call."""
    script = tmp_path / "greet.py"
    script.write_text(HOOK)
    command = shlex.join([sys.executable, str(script)])
    settings = json.loads(client.settings.read_text())
    hook = {"matcher": "*", "hooks": [{"type": "command", "command": command}]}
    settings["hooks"] = {"PostToolUse": [hook]}
    client.settings.write_text(json.dumps(settings))
    return client


def test_the_text_of_a_hook_is_in_the_next_request(greeted, api):
    """A session plays its steps to the end, and each greeting arrives with the tool's result."""
    api.play(bash(20_000, "echo first"), bash(40_000, "echo second"), Reply(41_000, "Done."))
    session = greeted.run(marked("do the work"))
    assert session.returncode == 0, session.errors
    assert session.result["result"] == "Done."
    assert [turn.count("a hook greets nobody") for turn in api.turns()] == [0, 1, 2]
    assert [len(turn.fresh("a hook greets")) for turn in api.turns()] == [0, 1, 1]


def test_the_text_of_a_subagents_hook_stays_with_the_subagent(greeted, api):
    """Only the agent whose tool ran reads the text."""
    api.play(agent(20_000, "scout"), Reply(21_000, "It looks."), Reply(22_000, "Done."))
    api.play(bash(9_000, "echo seen"), Reply(10_000, "Seen."), conversation="scout")
    session = greeted.run(marked("have somebody look"))
    assert session.result["result"] == "Done."
    agent_id = api.turns("scout")[0].headers["x-claude-code-agent-id"]
    assert api.turns("scout")[1].count(f"a hook greets {agent_id}") == 1
    assert api.turns()[-1].count("a hook greets nobody") == 1
    assert api.turns()[-1].count(f"a hook greets {agent_id}") == 0
