"""An agent of `create_agent` with the fake model that langchain-core ships, given usage."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool

from helpers.frameworks import Run, Script
from ultramon.integrations.langchain import ContextMiddleware

PACKAGE = "langchain"


class ServedModel(BaseChatModel):
    """Serves a script, as one message or as a stream whose last chunk carries the usage."""

    script: Any
    tool_name: str = "look"

    @property
    def _llm_type(self) -> str:
        return "served"

    def bind_tools(self, tools: Any, **_kwargs: Any) -> ServedModel:
        return self

    def _reply(self, messages: Any) -> dict[str, Any]:
        tokens, output_tokens, calls_tool = self.script.next_turn(messages)
        call = {"name": self.tool_name, "args": {}, "id": f"call-{self.script.served}"}
        total = tokens + output_tokens
        return {
            "content": "looking" if calls_tool else "done",
            "tool_calls": [call] if calls_tool else [],
            "usage_metadata": {
                "input_tokens": tokens,
                "output_tokens": output_tokens,
                "total_tokens": total,
            },
        }

    def _generate(self, messages: Any, *_args: Any, **_kwargs: Any) -> ChatResult:
        message = AIMessage(**self._reply(messages))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, messages: Any, *_args: Any, **_kwargs: Any) -> Any:
        reply = self._reply(messages)
        for word in reply.pop("content"):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        chunks = [
            {"name": call["name"], "args": "{}", "id": call["id"], "index": 0}
            for call in reply.pop("tool_calls")
        ]
        last = AIMessageChunk(content="", tool_call_chunks=chunks, **reply)
        yield ChatGenerationChunk(message=last)


def make_agent(run: Run, script: Script, watched: ContextMiddleware | None, **given: Any) -> Any:
    """Make an agent whose tool looks; in the mode ``nested`` the tool of the outer one works."""

    @tool
    def look() -> str:
        """Look."""
        return script.look()

    @tool
    def work() -> str:
        """Have another agent work."""
        seen = script.look()
        if not run.inner.served:
            own = watched and ContextMiddleware(**run.adapter_choices())
            inner = make_agent(run, run.inner, own)
            inner.invoke({"messages": [("user", "Go.")]})
        return seen

    is_outer = run.mode == "nested" and script is run.outer
    tools = [work if is_outer else look]
    return create_agent(
        ServedModel(script=script, tool_name=tools[0].name),
        tools,
        middleware=[*given.pop("before", ()), *([watched] if watched else ())],
        **given,
    )


def drive(run: Run) -> None:
    """Run the agent in its mode to its end."""
    agent = make_agent(run, run.outer, ContextMiddleware(**run.adapter_choices()))
    question = {"messages": [("user", "Go.")]}
    if run.mode == "async":
        result = asyncio.run(agent.ainvoke(question))
    elif run.mode == "streaming":
        state: dict[str, Any] = {}
        for kind, part in agent.stream(question, stream_mode=["messages", "values"]):
            if kind == "values":
                state = part
        result = state
    else:
        result = agent.invoke(question)
    run.history = str(result["messages"])
    run.handoff_id = result["messages"][-1].additional_kwargs.get("ultramon_handoff_id")
