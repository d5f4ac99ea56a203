"""OpenAI Agents SDK: hooks and an input filter for each run, and agents as tools."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ultramon.errors import ConfigurationError
from ultramon.handoff import HandedOffError
from ultramon.integrations.adapter import Adapter, current_agent, missing_extra

try:
    from agents import FunctionTool, RunConfig, RunHooks
    from agents.run import CallModelData, ModelInputData
    from agents.tool import default_tool_error_function
except ModuleNotFoundError as error:
    raise missing_extra(error, "agents", "openai-agents") from error

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypedDict, Unpack

    from agents import Agent, ModelResponse, RunContextWrapper, Tool, ToolContext

    from ultramon.integrations.adapter import Choices, WatchedAgent
    from ultramon.monitor.monitor import ContextMonitor

    class RunOptions(TypedDict):
        """What `ContextHooks.options` gives to one run."""

        hooks: RunHooks[Any]
        run_config: RunConfig


class ContextHooks:
    """Watches the agents of runs: ``Runner.run(agent, question, **watched.options())``.

    Each agent of a run has a window: one that it hands over to is its child, and so is one that
    `as_tool` makes its tool.

    Args:
        monitor: The monitor of the outermost agent, already started; None = one is made.
        choices: See `ultramon.integrations.adapter.Choices`.

    Attributes:
        adapter: Holds the agents and their monitors.

    Raises:
        ConfigurationError: A choice is not allowed.
    """

    def __init__(self, monitor: ContextMonitor | None = None, **choices: Unpack[Choices]) -> None:
        self.adapter = Adapter("OpenAI Agents", monitor, **choices)
        self._conversations: dict[str, str] = {}

    def options(
        self, run_config: RunConfig | None = None, *, conversation: str | None = None
    ) -> RunOptions:
        """Return the arguments of one run; each run needs its own.

        The run raises `HandedOffError` where ``on_return`` ends it.

        Args:
            run_config: Yours; its own input filter is applied first.
            conversation: Names the conversation, e.g. the session's id: its runs are one agent,
                which waits between them. None = the run is an agent.
        """
        config = run_config or RunConfig()
        run = _Run(self, config, conversation)
        return {"hooks": run, "run_config": replace(config, call_model_input_filter=run.filter)}

    def as_tool(
        self, agent: Agent[Any], name: str | None, description: str | None, **given: Any
    ) -> FunctionTool:
        """Return an agent as a tool; the SDK's `Agent.as_tool` leaves it unseen.

        Args:
            agent: The agent.
            name: Of the tool; None = the agent's.
            description: Of the tool.
            given: As for `Agent.as_tool`, without hooks.
        """
        config = given.pop("run_config", None)
        given.setdefault("failure_error_function", _describe_failure)
        tool = agent.as_tool(name, description, **given)

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            options = self.options(config or context.run_config)
            watched = agent.as_tool(name, description, **given, **options)
            return await watched.on_invoke_tool(context, arguments)

        return replace(tool, on_invoke_tool=invoke)

    def conversation(self, name: str | None) -> str | None:
        """Return the agent of a conversation; None for a new one."""
        return self._conversations.get(name or "")

    def keep(self, name: str | None, agent: WatchedAgent) -> None:
        """Remember the agent of a conversation."""
        if name is not None and agent.monitor is not None:
            self._conversations[name] = agent.monitor.agent_id


class _Run(RunHooks[Any]):
    """One run: its agents by name, the one in front last."""

    def __init__(self, watched: ContextHooks, config: RunConfig, conversation: str | None) -> None:
        self._watched = watched
        self._adapter = watched.adapter
        self._own_filter = config.call_model_input_filter
        # The configuration of the run whose tool this is comes with that run's filter.
        outer = getattr(self._own_filter, "__self__", None)
        if isinstance(outer, _Run):
            self._own_filter = outer._own_filter
        self._model = config.model
        self._conversation = conversation
        self._agents: dict[str, WatchedAgent] = {}
        self._awaits_hooks = False

    async def filter(self, data: CallModelData[Any]) -> ModelInputData:
        """Add the facts to what is sent, or end the run before it.

        Raises:
            HandedOffError: The agent should return, and its user wants the run to end then.
            ConfigurationError: The run was not given the hooks too.
        """
        sent = data.model_data
        if self._own_filter is not None:
            given = self._own_filter(data)
            sent = given if isinstance(given, ModelInputData) else await given
        if current_agent() in self._agents.values():
            return sent  # a tool that is an agent, and is not watched, inherits this filter
        if self._awaits_hooks:
            raise ConfigurationError("hooks", None, "those of options(), with its run_config")
        self._awaits_hooks = True
        agent = await self._agent(data.agent.name)
        agent.running_tools = 0
        # The tools of this turn run in copies of this context.
        agent.make_current()
        agent.summarised(_compaction_id(sent.input))
        if agent.should_end:
            record = await asyncio.to_thread(agent.hand_off)
            await self._finish()
            raise HandedOffError(record.agent_id, record)
        model = self._model or data.agent.model
        name = model if isinstance(model, str) else getattr(model, "model", None)
        note = agent.before_call(name)
        if note is None:
            return sent
        return replace(sent, input=[*sent.input, {"role": "developer", "content": note}])

    async def on_llm_start(
        self, context: Any, agent: Agent[Any], system_prompt: str | None, items: list[Any]
    ) -> None:
        """Note that the run has these hooks; the SDK calls the filter before them.

        Raises:
            ConfigurationError: The run was not given the configuration too.
        """
        if agent.name not in self._agents:
            raise ConfigurationError("run_config", None, "that of options(), with its hooks")
        self._awaits_hooks = False

    async def on_llm_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse
    ) -> None:
        """Read what the call used."""
        (await self._agent(agent.name)).after_call(response)

    async def on_tool_start(
        self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool
    ) -> None:
        """Let the tool reach the agent's monitor."""
        (await self._agent(agent.name)).running_tools += 1

    async def on_tool_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object
    ) -> None:
        """Count what the tool brought."""
        watched = await self._agent(agent.name)
        watched.running_tools -= 1
        watched.tool_returned(result, tool.name)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        """End the agents of the run."""
        await self._finish()

    async def _agent(self, name: str) -> WatchedAgent:
        agent = self._agents.get(name)
        if agent is None:
            known = self._watched.conversation(self._conversation)
            if not self._agents:
                agent = await asyncio.to_thread(self._adapter.begin, known, name=name)
                self._watched.keep(self._conversation, agent)
            else:
                with next(reversed(self._agents.values())).inside():
                    agent = await asyncio.to_thread(self._adapter.begin, name=name)
            self._agents[name] = agent
        return agent

    async def _finish(self) -> None:
        first = next(iter(self._agents.values()), None)
        for agent in self._agents.values():
            goes_on = agent is first and self._conversation is not None
            await asyncio.to_thread(self._adapter.finish, agent, goes_on=goes_on)


def _compaction_id(items: Iterable[Any]) -> str | None:
    for item in items:
        if isinstance(item, dict) and item.get("type") == "compaction":
            return str(item.get("id"))
    return None


def _describe_failure(context: RunContextWrapper[Any], error: Exception) -> str:
    if isinstance(error, HandedOffError):
        return str(error)
    return default_tool_error_function(context, error)
