"""A session of the client in the Claude Agent SDK; a stand-in API serves the script."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, create_sdk_mcp_server, tool
from real_client.api import TURN, Api, Call, Refusal, Reply, Step, agent, marked
from real_client.client import MODEL, Client, one_at_a_time

from helpers.frameworks import Run
from ultramon import HandedOffError
from ultramon.integrations.claude_agent_sdk import ContextHooks

PACKAGE = "claude_agent_sdk"
IMPOSSIBLE = {"plain": "the SDK has no synchronous call"}
INNER = "inner"
OUTER_TOOL, INNER_TOOL = "mcp__own__look", "mcp__own__look_inside"


class ScriptedApi(Api):
    """Serves a script to the session and another one to its subagent."""

    def __init__(self, run: Run, in_background: bool, refusal: Refusal | None) -> None:
        super().__init__()
        self.run = run
        self.in_background = in_background
        self.refusal = refusal

    def choose_step(self, request: Any) -> Step:
        if request.kind != TURN:
            return super().choose_step(request)
        if self.refusal is not None:
            return self.refusal
        is_inner = request.conversation == INNER
        script = self.run.inner if is_inner else self.run.outer
        tokens, _output_tokens, calls_tool = script.next_turn(request.texts)
        if not calls_tool:
            return Reply(tokens, "done")
        calls = [Call(INNER_TOOL if is_inner else OUTER_TOOL, {})]
        if self.run.mode == "nested" and not is_inner and script.served == 1:
            (started,) = agent(tokens, INNER).calls
            where = {"run_in_background": self.in_background}
            calls.append(Call(started.tool, started.input | where))
        return Reply(tokens, calls=tuple(calls))


@contextmanager
def session(
    run: Run, *, in_background: bool = False, refusal: Refusal | None = None, **given: Any
) -> Any:
    """Give the options of a session that only the script answers."""
    with tempfile.TemporaryDirectory() as directory, one_at_a_time():
        api = ScriptedApi(run, in_background, refusal)
        try:
            client = Client(Path(directory), api)
            # It does not wait for its transcript: these sessions are not read from it.
            api.has_written = lambda _call: True
            yield ClaudeAgentOptions(
                model=MODEL,
                cwd=client.project,
                env=client.environment(),
                allowed_tools=[OUTER_TOOL, INNER_TOOL, "Agent"],
                mcp_servers={"own": create_sdk_mcp_server("own", tools=tools(run))},
                forward_subagent_text=True,
                setting_sources=[],
                **given,
            )
        finally:
            api.close()


def tools(run: Run) -> list[Any]:
    """Make the tools of the session and of its subagent."""

    @tool("look", "Look.", {})
    async def look(_given: Any) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": run.outer.look()}]}

    @tool("look_inside", "Look.", {})
    async def look_inside(_given: Any) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": run.inner.look()}]}

    return [look, look_inside]


def drive(run: Run) -> None:
    """Run the session in its mode to its end."""
    watched = ContextHooks(**run.adapter_choices())

    async def client(options: ClaudeAgentOptions) -> None:
        async with watched.client(options) as connected:
            await connected.query(marked("Go."))
            async for message in connected.receive_response():
                run.history += str(message)

    async def query(options: ClaudeAgentOptions) -> None:
        async for message in watched.query(prompt=marked("Go."), options=options):
            run.history += str(message)

    is_streaming = run.mode == "streaming"
    with session(run, include_partial_messages=is_streaming) as options:
        try:
            asyncio.run(query(options) if is_streaming else client(options))
        except HandedOffError as error:
            run.handoff_id = error.handoff.handoff_id
