"""Google ADK: a plugin for an application, which sees every agent in it."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ultramon.integrations.adapter import Adapter
from ultramon.integrations.message_texts import shown, texts_in
from ultramon.integrations.requirements import missing_extra, refuse_older

try:
    from google.adk.models import LlmResponse
    from google.adk.plugins import BasePlugin
    from google.genai.types import Content, Part
except ImportError as error:
    raise missing_extra(error, "google", "google-adk") from error
else:
    refuse_older("google-adk")

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Unpack

    from ultramon.integrations.adapter import Choices, WatchedAgent
    from ultramon.monitor.monitor import ContextMonitor

    _Session = tuple[str, str, str]
    """Names of the application, the user and the session."""

_log = logging.getLogger("ultramon.integrations")

CLOSE_SECONDS = 4.0
"""How long `close` waits: the runner gives a plugin 5 s, and takes more for a failure."""


class ContextPlugin(BasePlugin):  # type: ignore[misc, unused-ignore]
    """Watches the agents of an application: ``App(…, plugins=[ContextPlugin()])``.

    The first agent of a session that calls a model is its agent, which waits between the turns;
    further ones are its children, and so are those of an `AgentTool`. Each comes back as the same
    agent by the names of application, user and session, in every process.

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
        self._sessions: dict[_Session, dict[str, WatchedAgent]] = {}
        """The agents of the sessions that are in a turn."""
        # The adapter ends an agent that waits for long; its name here must not keep it.
        self._waiting: WeakValueDictionary[tuple[_Session, str], WatchedAgent]
        self._waiting = WeakValueDictionary()
        self._lock = threading.Lock()

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> Any:
        """Add the facts to what is sent, or answer for the model, to end the run."""
        agent = await self._agent(callback_context)
        agent.summarised(_summary_id(agent.unseen(callback_context.session.events)))
        if agent.should_end or agent.handoff is not None:
            text = await asyncio.to_thread(agent.last_reply)
            assert agent.handoff is not None
            return LlmResponse(
                content=Content(role="model", parts=[Part(text=text)]),
                custom_metadata={"ultramon_handoff_id": agent.handoff.handoff_id},
            )
        agent.request = llm_request
        note = agent.before_call(llm_request.model)
        if note is not None:
            llm_request.contents.append(Content(role="user", parts=[Part(text=note)]))
        return None

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
        """Read what the call used; the parts of a stream come before the whole."""
        if llm_response.partial:
            return
        agent = await self._agent(callback_context)
        request, agent.request = agent.request, None

        def read_texts() -> Iterator[str]:
            config = getattr(request, "config", None)
            said = getattr(config, "system_instruction", None)
            return texts_in([said, *getattr(request, "contents", ()), llm_response.content])

        agent.after_call(llm_response, read_texts if request is not None else None)

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
        agent.running_tools = max(0, agent.running_tools - 1)
        agent.tool_returned(shown(result), tool.name)

    async def on_tool_error_callback(self, *, tool_context: Any, error: Any, **_: Any) -> None:
        """Note that a tool raised."""
        agent = await self._agent(tool_context)
        agent.running_tools = max(0, agent.running_tools - 1)
        agent.failed(error)

    async def after_run_callback(self, *, invocation_context: Any) -> None:
        """Let the agents of the session wait; those of a tool end."""
        await asyncio.to_thread(self._finish, _session_of(invocation_context), None)

    async def on_run_error_callback(self, *, invocation_context: Any, error: Any, **_: Any) -> None:
        """End the agents of a run that raised."""
        await asyncio.to_thread(self._finish, _session_of(invocation_context), error)

    async def close(self) -> None:
        """End all agents with the runner; after `CLOSE_SECONDS` the rest continues alone."""
        ending = asyncio.ensure_future(asyncio.to_thread(self.adapter.close))
        await asyncio.wait({ending}, timeout=CLOSE_SECONDS)
        if not ending.done():
            _log.warning("the store is slow: %d agents are still being ended", self._left())

    def _left(self) -> int:
        return len(self.adapter.agents)

    async def _agent(self, context: Any) -> WatchedAgent:
        session = _session_of(context)
        agent = self._sessions.get(session, {}).get(context.agent_name)
        if agent is None or agent.is_resting:
            is_new = all(event.author == "user" for event in context.session.events)
            agent = await asyncio.to_thread(self._begin, session, context.agent_name, is_new=is_new)
        return agent

    def _begin(self, session: _Session, name: str, *, is_new: bool) -> WatchedAgent:
        with self._lock:
            agents = self._sessions.setdefault(session, {})
            known = self._waiting.get((session, name))
            if known is not None and known.active:
                agent_id = known.active.agent_id
            elif agents:
                agent_id = self.adapter.derived_id(*session, name)
            else:
                agent_id = self.adapter.conversation_id(*session, name)
            begin = partial(self.adapter.begin, agent_id, name=name, alone=True, is_new=is_new)
            first = next(iter(agents.values()), None)
            if first is None:
                agent = begin()
            else:
                # Workflow agents call no model and have no window: the session's first one is the
                # parent.
                with first.inside():
                    agent = begin()
            agents[name] = agent
        return agent

    def _finish(self, session: _Session, error: BaseException | None) -> None:
        with self._lock:
            agents = self._sessions.pop(session, {})
        is_tool = next((agent.is_child for agent in agents.values()), False)
        for name, agent in agents.items():
            agent.running_tools = 0
            agent.request = None
            if error is not None and agent.error is None and agent.handoff is None:
                agent.failed(error)
            self.adapter.finish(agent, goes_on=not is_tool)
            if agent.is_resting:
                self._waiting[session, name] = agent


def _session_of(context: Any) -> _Session:
    session = context.session
    return session.app_name, session.user_id, session.id


def _summary_id(events: Sequence[Any]) -> str | None:
    for event in reversed(events):
        if event.actions and event.actions.compaction:
            return str(event.id)
    return None
