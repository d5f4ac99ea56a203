"""LangChain callbacks: a handler for chains and graphs, and agents in a tool that are only read."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

from ultramon.errors import ConfigurationError
from ultramon.handoff import HandedOffError
from ultramon.integrations.adapter import Adapter, current_agent
from ultramon.integrations.message_texts import texts_in
from ultramon.integrations.requirements import missing_extra, refuse_older

try:
    from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
except ImportError as error:
    raise missing_extra(error, "langchain_core", "langchain") from error
else:
    refuse_older("langchain")

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack
    from uuid import UUID

    from ultramon.integrations.adapter import Choices, WatchedAgent
    from ultramon.monitor.monitor import ContextMonitor

is_watched_call: ContextVar[bool] = ContextVar("ultramon_watched_call", default=False)
"""Whether the model is called by an agent that has a middleware of its own."""


class _GraphAgents:
    """The agents of graphs, by the place of each in its run, and their calls under way.

    Attributes:
        agents: The agents that have begun.
        begins_again: Whether a call after the end of its graph's agent begins another one.
    """

    begins_again = True

    def __init__(self) -> None:
        self.agents: dict[str, WatchedAgent] = {}
        self._calls: dict[UUID, tuple[WatchedAgent, Any]] = {}
        # Nodes of a graph run in parallel threads; that of a nested one begins those above it.
        self._lock = threading.RLock()

    def agent(self, path: str, begin: Callable[[], WatchedAgent]) -> WatchedAgent:
        """Return the agent of a graph; the first one to ask begins it, and the others wait."""
        with self._lock:
            agent = self.agents.get(path)
            if agent is None or (self.begins_again and not agent.active):
                agent = self.agents[path] = begin()
            return agent

    def call(
        self, agent: WatchedAgent, run_id: UUID, messages: Any, metadata: dict[str, Any]
    ) -> None:
        """Note that a model is called."""
        agent.before_call(metadata.get("ls_model_name"))
        self._calls[run_id] = agent, messages

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


def _place_of(metadata: dict[str, Any]) -> str:
    return str(metadata.get("langgraph_checkpoint_ns") or "")


def _calling_graph(metadata: dict[str, Any]) -> str | None:
    """Return the graph that calls a model; None for the request of a summary.

    That one has a window of its own.
    """
    is_summary = metadata.get("lc_source") == "summarization"
    return None if is_summary else _above(_place_of(metadata))


def _above(path: str) -> str:
    return path.rpartition("|")[0]


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
        # LangChain only logs what a handler raises, unless the handler asks for more.
        self.raise_error = self.adapter.on_return is not None
        self._watched = _GraphAgents()
        self._graphs: dict[UUID, str] = {}

    def close(self) -> None:
        """End the agents of this conversation."""
        self.adapter.close()
        self._watched.agents.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_details: object) -> None:
        for agent in self.adapter.agents:
            agent.error = kind
        self.close()

    def on_chain_start(self, *_given: Any, run_id: UUID, **details: Any) -> None:
        """Note where a nested graph may begin."""
        node = _place_of(details.get("metadata") or {})
        if node:
            self._graphs[run_id] = node

    def on_chain_end(self, *_given: Any, run_id: UUID, **_details: Any) -> None:
        """End the agent of a nested graph."""
        node = self._graphs.pop(run_id, None)
        agent = self._watched.agents.pop(node, None) if node else None
        if agent is not None:
            self.adapter.finish(agent)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_details: Any) -> None:
        """End it as failed."""
        node = self._graphs.get(run_id)
        agent = self._watched.agents.get(node) if node else None
        # The end that this handler itself asked for is no failure.
        if agent is not None and not isinstance(error, HandedOffError):
            agent.failed(error)
        self.on_chain_end(run_id=run_id)

    def on_chat_model_start(self, *given: Any, run_id: UUID, **details: Any) -> None:
        """Note a call, or end the run before it.

        Raises:
            HandedOffError: The agent should return, and its user wants the run to end then.
        """
        metadata = details.get("metadata") or {}
        path = _calling_graph(metadata)
        if path is None:
            return
        agent = self._agent(path)
        if agent.should_end:
            record = agent.hand_off()
            self.adapter.finish(agent)
            raise HandedOffError(record.agent_id, record)
        self._watched.call(agent, run_id, given[1], metadata)

    on_llm_start = on_chat_model_start

    def on_llm_end(self, response: Any, *, run_id: UUID, **_details: Any) -> None:
        """Read what a call used."""
        self._watched.end(run_id, response)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_details: Any) -> None:
        """Learn the limit from a call that was too long."""
        self._watched.fail(run_id, error)

    def _agent(self, path: str) -> WatchedAgent:
        def begin() -> WatchedAgent:
            if not path:
                return self.adapter.begin()
            with self._agent(_above(path)).inside():
                return self.adapter.begin()

        return self._watched.agent(path, begin)


class NestedAgents(_GraphAgents):
    """The agents that run in one tool call of another, and have no middleware of their own.

    Args:
        adapter: Holds them.
        parent: The agent whose tool it is.
    """

    begins_again = False

    def __init__(self, adapter: Adapter, parent: WatchedAgent) -> None:
        super().__init__()
        self._adapter = adapter
        self._parent = parent
        self._path = ""

    def attach(self, config: Any, *, in_loop: bool) -> None:
        """See the models that are called in the tool.

        Args:
            config: Of the call; the runs in it inherit its callbacks. Not kept here: it would hold
                itself by its handler, and the request with it until a garbage collection.
            in_loop: Whether the tool runs in an event loop.
        """
        self._path = _place_of(config.get("metadata") or {})
        if self._parent.active is None or not self._path:
            return
        handler = _AsyncNestedModels(self) if in_loop else _NestedModels(self)
        callbacks = config.get("callbacks")
        if callbacks is None or isinstance(callbacks, list):
            config["callbacks"] = [*(callbacks or ()), handler]
        else:
            # A manager may serve other calls, which are none of this tool's.
            config["callbacks"] = callbacks.copy()
            config["callbacks"].add_handler(handler)

    def path_of(self, metadata: dict[str, Any] | None) -> str | None:
        """Return the graph that calls a model; None where it is none of these."""
        path = _calling_graph(metadata or {})
        if path is None or is_watched_call.get() or current_agent() is not self._parent:
            return None
        return path if path == self._path or path.startswith(f"{self._path}|") else None

    def begin(self, path: str, run_id: UUID, messages: Any, metadata: dict[str, Any]) -> None:
        """Note a call; blocks where the agent is new."""
        name = metadata.get("lc_agent_name")
        agent = self.agent(path, lambda: self._begin(path, name))
        self.call(agent, run_id, messages, metadata)

    def _begin(self, path: str, name: str | None) -> WatchedAgent:
        parent = self.agents.get(_above(path), self._parent)
        if parent.monitor is None:
            return self._adapter.nobody
        # A person's answer has the tool called again, for the same graph.
        agent_id = self._adapter.derived_id(parent.monitor.agent_id, path)
        with parent.inside():
            agent = self._adapter.begin(agent_id, name=name)
        # Callbacks only read, and can add nothing to a request.
        agent.can_tell = False
        return agent

    def finish(self, *, goes_on: bool) -> None:
        """End the agents; those of a tool that asks a person wait."""
        for agent in reversed(self.agents.values()):
            self._adapter.finish(agent, goes_on=goes_on)


class _NestedModels(BaseCallbackHandler):
    """Shows the models that are called in a tool to its `NestedAgents`."""

    run_inline = True
    ignore_agent = ignore_chain = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, nested: NestedAgents) -> None:
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

    def __init__(self, nested: NestedAgents) -> None:
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
