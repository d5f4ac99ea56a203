"""LangChain and LangGraph: a middleware for `create_agent`, a callback handler for chains."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Self

from ultramon.errors import ConfigurationError
from ultramon.handoff import HandedOffError
from ultramon.integrations.adapter import Adapter, current_agent
from ultramon.integrations.message_texts import texts_in
from ultramon.integrations.requirements import missing_extra, refuse_older

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState
    from langchain.agents.middleware.types import PrivateStateAttr
    from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.config import get_config
    from langgraph.errors import GraphBubbleUp
    from langgraph.types import Command
except ImportError as error:
    raise missing_extra(error, "langchain", "langchain") from error
else:
    refuse_older("langchain")

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from typing import Unpack
    from uuid import UUID

    from langchain.agents.middleware import ModelRequest, ModelResponse, SummarizationMiddleware
    from langchain.agents.middleware.types import ToolCallRequest

    from ultramon.integrations.adapter import Choices, WatchedAgent
    from ultramon.monitor.monitor import ContextMonitor

    ToolResult = ToolMessage | Command[Any]

_log = logging.getLogger("ultramon.integrations")


_is_watched_call: ContextVar[bool] = ContextVar("ultramon_watched_call", default=False)
"""Whether the model is called by an agent that has a middleware of its own."""


class WatchedState(AgentState[Any]):
    """What the middleware keeps in a thread: the id of its agent."""

    ultramon_agent: NotRequired[Annotated[str | None, PrivateStateAttr]]


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
        """Start the agent of this run, or go on with that of its thread."""
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
        nested = _Nested(self.adapter, agent, request.runtime.config)
        nested.attach(_NestedModels(nested))
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

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        """Do the same in an event loop."""
        agent = self._agent(request.state)
        agent.open_calls = max(0, agent.open_calls - 1)
        agent.resume()
        nested = _Nested(self.adapter, agent, request.runtime.config)
        nested.attach(_AsyncNestedModels(nested))
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
        if isinstance(error, GraphBubbleUp):
            self.adapter.finish(agent, goes_on=True)
            return True
        agent.failed(error)
        return False

    def _agent(self, state: Any) -> WatchedAgent:
        agent_id = state.get("ultramon_agent")
        if not agent_id:
            return self.adapter.nobody
        # A run that was interrupted may go on in another process.
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


class _Nested:
    """The agents that run in one tool call of another, and have no middleware of their own.

    Args:
        adapter: Holds them.
        parent: The agent whose tool it is.
        config: Of the call; the runs in it inherit its callbacks.
    """

    def __init__(self, adapter: Adapter, parent: WatchedAgent, config: Any) -> None:
        self.agents: dict[str, WatchedAgent] = {}
        self._adapter = adapter
        self._parent = parent
        self._config = config
        self._path = str((config.get("metadata") or {}).get("langgraph_checkpoint_ns") or "")
        self._calls: dict[UUID, tuple[WatchedAgent, Any]] = {}

    def attach(self, handler: BaseCallbackHandler) -> None:
        """Have a handler see the models that are called in the tool."""
        if self._parent.active is None or not self._path:
            return
        callbacks = self._config.get("callbacks")
        if callbacks is None or isinstance(callbacks, list):
            self._config["callbacks"] = [*(callbacks or ()), handler]
        else:
            self._config["callbacks"] = callbacks.copy()
            self._config["callbacks"].add_handler(handler)

    def path_of(self, metadata: dict[str, Any] | None) -> str | None:
        """Return the graph that calls a model; None where it is none of these."""
        metadata = metadata or {}
        path = (metadata.get("langgraph_checkpoint_ns") or "").rpartition("|")[0]
        is_inside = path == self._path or path.startswith(f"{self._path}|")
        if not is_inside or _is_watched_call.get() or current_agent() is not self._parent:
            return None
        return None if metadata.get("lc_source") == "summarization" else str(path)

    def begin(self, path: str, run_id: UUID, messages: Any, metadata: dict[str, Any]) -> None:
        """Note a call; blocks where the agent is new."""
        agent = self._agent(path, metadata.get("lc_agent_name"))
        agent.before_call(metadata.get("ls_model_name"))
        self._calls[run_id] = agent, messages

    def _agent(self, path: str, name: str | None) -> WatchedAgent:
        agent = self.agents.get(path)
        if agent is None:
            above = path.rpartition("|")[0]
            parent = self.agents.get(above, self._parent)
            if parent.monitor is None:
                return self._adapter.nobody
            # A person's answer has the tool called again, for the same graph.
            agent_id = self._adapter.derived_id(parent.monitor.agent_id, path)
            with parent.inside():
                agent = self._adapter.begin(agent_id, name=name)
            agent.can_tell = False
            self.agents[path] = agent
        return agent

    def end(self, run_id: UUID, response: Any) -> None:
        """Read what a call used."""
        agent, messages = self._calls.pop(run_id, (None, None))
        if agent is not None:
            agent.after_call(response, lambda: texts_in([messages, response.generations]))

    def fail(self, run_id: UUID, error: BaseException) -> None:
        """Learn the limit from a call that was too long."""
        agent, _messages = self._calls.pop(run_id, (None, None))
        if agent is not None:
            agent.failed(error)

    def finish(self, *, goes_on: bool) -> None:
        """End the agents; those of a tool that asks a person wait."""
        for agent in reversed(self.agents.values()):
            self._adapter.finish(agent, goes_on=goes_on)


class _NestedModels(BaseCallbackHandler):
    """Shows the models that are called in a tool to its `_Nested`."""

    run_inline = True
    ignore_agent = ignore_chain = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, nested: _Nested) -> None:
        self._nested = nested

    def on_chat_model_start(self, *given: Any, run_id: UUID, **details: Any) -> None:
        path = self._nested.path_of(details.get("metadata"))
        if path is not None:
            self._nested.begin(path, run_id, given[1], details["metadata"])

    on_llm_start = on_chat_model_start

    def on_llm_end(self, response: Any, *, run_id: UUID, **_details: Any) -> None:
        self._nested.end(run_id, response)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_details: Any) -> None:
        self._nested.fail(run_id, error)


class _AsyncNestedModels(AsyncCallbackHandler):
    """Does the same in an event loop, which does not wait for a start."""

    run_inline = True
    ignore_agent = ignore_chain = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, nested: _Nested) -> None:
        self._nested = nested

    async def on_chat_model_start(self, *given: Any, run_id: UUID, **details: Any) -> None:
        path = self._nested.path_of(details.get("metadata"))
        if path is None:
            return
        call = path, run_id, given[1], details["metadata"]
        if path in self._nested.agents:
            self._nested.begin(*call)
        else:
            await asyncio.to_thread(self._nested.begin, *call)

    on_llm_start = on_chat_model_start

    async def on_llm_end(self, response: Any, *, run_id: UUID, **_details: Any) -> None:
        self._nested.end(run_id, response)

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **_details: Any) -> None:
        self._nested.fail(run_id, error)


class ContextCallbackHandler(BaseCallbackHandler):
    """Watches the models of a chain or graph: ``config={"callbacks": [handler]}``.

    One handler is one conversation: its agent begins with the first model call and ends with the
    ``with`` block, `close` or the process. A graph within a node or tool of another is a child. It
    reads and can end the run, by `HandedOffError`; it cannot add to a request.

    Args:
        monitor: The monitor of the conversation, already started; None = one is made.
        choices: See `ultramon.integrations.adapter.Choices`; ``tell`` and ``pins`` are for the
            middleware.

    Raises:
        ConfigurationError: A choice is not allowed.
    """

    def __init__(self, monitor: ContextMonitor | None = None, **choices: Unpack[Choices]) -> None:
        for name in ("tell", "pins"):
            if choices.get(name):
                allowed = "left to ContextMiddleware: callbacks only read"
                raise ConfigurationError(name, True, allowed)
        self.adapter = Adapter("LangChain", monitor, **choices)
        self.raise_error = self.adapter.on_return is not None
        self._agents: dict[str, WatchedAgent] = {}
        self._graphs: dict[UUID, str] = {}
        self._calls: dict[UUID, tuple[WatchedAgent, Any]] = {}

    def close(self) -> None:
        """End the agents of this conversation."""
        self.adapter.close()
        self._agents.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_details: object) -> None:
        for agent in self.adapter.agents:
            agent.error = kind
        self.close()

    def on_chain_start(self, *_given: Any, run_id: UUID, **details: Any) -> None:
        """Note where a nested graph may begin."""
        node = (details.get("metadata") or {}).get("langgraph_checkpoint_ns")
        if node:
            self._graphs[run_id] = node

    def on_chain_end(self, *_given: Any, run_id: UUID, **_details: Any) -> None:
        """End the agent of a nested graph."""
        node = self._graphs.pop(run_id, None)
        agent = self._agents.pop(node, None) if node else None
        if agent is not None:
            self.adapter.finish(agent)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_details: Any) -> None:
        """End it as failed."""
        node = self._graphs.get(run_id)
        agent = self._agents.get(node) if node else None
        if agent is not None and not isinstance(error, HandedOffError):
            agent.failed(error)
        self.on_chain_end(run_id=run_id)

    def on_chat_model_start(self, *given: Any, run_id: UUID, **details: Any) -> None:
        """Note a call, or end the run before it.

        Raises:
            HandedOffError: The agent should return, and its user wants the run to end then.
        """
        metadata = details.get("metadata") or {}
        if metadata.get("lc_source") == "summarization":
            return
        agent = self._agent((metadata.get("langgraph_checkpoint_ns") or "").rpartition("|")[0])
        if agent.should_end:
            record = agent.hand_off()
            self.adapter.finish(agent)
            raise HandedOffError(record.agent_id, record)
        agent.before_call(metadata.get("ls_model_name"))
        self._calls[run_id] = agent, given[1]

    on_llm_start = on_chat_model_start

    def on_llm_end(self, response: Any, *, run_id: UUID, **_details: Any) -> None:
        """Read what a call used."""
        agent, messages = self._calls.pop(run_id, (None, None))
        if agent is not None:
            agent.after_call(response, lambda: texts_in([messages, response.generations]))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_details: Any) -> None:
        """Learn the limit from a call that was too long."""
        agent, _messages = self._calls.pop(run_id, (None, None))
        if agent is not None:
            agent.failed(error)

    def _agent(self, path: str) -> WatchedAgent:
        agent = self._agents.get(path)
        if agent is None or not agent.active:
            if not path:
                agent = self.adapter.begin()
            else:
                with self._agent(path.rpartition("|")[0]).inside():
                    agent = self.adapter.begin()
            self._agents[path] = agent
        return agent


def _is_thread() -> bool:
    return bool((get_config().get("configurable") or {}).get("thread_id"))


@contextmanager
def _called(agent: WatchedAgent) -> Iterator[None]:
    """Note that the model is called by an agent with a middleware, and what that raises."""
    token = _is_watched_call.set(True)
    try:
        yield
    except BaseException as error:
        agent.failed(error)
        raise
    finally:
        _is_watched_call.reset(token)


def _read(agent: WatchedAgent, request: ModelRequest[Any], response: ModelResponse[Any]) -> None:
    """Read what a call used; a person may be asked before the tools that the reply calls."""
    reply = response.result

    def read_texts() -> Iterator[str]:
        return texts_in([request.system_prompt, *request.messages, *reply])

    agent.after_call(reply, read_texts)
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
        if set(wanted) == {"tokens"}:
            found.append(int(wanted["tokens"]))
        elif set(wanted) == {"fraction"}:
            profile = getattr(summarization.model, "profile", None) or {}
            found.append(int(profile["max_input_tokens"] * wanted["fraction"]))
    return min(found, default=None)
