"""What stands in every request of the real client, beside the request itself."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import program
from helpers.real_tokens import count_tokens

from real_client.api import Api, Reply, bash, marked

pytestmark = pytest.mark.real_client

PAGES = Path(__file__).parents[2] / "docs"
SERVER = """
from mcp.server import MCPServer

server = MCPServer("shop", instructions="Use the tools of the shop for questions of stock. " * 9)
for number in range(12):
    def tool(item: str, count: int = 1) -> str:
        return "ok"
    tool.__name__ = f"stock_{number}"
    tool.__doc__ = f"Looks after the stock of warehouse {number}: what came, what left. " * 9
    server.tool()(tool)
server.run("stdio")
"""


class CountingApi(Api):
    """Answers with the tokens that the request has."""

    def choose_step(self, request):
        """Return the step of a conversation, with the real count."""
        step = super().choose_step(request)
        if not isinstance(step, Reply) or not request.body.get("tools"):
            return step
        return replace(step, tokens=sum(count_tokens(list(pieces_of(request.body)))))


def pieces_of(body):
    """Yield the texts of a request."""
    yield from (one["text"] for one in body["system"])
    yield from (json.dumps(one, separators=(",", ":")) for one in body["tools"])
    for message in body["messages"]:
        content = message["content"]
        for block in content if isinstance(content, list) else [content]:
            yield block if isinstance(block, str) else block.get("text") or json.dumps(block)


@pytest.fixture
def api(states):
    """A stand-in API that counts."""
    api = CountingApi(states.all)
    yield api
    api.close()
    assert not api.unscripted


def with_standing_parts(client):
    """Give a client memory files, a skill, an agent and an MCP server; return the texts by path."""
    memory = {
        client.configuration / "CLAUDE.md": (PAGES / "alerts.md").read_text()[:4_000],
        client.project / "CLAUDE.md": (PAGES / "extending.md").read_text()[:9_000],
    }
    for path, text in memory.items():
        path.write_text(text)
    skill = client.project / ".claude" / "skills" / "deploy" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: deploy\ndescription: Deploys the shop.\n---\nRun make deploy.\n")
    server = client.home / "server.py"
    server.write_text(SERVER)
    servers = {"shop": {"command": sys.executable, "args": [str(server)]}}
    (client.project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    settings = json.loads(client.settings.read_text())
    settings["enableAllProjectMcpServers"] = True
    settings["permissions"]["allow"].append("mcp__shop")
    client.settings.write_text(json.dumps(settings))
    return {str(path): text for path, text in memory.items()}


def test_each_part_is_what_the_request_held(installed, api):
    """By a real tokenizer's count of it; all of them together within 2 %."""
    memory = with_standing_parts(installed)
    api.play(bash(0, "echo 1"), bash(0, "echo 2"), Reply(0, "Done."))
    installed.run(marked("do the work"), ENABLE_TOOL_SEARCH="false")
    done = program.run_process("report", "--json", str(installed.configuration / "projects"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    found = {one["source"]: one for one in report["byStanding"]}
    first, last = (api.turns()[at].body for at in (0, -1))
    tools = {is_of_shop: _definitions(last, is_of_shop=is_of_shop) for is_of_shop in (False, True)}
    texts = {
        "system": [one["text"] for one in first["system"]],
        "tools": tools[False],
        "mcp:shop": [*tools[True], *_pieces_with("# MCP Server Instructions", last)],
        "skills": _pieces_with("available for use with the Skill tool", first),
        **{f"memory:{path}": [text] for path, text in memory.items()},
    }
    for source, parts in texts.items():
        # The counting tokenizer is of another family, which finds prose heavier than code.
        within = 0.15 if source.startswith("memory:") else 0.1
        held = sum(count_tokens(parts))
        assert found[source]["tokens"] == pytest.approx(held, rel=within), source
        assert found[source]["provenance"] == "measured"
    assert (found["mcp:shop"]["sessionsUsed"], found["skills"]["sessionsUsed"]) == (0, 0)
    whole = sum(count_tokens(list(pieces_of(first))))
    assert report["standing"]["tokens"] == pytest.approx(whole, rel=0.02)
    parts = sum(one["requestTokens"] for one in report["byStanding"])
    assert parts == pytest.approx(report["standing"]["requestTokens"], rel=0.1)


def _definitions(body, *, is_of_shop):
    return [
        json.dumps(one, separators=(",", ":"))
        for one in body["tools"]
        if one["name"].startswith("mcp__shop") is is_of_shop
    ]


def _pieces_with(words, body):
    return [piece for piece in pieces_of(body) if words in piece][:1]
