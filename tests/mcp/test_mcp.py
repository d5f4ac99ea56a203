"""`ultramon host mcp`: an agent asks about itself, and keeps its plan, through tools."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import closing

import pytest
from helpers import ROOT
from helpers.hooked_session import SESSION, HookedSession
from helpers.program import PROGRAM, environment, run_process
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

from ultramon import create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.cli import mcp_caller
from ultramon.cli.commands.mcp import agent_finder
from ultramon.cli.exit_codes import NoCaller
from ultramon.cli.mcp_caller import CALL_ID, CallerFinder
from ultramon.mcp.own_agent import MAX_FILE_BYTES, OwnAgent
from ultramon.mcp.server import make_server
from ultramon.system.clock import SYSTEM_CLOCK

TOOLS = ["context_status", "will_it_fit", "plan", "task_done", "hand_off"]


@pytest.fixture
def session(tmp_path):
    """A running session of a coding agent with 100,000 of 200,000 tokens."""
    session = HookedSession(tmp_path)
    session.call("SessionStart", source="startup", model="claude-sonnet-4-5")
    return session


@pytest.fixture
def backend(session):
    with closing(LocalBackend(str(session.state))) as backend:
        yield backend


@pytest.fixture
def call(backend):
    """Calls tools in this process; returns the structured answer, or the text of the error."""

    def call(name, agent=SESSION, **arguments):
        async def ask():
            async with Client(server_of(backend, agent)) as client:
                return await client.call_tool(name, arguments)

        return outcome(asyncio.run(ask()))

    return call


def server_of(backend, agent):
    return make_server(lambda _: OwnAgent(backend, agent, SYSTEM_CLOCK, lambda _: None))


def outcome(result):
    return result.content[0].text if result.is_error else result.structured_content


def test_a_session_works_with_the_tools(session):
    """The installed program over stdin and stdout, found by the client's variable."""
    session.tool(100_000)
    server = StdioServerParameters(
        command=PROGRAM,
        args=["host", "mcp"],
        env=environment(ULTRAMON_STATE_DIR=str(session.state), CLAUDE_CODE_SESSION_ID=SESSION),
    )

    async def work():
        async with Client(stdio_client(server)) as client:
            status = outcome(await client.call_tool("context_status"))
            fit = outcome(await client.call_tool("will_it_fit", {"tokens": 50_000}))
            await client.call_tool("plan", {"add": ["read", "test"], "start": "write"})
            done = outcome(await client.call_tool("task_done", {"result": "a.md"}))
            left = outcome(
                await client.call_tool(
                    "hand_off", {"notes": "n", "next_step": "test", "decisions": ["d"]}
                )
            )
            stored = await client.read_resource("ultramon://agent")
            return status, fit, done, left, json.loads(stored.contents[0].text)

    status, fit, done, left, stored = asyncio.run(work())
    assert (status["tokens"], status["limit_tokens"], status["used_percent"]) == (
        100_000, 200_000, 50,
    )  # fmt: skip
    assert (status["level"], status["action"], status["tokens_source"]) == (
        "normal", "none", "reported",
    )  # fmt: skip
    assert status["summary"].startswith("Context window: 100,000 of 200,000 tokens (50 %)")
    assert (fit["verdict"], fit["level_after"]) == ("too_large", "critical")
    assert [(task["name"], task["status"], task["result"]) for task in done["tasks"]] == [
        ("read", "pending", ""), ("test", "pending", ""), ("write", "done", "a.md"),
    ]  # fmt: skip
    assert (left["completed"], left["remaining"]) == (["write"], ["read", "test"])
    handoff = session.record().handoff
    assert handoff["handoffId"] == left["handoff_id"] == stored["handoff"]["handoffId"]
    assert (handoff["notes"], handoff["nextStep"], handoff["decisions"]) == ("n", "test", ["d"])
    assert session.events("handoff_ready")[-1]["handoff"]["handoffId"] == left["handoff_id"]


