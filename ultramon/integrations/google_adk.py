"""Google ADK: a plugin for an application, which sees every agent in it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from ultramon.integrations.adapter import Adapter, missing_extra

try:
    from google.adk.models import LlmResponse
    from google.adk.plugins import BasePlugin
    from google.genai.types import Content, Part
except ModuleNotFoundError as error:
    raise missing_extra(error, "google", "google-adk") from error

if TYPE_CHECKING:
    from typing import Unpack

    from ultramon.integrations.adapter import Choices, WatchedAgent
    from ultramon.monitor.monitor import ContextMonitor


class ContextPlugin(BasePlugin):  # type: ignore[misc, unused-ignore]
    """Watches the agents of an application: ``App(…, plugins=[ContextPlugin()])``.

    The first agent of a session that calls a model is its agent, which waits between the turns;
    further ones are its children, and so are those of an `AgentTool`.

    Args:
        monitor: The monitor of the outermost agent, already started; None = one is made.
        choices: See `ultramon.integrations.adapter.Choices`.

    Attributes:
        adapter: Holds the agents and their monitors.

    Raises:
        ConfigurationError: A choice is not allowed.
    """

    def __init__(self, monitor: ContextMonitor | None = None, **choices: Unpack[Choices]) -> None:
        super().__init__("ultramon")
        self.adapter = Adapter("Google ADK", monitor, **choices)
        self._sessions: dict[str, dict[str, WatchedAgent]] = {}
        self._lock = threading.Lock()

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> Any:
        """Add the facts to what is sent, or answer for the model, to end the run."""
        agent = await self._agent(callback_context)
        agent.summarised(_summary_id(callback_context.session.events))
        if agent.should_end or agent.handoff is not None:
            text = await asyncio.to_thread(agent.last_reply)
            assert agent.handoff is not None
            return LlmResponse(
                content=Content(role="model", parts=[Part(text=text)]),
                custom_metadata={"ultramon_handoff_id": agent.handoff.handoff_id},
            )
        note = agent.before_call(llm_request.model)
        if note is not None:
            llm_request.contents.append(Content(role="user", parts=[Part(text=note)]))
        return None

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
        """Read what the call used; the parts of a stream come before the whole."""
        if not llm_response.partial:
            (await self._agent(callback_context)).after_call(llm_response)

    async def on_model_error_callback(self, *, callback_context: Any, error: Any, **_: Any) -> None:
        """Learn the limit from a request that was too long."""
        (await self._agent(callback_context)).failed(error)

    async def before_tool_callback(self, *, tool_context: Any, **_: Any) -> None:
        """Run a tool as this agent's; each runs in a task of its own."""
        agent = await self._agent(tool_context)
        agent.running_tools += 1
        agent.make_current()

    async def after_tool_callback(
        self, *, tool: Any, tool_context: Any, result: Any, **_: Any
    ) -> None:
        """Count what the tool brought."""
        agent = await self._agent(tool_context)
        agent.running_tools -= 1
        agent.tool_returned(str(result), tool.name)

    async def on_tool_error_callback(self, *, tool_context: Any, error: Any, **_: Any) -> None:
        """Note that a tool raised."""
        agent = await self._agent(tool_context)
        agent.running_tools -= 1
        agent.failed(error)

    async def after_run_callback(self, *, invocation_context: Any) -> None:
        """Let the agents of the session wait; those of a tool end."""
        await asyncio.to_thread(self._finish, invocation_context.session.id)

    async def on_run_error_callback(self, *, invocation_context: Any, **_: Any) -> None:
        """End the agents of a run that raised."""
        await asyncio.to_thread(self._finish, invocation_context.session.id)

    async def close(self) -> None:
        """End all agents, with the runner."""
        await asyncio.to_thread(self.adapter.close)

    async def _agent(self, context: Any) -> WatchedAgent:
        agent = self._sessions.get(context.session.id, {}).get(context.agent_name)
        if agent is None or agent.is_resting:
            agent = await asyncio.to_thread(self._begin, context.session.id, context.agent_name)
        return agent

    def _begin(self, session_id: str, name: str) -> WatchedAgent:
        with self._lock:
            agents = self._sessions.setdefault(session_id, {})
            known = agents.get(name)
            first = next(iter(agents.values()), known)
            agent_id = None if known is None or known.monitor is None else known.monitor.agent_id
            if first is None or first is known:
                agent = self.adapter.begin(agent_id, name=name)
            else:
                with first.inside():
                    agent = self.adapter.begin(agent_id, name=name)
            agents[name] = agent
        return agent

    def _finish(self, session_id: str) -> None:
        with self._lock:
            agents = self._sessions.pop(session_id, {})
            is_tool = next((agent.is_child for agent in agents.values()), False)
            for name, agent in agents.items():
                self.adapter.finish(agent, goes_on=not is_tool)
                if agent.is_resting:
                    self._sessions.setdefault(session_id, {})[name] = agent


def _summary_id(events: list[Any]) -> str | None:
    for event in reversed(events):
        if event.actions and event.actions.compaction:
            return str(event.id)
    return None
