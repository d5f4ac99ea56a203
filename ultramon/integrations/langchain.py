"""LangChain and LangGraph: a middleware for `create_agent`."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from inspect import signature
from types import MethodType
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, cast

from ultramon.errors import ConfigurationError
from ultramon.integrations.adapter import Adapter
from ultramon.integrations.langchain_callbacks import (
    ContextCallbackHandler,
    NestedAgents,
    is_watched_call,
)
from ultramon.integrations.message_texts import texts_in
from ultramon.integrations.requirements import missing_extra, refuse_older

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState
    from langchain.agents.middleware.types import PrivateStateAttr
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.config import get_config
    from langgraph.errors import GraphBubbleUp
    from langgraph.types import Command
    from langsmith.utils import tracing_is_enabled
except ImportError as error:
    raise missing_extra(error, "langchain", "langchain") from error
else:
    refuse_older("langchain")

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
    from typing import TypeVar, Unpack

    from langchain.agents.middleware import ModelRequest, ModelResponse, SummarizationMiddleware
    from langchain.agents.middleware.types import ToolCallRequest

    from ultramon.integrations.adapter import Choices, WatchedAgent
    from ultramon.monitor.monitor import ContextMonitor

    ToolResult = ToolMessage | Command[Any]
    Hook = TypeVar("Hook", bound=Callable[..., Coroutine[Any, Any, Any]])

__all__ = ["ContextCallbackHandler", "ContextMiddleware", "WatchedState", "trigger_tokens"]

_log = logging.getLogger("ultramon.integrations")


class WatchedState(AgentState[Any]):
    """What the middleware keeps in a thread: the id of its agent."""

    ultramon_agent: NotRequired[Annotated[str | None, PrivateStateAttr]]


class _AsyncHook:
    """An async hook of a middleware that `create_agent` calls in the event loop itself.

    `create_agent` wraps a hook in a span of LangSmith. Around a coroutine function the span takes
    two hops to a thread and a task, also where nothing is traced: 300 to 500 µs a call for both
    hooks. Around a function that returns a coroutine it takes 10. A program that traces when it
    makes its agent has whole spans.

    Args:
        function: The hook, a coroutine function.
    """

    def __init__(self, function: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, middleware: Any, owner: type) -> Any:
        if middleware is None:
            return self
        hook = MethodType(self._function, middleware)
        if tracing_is_enabled():
            return hook

        def begin(request: Any, handler: Any) -> Any:
            return hook(request, handler)

        # The span asks for it at each call.
        begin.__signature__ = signature(begin)  # type: ignore[attr-defined]
        return begin


def _in_loop(function: Hook) -> Hook:
    return cast("Hook", _AsyncHook(function))


class ContextMiddleware(AgentMiddleware[WatchedState, Any]):
    """Watches the agent of `create_agent`: ``middleware=[…, ContextMiddleware()]``, as the last.

    A run is an agent. With a checkpointer a thread is one: it waits between its turns. An agent
    that is called in a tool of another is its child: with a middleware of its own it can be told
    and ended, without one, as the subagents of a deep agent, it is only read.

    Args:
        monitor: The monitor of the outermost agent, already started; None = one is made.
        beside: The summarisation of the same agent: its trigger is the limit.
        choices: See `ultramon.integrations.adapter.Choices`.

    Attributes:
        adapter: Holds the agents and their monitors.

    Raises:
        ConfigurationError: A choice is not allowed.
    """

    state_schema = WatchedState

    def __init__(
        self,
        monitor: ContextMonitor | None = None,
        *,
        beside: SummarizationMiddleware | None = None,
        **choices: Unpack[Choices],
    ) -> None:
        super().__init__()
        self.tools = []
        if not (beside is None or hasattr(beside, "trigger")):
            raise ConfigurationError("beside", beside, "the agent's SummarizationMiddleware")
        trigger = None if beside is None else trigger_tokens(beside)
        self.adapter = Adapter("LangChain", monitor, trigger_tokens=trigger, **choices)
        if beside is not None and not beside.trigger:
            _log.warning("the SummarizationMiddleware has no trigger: it never summarises")

    def before_agent(self, state: WatchedState, runtime: Any) -> dict[str, Any] | None:
        """Start the agent of this run, or continue that of its thread."""
        name = (get_config().get("metadata") or {}).get("lc_agent_name")
        agent = self.adapter.begin(state.get("ultramon_agent"), name=name)
        if agent.monitor is None:
            return {"ultramon_agent": None} if state.get("ultramon_agent") else None
        agent.can_wait = _is_thread()
        return {"ultramon_agent": agent.monitor.agent_id}

    def after_agent(self, state: WatchedState, runtime: Any) -> None:
        """End the agent; that of a thread waits."""
        agent = self._agent(state)
        self.adapter.finish(agent, goes_on=_is_thread() and not agent.is_child)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | AIMessage:
        """Add the facts, call the model, read what it used; or answer for it, to end the run."""
        agent, request = self._prepare(request)
        if agent.should_end:
            return _last_reply(agent)
        with _called(agent):
            response = handler(request)
        _read(agent, request, response)
        return response

    @_in_loop
    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any] | AIMessage:
        """Do the same in an event loop."""
        agent, request = self._prepare(request)
        if agent.should_end:
            return await asyncio.to_thread(_last_reply, agent)
        with _called(agent):
            response = await handler(request)
        _read(agent, request, response)
        return response

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]
    ) -> ToolResult:
        """Run a tool as this agent's, and count what it brings."""
        agent = self._agent(request.state)
        agent.open_calls = max(0, agent.open_calls - 1)
        agent.resume()
        nested = NestedAgents(self.adapter, agent)
        nested.attach(request.runtime.config, in_loop=False)
        goes_on = False
        try:
            with agent.inside():
                result = handler(request)
        except BaseException as error:
            goes_on = self._failed(agent, error)
            raise
        finally:
            nested.finish(goes_on=goes_on)
            _end_tool(agent, goes_on=goes_on)
        return _counted(agent, result)

    @_in_loop
    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        """Do the same in an event loop."""
        agent = self._agent(request.state)
        agent.open_calls = max(0, agent.open_calls - 1)
        agent.resume()
        nested = NestedAgents(self.adapter, agent)
        nested.attach(request.runtime.config, in_loop=True)
        goes_on = False
        try:
            with agent.inside():
                result = await handler(request)
        except BaseException as error:
            goes_on = self._failed(agent, error)
            raise
        finally:
            if nested.agents:
                await asyncio.to_thread(nested.finish, goes_on=goes_on)
            _end_tool(agent, goes_on=goes_on)
        return _counted(agent, result)

    def _failed(self, agent: WatchedAgent, error: BaseException) -> bool:
        """Note what a tool raised; return whether the run only stops until a person answers."""
        # A graph that stops for a person's answer raises this: no failure.
        if isinstance(error, GraphBubbleUp):
            self.adapter.finish(agent, goes_on=True)
            return True
        agent.failed(error)
        return False

    def _agent(self, state: Any) -> WatchedAgent:
        agent_id = state.get("ultramon_agent")
        if not agent_id:
            return self.adapter.nobody
        # A run that was interrupted may continue in another process.
        agent = self.adapter.get(agent_id)
        if agent is None or agent.is_resting:
            agent = self.adapter.begin(agent_id)
            agent.can_wait = _is_thread()
        return agent

    def _prepare(self, request: ModelRequest[Any]) -> tuple[WatchedAgent, ModelRequest[Any]]:
        agent, model = self._agent(request.state), request.model
        agent.summarised(_summary_id(agent.unseen(request.messages)))
        if agent.should_end:
            return agent, request
        name = getattr(model, "model_name", None) or getattr(model, "model", None)
        window = (getattr(model, "profile", None) or {}).get("max_input_tokens")
        note = agent.before_call(name if isinstance(name, str) else None, window)
        if note is None:
            return agent, request
        return agent, request.override(messages=[*request.messages, HumanMessage(note)])