def test_the_server_ends_with_stdin_and_prints_nothing_but_the_protocol(tmp_path):
    """Whatever a client sends; an agent that is not known keeps no server from starting."""
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }  # fmt: skip
    process = subprocess.Popen(
        [PROGRAM, "host", "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(ULTRAMON_STATE_DIR=str(tmp_path / "none")),
    )
    with process:
        print("no json", json.dumps(hello), '{"jsonrpc": "2.0"}', sep="\n", file=process.stdin)
        process.stdin.flush()
        lines = [json.loads(process.stdout.readline())]
        while "result" not in lines[-1]:
            lines.append(json.loads(process.stdout.readline()))
        process.stdin.close()
        assert process.wait(60) == 0
        lines += [json.loads(line) for line in process.stdout]
    assert all(line["jsonrpc"] == "2.0" for line in lines)
    assert lines[-1]["result"]["serverInfo"]["name"] == "ultramon"
    assert not (tmp_path / "none").exists()


def test_every_tool_describes_itself(backend):
    """A model and a client learn from the list what goes in, what comes out, and what changes."""

    async def ask():
        async with Client(server_of(backend, SESSION)) as client:
            return (await client.list_tools()).tools

    tools = asyncio.run(ask())
    assert [tool.name for tool in tools] == TOOLS
    for tool in tools:
        assert len(tool.description) > 40
        assert all(one["description"] for one in tool.input_schema["properties"].values())
        assert tool.output_schema["type"] == "object"
        assert tool.annotations.read_only_hint is (tool.name in TOOLS[:2])


def test_what_nobody_knows_is_unknown(session, call):
    """Before the first reading there is no number, and no percentage is made up."""
    status = call("context_status")
    assert {name for name, value in status.items() if value == "unknown"} == {
        "used_percent", "tokens", "tokens_source", "tokens_left", "level", "turns_to_next_level",
        "turns_to_next_level_low", "turns_to_next_level_high", "reading_age_seconds", "tasks_total",
    }  # fmt: skip
    assert "usage not known yet" in status["summary"]
    fit = call("will_it_fit", tokens=10)
    assert (fit["verdict"], fit["tokens_after"], fit["level_after"]) == ("unknown",) * 3
    assert call("will_it_fit", tokens=200_001)["verdict"] == "too_large"


@pytest.mark.parametrize(
    ("size", "verdict", "level"),
    [
        ({"tokens": 1_000}, "fits", "normal"),
        ({"tokens": 45_000}, "fits", "warning"),
        ({"tokens": 80_000}, "too_large", "critical"),
        ({"tokens": 120_000}, "too_large", "critical"),
        ({"characters": 50_000}, "fits", "normal"),
        ({"characters": 1_000_000}, "too_large", "critical"),
        ({"file": "small.txt"}, "fits", "normal"),
        ({"file": "large.txt"}, "too_large", "critical"),
    ],
)
def test_a_size_is_judged_by_the_session_as_it_is(session, call, size, verdict, level):
    """Below the rung that asks to return it fits; of a file only its size in tokens is shown."""
    (session.project / "small.txt").write_text("a word or two " * 100)
    (session.project / "large.txt").write_text("a word or two " * 40_000)
    session.tool(100_000)
    fit = call("will_it_fit", **size)
    assert (fit["verdict"], fit["level_after"]) == (verdict, level)
    assert fit["needed_tokens_are_estimated"] is ("tokens" not in size)
    if "tokens" in size:
        assert fit["tokens_after"] == 100_000 + 5 + size["tokens"]
        assert fit["tokens_over"] == max(0, fit["tokens_after"] - 200_000)


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("../secret.txt", "is not below"),
        ("/etc/passwd", "is not below"),
        ("link.txt", "is not below"),
        ("none.txt", "No such file"),
        ("pipe", "is no regular file"),
        (".", "Is a directory"),
        ("binary", "is no text"),
        ("huge.txt", "no window holds it"),
        ("nul\0", "null"),
    ],
)
def test_a_file_that_is_not_the_agents_own_is_not_measured(session, call, file, problem):
    """The server runs outside the client's sandbox: it must not say what lies elsewhere."""
    (session.path / "secret.txt").write_text("secret")
    (session.project / "link.txt").symlink_to(session.path / "secret.txt")
    os.mkfifo(session.project / "pipe")
    (session.project / "binary").write_bytes(b"\x7fELF\0\0")
    with (session.project / "huge.txt").open("wb") as huge:
        huge.truncate(MAX_FILE_BYTES + 1)
    assert problem in call("will_it_fit", file=file)


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("context_status", {"agent_id": "../x"}, "../x"),
        ("context_status", {"agent_id": "stranger"}, "may not look at agent stranger"),
        ("context_status", {"agent_id": "nobody"}, "may not look at agent nobody"),
        ("will_it_fit", {}, "exactly one of"),
        ("will_it_fit", {"tokens": 1, "characters": 1}, "exactly one of"),
        ("will_it_fit", {"tokens": -1}, "greater than or equal to 0"),
        ("plan", {"add": ["x" * 201]}, "1 to 200 characters"),
        ("plan", {"add": ["x"] * 201}, "at most 200"),
        ("plan", {"start": " "}, "1 to 200 characters"),
        ("task_done", {}, "no task is in progress"),
        ("task_done", {"task": "none"}, "has no task none"),
    ],
)
def test_what_cannot_be_done_is_a_tool_error(session, backend, call, name, arguments, problem):
    """It says what to do, and nothing has changed."""
    with create_context_monitor("stranger", backend=backend):
        before = session.record().to_json()
        assert problem in call(name, **arguments)
        assert session.record().to_json() == before


