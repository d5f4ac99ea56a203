"""An agent of the Google ADK with a model of its own kind."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai.types import Content, GenerateContentResponseUsageMetadata, Part
from pydantic import Field

from helpers.frameworks import Run, Script
from ultramon.integrations.google_adk import ContextPlugin

PACKAGE = "google"
GO = Content(role="user", parts=[Part(text="Go.")])


class ServedModel(BaseLlm):
    """Serves a script; a stream has parts before the whole."""

    model: str = "served"
    script: Any
    first_calls: tuple[str, ...] = ()
    arguments: dict[str, Any] = Field(default_factory=lambda: {"inner": {"request": "Go."}})

    @property
    def capabilities(self) -> Any:
        from google.adk.models import LlmCapabilities  # older versions have none, and do not ask

        return LlmCapabilities()

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        tokens, output_tokens, calls_tool = self.script.next_turn(llm_request.contents)
        parts = [Part(text="done")]
        if calls_tool:
            names = ["look", *(self.first_calls if self.script.served == 1 else ())]
            parts = [
                Part.from_function_call(name=name, args=self.arguments.get(name, {}))
                for name in names
            ]
        elif stream:
            yield LlmResponse(content=Content(role="model", parts=[Part(text="do")]), partial=True)
        usage = GenerateContentResponseUsageMetadata(
            prompt_token_count=tokens,
            candidates_token_count=output_tokens,
            total_token_count=tokens + output_tokens,
        )
        yield LlmResponse(content=Content(role="model", parts=parts), usage_metadata=usage)


def make_agent(run: Run, script: Script, name: str = "helper") -> LlmAgent:
    """Make an agent whose tool looks; in the mode ``nested`` its first call also runs another."""

    def look() -> str:
        """Look."""
        return script.look()

    if run.mode != "nested" or script is run.inner:
        return LlmAgent(name=name, model=ServedModel(script=script), tools=[look])
    inner = AgentTool(make_agent(run, run.inner, "inner"))
    model = ServedModel(script=script, first_calls=("inner",))
    return LlmAgent(name="lead", model=model, tools=[look, inner])


def make_runner(agent: Any, plugin: ContextPlugin, **given: Any) -> InMemoryRunner:
    """Make the runner of an application, with the session that the tests use."""
    app = App(name="tests", root_agent=agent, plugins=[plugin], **given)
    runner = InMemoryRunner(app=app)
    asyncio.run(
        runner.session_service.create_session(app_name="tests", user_id="u", session_id="s")
    )
    return runner


def drive(run: Run) -> None:
    """Run the agent in its mode to its end."""
    # `AgentTool` still gives the runner of its agent what the runner calls deprecated.
    warnings.filterwarnings("ignore", "The `plugins` argument", DeprecationWarning)
    plugin = ContextPlugin(**run.adapter_choices())
    runner = make_runner(make_agent(run, run.outer), plugin)
    streaming = StreamingMode.SSE if run.mode == "streaming" else StreamingMode.NONE
    given: Any = {
        "user_id": "u",
        "session_id": "s",
        "new_message": GO,
        "run_config": RunConfig(streaming_mode=streaming),
    }

    async def work() -> list[Any]:
        events = [event async for event in runner.run_async(**given)]
        await runner.close()
        return events

    if run.mode == "plain":
        events = list(runner.run(**given))
        asyncio.run(runner.close())
    else:
        events = asyncio.run(work())
    run.history = str([event.content for event in events])
    run.handoff_id = (events[-1].custom_metadata or {}).get("ultramon_handoff_id")