def _is_thread() -> bool:
    return bool((get_config().get("configurable") or {}).get("thread_id"))


@contextmanager
def _called(agent: WatchedAgent) -> Iterator[None]:
    """Note that the model is called by an agent with a middleware, and what that raises."""
    token = is_watched_call.set(True)
    try:
        yield
    except BaseException as error:
        agent.failed(error)
        raise
    finally:
        is_watched_call.reset(token)


def _read(agent: WatchedAgent, request: ModelRequest[Any], response: ModelResponse[Any]) -> None:
    """Read what a call used; a person may be asked before the tools that the reply calls."""
    reply = response.result

    def read_texts() -> Iterator[str]:
        return texts_in([request.system_prompt, *request.messages, *reply])

    # Not the list: what reads any framework's response would first look for what a list is.
    answer = next((one for one in reversed(reply) if isinstance(one, AIMessage)), None)
    agent.after_call(answer, read_texts)
    agent.open_calls = sum(len(getattr(message, "tool_calls", ())) for message in reply)
    if agent.open_calls and agent.can_wait:
        agent.pause()


def _end_tool(agent: WatchedAgent, *, goes_on: bool) -> None:
    """Where others of its reply were not called, a person is asked about them."""
    if agent.can_wait and agent.open_calls and not agent.running_tools and not goes_on:
        agent.pause()


def _last_reply(agent: WatchedAgent) -> AIMessage:
    """Hand off; a reply that calls no tool ends the run."""
    text = agent.last_reply()
    assert agent.handoff is not None
    return AIMessage(text, additional_kwargs={"ultramon_handoff_id": agent.handoff.handoff_id})


def _summary_id(messages: Sequence[Any]) -> str | None:
    for message in messages:
        if message.additional_kwargs.get("lc_source") == "summarization":
            return str(message.id)
    return None


def _counted(agent: WatchedAgent, result: ToolResult) -> ToolResult:
    update = result.update if isinstance(result, Command) else None
    brought = update.get("messages") or () if isinstance(update, dict) else (result,)
    for message in brought:
        if isinstance(message, ToolMessage):
            agent.tool_returned(message.text, message.name or "tool")
    return result


def trigger_tokens(summarization: SummarizationMiddleware) -> int | None:
    """Return the tokens at which a summarisation surely begins; None without such a number."""
    given: Any = summarization.trigger
    clauses = given if isinstance(given, list) else [given] if given else []
    found = []
    for clause in clauses:
        wanted = clause if isinstance(clause, dict) else {clause[0]: clause[1]}
        # A clause with a second condition may never hold, so only tokens alone count.
        if set(wanted) == {"tokens"}:
            found.append(int(wanted["tokens"]))
        elif set(wanted) == {"fraction"}:
            profile = getattr(summarization.model, "profile", None) or {}
            found.append(int(profile["max_input_tokens"] * wanted["fraction"]))
    return min(found, default=None)