def test_a_program_keeps_its_plan_itself(session, backend, call):
    """An agent of the SDK can ask; what its monitor keeps is not changed behind its back."""
    with create_context_monitor("worker", backend=backend) as monitor:
        monitor.report_usage(input_tokens=20_000)
        monitor.update_heartbeat()
        assert call("context_status", "worker")["tokens"] == 20_000
        assert "its program keeps the state" in call("plan", "worker", add=["a"])
        assert "its program keeps the state" in call("hand_off", "worker")
    assert "it has not reported yet" in call("context_status", "later")


def test_calls_at_the_same_time_lose_nothing(session, backend):
    """Each change happens inside the agent's lock."""

    async def ask():
        async with Client(server_of(backend, SESSION)) as client:
            calls = [client.call_tool("plan", {"add": [f"task {n}"]}) for n in range(16)]
            return await asyncio.gather(*calls)

    assert not any(answer.is_error for answer in asyncio.run(ask()))
    names = {task["name"] for task in session.record().tasks}
    assert names == {f"task {n}" for n in range(16)}


def test_a_parent_sees_its_subagents_and_changes_none(session, call, backend):
    """By tool and by resource; a child does not see its parent."""
    session.call("SubagentStart", "a1")
    session.tool(30_000, agent="a1")
    child = f"{SESSION}.a1"
    assert call("context_status", agent_id=child)["tokens"] == 30_000
    assert "may not look at" in call("context_status", child, agent_id=SESSION)

    async def read(agent, name):
        async with Client(server_of(backend, agent)) as client:
            try:
                found = await client.read_resource(f"ultramon://agents/{name}")
            except MCPError as error:
                return str(error)
            return json.loads(found.contents[0].text)["agentId"]

    assert asyncio.run(read(SESSION, child)) == child
    assert "may not look at agent session" in asyncio.run(read(child, SESSION))
    assert "may not look at agent nobody" in asyncio.run(read(SESSION, "nobody"))
    assert "agentId" not in asyncio.run(read(SESSION, "..%2Fx"))


# --- whose call it is


