"""An agent of the OpenAI Agents SDK with a model of its own kind; the SDK ships no double."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseUsage,
)

from helpers.frameworks import Run, Script
from ultramon import HandedOffError
from ultramon.integrations.openai_agents import ContextHooks

PACKAGE = "agents"


class ServedModel(Model):
    """Serves a script."""

    def __init__(self, script: Script, *first_calls: str) -> None:
        self.script = script
        self.first_calls = first_calls

    def _reply(self, request: Any) -> tuple[list[Any], int, int]:
        tokens, output_tokens, calls_tool = self.script.next_turn(request)
        number = f"{id(self.script)}-{self.script.served}"
        if calls_tool:
            names = ["look", *(self.first_calls if self.script.served == 1 else ())]
            calls = [
                ResponseFunctionToolCall(
                    arguments='{"input": "Go."}' if name != "look" else "{}",
                    call_id=f"{number}-{name}",
                    name=name,
                    type="function_call",
                )
                for name in names
            ]
            return calls, tokens, output_tokens
        text = ResponseOutputText(annotations=[], text="done", type="output_text")
        message = ResponseOutputMessage(
            id=number, content=[text], role="assistant", status="completed", type="message"
        )
        return [message], tokens, output_tokens

    async def get_response(self, *_given: Any, input: Any, **_named: Any) -> Any:
        output, tokens, output_tokens = self._reply(input)
        usage = Usage(1, tokens, None, output_tokens, None, tokens + output_tokens)
        return ModelResponse(output=output, usage=usage, response_id=None)

    async def stream_response(self, _system: Any, input: Any, *_given: Any, **_named: Any) -> Any:
        output, tokens, output_tokens = self._reply(input)
        usage = ResponseUsage(
            input_tokens=tokens,
            output_tokens=output_tokens,
            total_tokens=tokens + output_tokens,
            input_tokens_details={"cached_tokens": 0, "cache_write_tokens": 0},
            output_tokens_details={"reasoning_tokens": 0},
        )
        response = Response(
            id="r",
            created_at=0,
            model="served",
            object="response",
            output=output,
            parallel_tool_calls=False,
            tool_choice="auto",
            tools=[],
            usage=usage,
        )
        yield ResponseCompletedEvent(
            response=response, sequence_number=0, type="response.completed"
        )


def make_agent(run: Run, script: Script, watched: ContextHooks) -> Agent[Any]:
    """Make an agent whose tool looks; in the mode ``nested`` its first call also runs another."""

    @function_tool
    def look() -> str:
        """Look."""
        return script.look()

    if run.mode != "nested" or script is run.inner:
        return Agent("helper", model=ServedModel(script), tools=[look])
    inner = watched.as_tool(make_agent(run, run.inner, watched), "inner", "Works.")
    return Agent("lead", model=ServedModel(script, "inner"), tools=[look, inner])


def drive(run: Run) -> None:
    """Run the agent in its mode to its end."""
    watched = ContextHooks(**run.adapter_choices())
    agent = make_agent(run, run.outer, watched)
    options: Any = watched.options(RunConfig(tracing_disabled=True))

    async def stream() -> Any:
        result = Runner.run_streamed(agent, "Go.", **options)
        async for _event in result.stream_events():
            pass
        return result

    try:
        if run.mode == "streaming":
            result = asyncio.run(stream())
        elif run.mode == "async":
            result = asyncio.run(Runner.run(agent, "Go.", **options))
        else:
            # Without a loop it makes one, and leaves it open.
            with asyncio.Runner() as loop:
                asyncio.set_event_loop(loop.get_loop())
                result = Runner.run_sync(agent, "Go.", **options)
    except HandedOffError as error:
        run.handoff_id = error.handoff.handoff_id
    else:
        run.history = str(result.to_input_list())
