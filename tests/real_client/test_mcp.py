"""The client's agents ask about themselves through the MCP server."""

import json
import subprocess

import pytest
from helpers.program import PROGRAM

from real_client.api import Call, Reply, agent, bash, marked

pytestmark = pytest.mark.real_client

ASK = Call("mcp__ultramon__context_status", {})


def answers(turn):
    """The structured answers of our tools among the texts that the model has just got."""
    texts = turn.fresh('"agent_id"')
    return [json.JSONDecoder().raw_decode(text)[0] for text in texts if text.startswith("{")]


def test_session_and_subagent_ask_for_themselves(installed, api, states):
    """One server serves both; each gets its own numbers, and keeps its own plan."""
    settings = json.loads(installed.settings.read_text())
    settings["permissions"]["allow"].append("mcp__ultramon")
    installed.settings.write_text(json.dumps(settings))
    done = subprocess.run(
        [installed.program, "mcp", "add", "--scope", "user", "ultramon",
         "-e", f"ULTRAMON_STATE_DIR={states.directory}", "--", PROGRAM, "host", "mcp"],
        env=installed.environment(),
        cwd=installed.project,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    started = agent(30_000, "scout")
    started.calls[0].input["run_in_background"] = False
    api.play(
        bash(19_000, "echo 1"),
        Reply(20_000, calls=(ASK,)),
        started,
        Reply(40_000, calls=(Call("mcp__ultramon__plan", {"add": ["read"], "start": "write"}),)),
        Reply(50_000, calls=(Call("mcp__ultramon__hand_off", {"notes": "half"}),)),
        Reply(60_000, "Done."),
    )
    api.play(
        bash(7_000, "echo 2"),
        Reply(8_000, calls=(ASK, Call("mcp__ultramon__plan", {"add": ["count"]}))),
        Reply(9_000, "Counted."),
        conversation="scout",
    )
    session_id = installed.run(marked("do the work")).session_id
    main, scout = api.turns(), api.turns("scout")
    (status,) = answers(main[2])
    assert (status["agent_id"], status["limit_tokens"]) == (session_id, 200_000)
    # Nobody waits for the hook of the call that asks.
    assert status["tokens"] in (19_000, 20_000)
    own, plan = answers(scout[2])
    assert own["agent_id"].startswith(f"{session_id}.")
    assert own["tokens"] in (7_000, 8_000)
    assert [task["name"] for task in plan["tasks"]] == ["count"]
    assert plan["agent_id"] == own["agent_id"]
    handoff = states.all()[session_id].handoff
    assert answers(main[5])[0]["handoff_id"] == handoff["handoffId"]
    assert (handoff["interrupted"], handoff["remaining"]) == (["write"], ["read"])
    assert handoff["notes"] == "half"