def finder(backend, monkeypatch, agent=None, **environ):
    monkeypatch.delenv("CLAUDE_CODE_SESSION_ID", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return CallerFinder(backend, agent)


def test_the_caller_is_found_by_what_names_it(session, backend, monkeypatch):
    """An option, then ultramon's variable, then the client's; a hostile one names no agent."""
    assert finder(backend, monkeypatch, agent="sess")({}) == SESSION
    assert finder(backend, monkeypatch, CLAUDE_CODE_SESSION_ID=SESSION)({}) == SESSION
    assert finder(backend, monkeypatch, ULTRAMON_AGENT_ID="later")({}) == "later"
    named = finder(backend, monkeypatch, ULTRAMON_AGENT_ID="../x", CLAUDE_CODE_SESSION_ID=SESSION)
    assert named({}) == SESSION


def test_without_a_name_the_session_of_the_client_above_is_the_caller(
    session, backend, monkeypatch
):
    """A client that clears the environment still has started the server."""
    # This process stands for the client, so its child does for the server.
    code = "from ultramon.cli.mcp_caller import CallerFinder\n"
    code += "from ultramon import open_backend\nprint(CallerFinder(open_backend(), None)({}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(ULTRAMON_STATE_DIR=str(session.state), ULTRAMON_BACKEND=""),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{SESSION}\n"
    with pytest.raises(NoCaller, match="ULTRAMON_AGENT_ID"):
        finder(backend, monkeypatch)({})


def test_a_server_follows_its_client_through_a_clear(session, backend, monkeypatch):
    """Its variables name the session of its start; a resumed one has no tie but the process."""
    session.tool(50_000)
    find = finder(backend, monkeypatch, CLAUDE_CODE_SESSION_ID=SESSION)
    session.call("SessionEnd", reason="clear")
    HookedSession(session.path, "next").call("SessionStart", source="clear")
    assert find({}) == "next"
    other = HookedSession(session.path, "next")
    other.call("SessionEnd", reason="resume")
    assert find({}) == "next"
    HookedSession(session.path, "resumed").call("SessionStart", source="resume")
    assert find({}) == "resumed"


def test_the_call_of_a_subagent_is_its_own(session, backend, monkeypatch):
    """The client names each call, and the transcript that holds it says who made it."""
    find = finder(backend, monkeypatch, CLAUDE_CODE_SESSION_ID=SESSION)
    session.tool(20_000)
    for name in ("a1", "a2"):
        session.call("SubagentStart", name)
        session.tool(30_000, agent=name)
    session.reply(21_000, "toolu_main")
    session.reply(31_000, "toolu_sub", agent="a2")
    assert find({CALL_ID: "toolu_main"}) == SESSION
    assert find({CALL_ID: "toolu_sub"}) == f"{SESSION}.a2"
    assert find({}) == SESSION
    assert find({CALL_ID: ["toolu_sub"]}) == SESSION
    monkeypatch.setattr(mcp_caller, "_WAITS_SECONDS", (0.0,))
    with pytest.raises(NoCaller, match="no transcript says which: call again"):
        find({CALL_ID: "toolu_none"})
    shutil.rmtree(session.transcript.parent)
    assert find({CALL_ID: "toolu_none"}) == SESSION


CODEX_META = {
    "callId": "call_6",
    "x-codex-turn-metadata": {"thread_source": "subagent", "codex_version": "0.169.0"},
    "threadId": "01a20792-cd7c-7931-86b3-24948bbb846e",
    "sessionId": "01a20792-c517-7843-8088-c01488098101",
    "windowId": "01a20792-cd7c-7931-86b3-24948bbb846e:0",
    "itemId": "fc_6",
    "progressToken": 1,
}
"""Of a call by a subagent of Codex 0.169.0; the turn's other fields are left out."""


def test_codex_names_the_thread_that_calls(session, backend, monkeypatch):
    """It clears the server's environment, and says in each call whose it is."""
    find = finder(backend, monkeypatch, CLAUDE_CODE_SESSION_ID=SESSION)
    thread_id, session_id = CODEX_META["threadId"], CODEX_META["sessionId"]
    assert find(CODEX_META) == SESSION
    codex = HookedSession(session.path, session_id)
    codex.call("SessionStart", source="startup")
    codex.call("SubagentStart", thread_id)
    assert find(CODEX_META) == f"{session_id}.{thread_id}"
    assert find(CODEX_META | {"threadId": session_id}) == session_id
    assert find(CODEX_META | {"threadId": "../x"}) == SESSION
    assert find(CODEX_META | {"threadId": ["x"]}) == SESSION


# --- the command


def test_a_missing_extra_is_named(tmp_path):
    """As is an older version of the library, which lacks the module."""
    (tmp_path / "mcp.py").write_text("")
    done = run_process("host", "mcp", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert re.search(r"install .*\[mcp\]'", done.stderr)


@pytest.mark.parametrize(
    ("agent", "problem"),
    [("nobody", "no agent nobody"), ("se", "fits 2 agents"), (None, "no agent: nothing says")],
)
def test_an_unknown_caller_is_named_at_the_call(session, backend, monkeypatch, agent, problem):
    """The client's agent reads it; the server itself continues."""
    HookedSession(session.path, "second").call("SessionStart", source="startup")
    monkeypatch.delenv("CLAUDE_CODE_SESSION_ID", raising=False)
    server = make_server(agent_finder(backend, agent))

    async def ask():
        async with Client(server) as client:
            return outcome(await client.call_tool("context_status"))

    assert problem in asyncio.run(ask())


def test_the_lines_for_each_client_start_the_server():
    """What docs/mcp.md shows can be read by a client, and names one command."""
    page = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(json|toml)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for kind, text in blocks:
        found = json.loads(text) if kind == "json" else tomllib.loads(text)
        ((_, servers),) = found.items()
        server = servers["ultramon"]
        assert (server["command"], server["args"]) == ("ultramon", ["host", "mcp"])
