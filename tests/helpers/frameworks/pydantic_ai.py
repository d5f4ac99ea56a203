"""An agent of pydantic-ai with its own FunctionModel; streams carry a usage as a provider's do."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel, FunctionStreamedResponse
from pydantic_ai.usage import RequestUsage

from helpers.frameworks import Run, Script
from ultramon import HandedOffError
from ultramon.integrations.pydantic_ai import ContextCapability

PACKAGE = "pydantic_ai"


class CountedStream(FunctionStreamedResponse):
    """A stream that ends with the provider's count instead of FunctionModel's estimate."""

    counted: RequestUsage

    async def _get_event_iterator(self) -> Any:
        async for event in super()._get_event_iterator():
            yield event
        self._usage = self.counted


class ServedModel(FunctionModel):
    """Serves a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.counts = RequestUsage()
        super().__init__(self.reply, stream_function=self.stream)

    def _count(self, messages: Any) -> bool:
        tokens, output_tokens, calls_tool = self.script.next_turn(messages)
        self.counts = RequestUsage(input_tokens=tokens, output_tokens=output_tokens)
        return calls_tool

    async def reply(self, messages: Any, _info: Any) -> ModelResponse:
        calls_tool = self._count(messages)
        part = ToolCallPart("look", {}) if calls_tool else TextPart("done")
        return ModelResponse(parts=[part], usage=self.counts)

    async def stream(self, messages: Any, _info: Any) -> Any:
        if self._count(messages):
            yield {0: DeltaToolCall(name="look", json_args="{}")}
        else:
            yield "do"
            yield "ne"

    @asynccontextmanager
    async def request_stream(self, *given: Any, **named: Any) -> Any:
        async with super().request_stream(*given, **named) as response:
            response.__class__ = CountedStream
            response.counted = self.counts
            yield response


def make_agent(run: Run, script: Script, watched: ContextCapability) -> Agent[Any, Any]:
    """Make an agent whose tool looks; in the mode ``nested`` its first call also runs another."""
    agent: Agent[Any, Any] = Agent(ServedModel(script), name="helper", capabilities=[watched])

    @agent.tool_plain
    async def look() -> str:
        seen = script.look()
        if run.mode == "nested" and script is run.outer and not run.inner.served:
            inner = make_agent(run, run.inner, ContextCapability(**run.adapter_choices()))
            try:
                await inner.run("Go.")
            except HandedOffError as error:
                return str(error)
        return seen

    return agent


def drive(run: Run) -> None:
    """Run the agent in its mode to its end."""
    agent = make_agent(run, run.outer, ContextCapability(**run.adapter_choices()))

    async def stream() -> Any:
        async with agent.run_stream("Go.") as result:
            async for _text in result.stream_text():
                pass
            return result

    try:
        if run.mode == "streaming":
            result: Any = asyncio.run(stream())
        elif run.mode == "async":
            result = asyncio.run(agent.run("Go."))
        else:
            with asyncio.Runner() as loop:
                asyncio.set_event_loop(loop.get_loop())
                result = agent.run_sync("Go.")
    except HandedOffError as error:
        run.handoff_id = error.handoff.handoff_id
    else:
        run.history = str(result.all_messages())
