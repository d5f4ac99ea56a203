"""Runs an agent of Agent Framework that ultramon watches; a script stands for the model."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
    UsageDetails,
    tool,
)

from ultramon import HandedOffError, open_backend
from ultramon.integrations import load
from ultramon.testing import FrameworkRun, ModelScript


class ScriptedClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Answers what a script says; layered as the framework's own clients are."""

    def __init__(self, script: ModelScript) -> None:
        super().__init__()
        self.script = script

    def _inner_get_response(
        self, *, messages: Any, stream: bool, options: Any, **_named: Any
    ) -> Any:
        tokens, output_tokens, calls_tool = self.script.next_turn([m.to_dict() for m in messages])
        if calls_tool:
            content = Content.from_function_call(f"call-{self.script.served}", "look", arguments={})
        else:
            content = Content.from_text("done")
        usage = UsageDetails(input_token_count=tokens, output_token_count=output_tokens)
        if not stream:
            return self._answer(content, usage)
        return ResponseStream(self._updates(content, usage), finalizer=ChatResponse.from_updates)

    async def _answer(self, content: Content, usage: UsageDetails) -> Any:
        message = Message("assistant", [content])
        return ChatResponse(messages=[message], usage_details=usage)

    async def _updates(self, content: Content, usage: UsageDetails) -> Any:
        yield ChatResponseUpdate(contents=[content], role="assistant")
        yield ChatResponseUpdate(contents=[Content.from_usage(usage)], role="assistant")


def make_agent(run: FrameworkRun, script: ModelScript) -> Agent[Any]:
    """Make an agent whose tool looks; in the mode ``nested`` its first call also runs another."""

    @tool
    async def look() -> str:
        """Look."""
        seen = script.look()
        if run.mode == "nested" and script is run.outer and not run.inner.served:
            watched = load("agent-framework")(**run.adapter_choices())
            try:
                await make_agent(run, run.inner).run("Go.", middleware=watched.for_run())
            except HandedOffError as error:
                return str(error)
        return seen

    return Agent(ScriptedClient(script), name="helper", tools=[look])


async def drive_agent(run: FrameworkRun) -> None:
    """Run the agent in its mode to its end."""
    agent = make_agent(run, run.outer)
    watched = load("agent-framework")(**run.adapter_choices())
    session = agent.create_session()
    options = {"session": session, "middleware": watched.for_run()}
    try:
        if run.mode == "streaming":
            stream = agent.run("Go.", stream=True, **options)
            async for _update in stream:
                pass
            await stream.get_final_response()
        else:
            await agent.run("Go.", **options)
    except HandedOffError as error:
        run.handoff_id = error.handoff.handoff_id
    run.history = str(session.to_dict())


if __name__ == "__main__":
    asyncio.run(drive_agent(FrameworkRun("plain", backend=open_backend())))
