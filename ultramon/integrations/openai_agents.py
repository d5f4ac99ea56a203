"""OpenAI Agents SDK: hooks and an input filter for each run, and agents as tools."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary

from ultramon.errors import ConfigurationError
from ultramon.handoff import HandedOffError
from ultramon.integrations.adapter import Adapter, current_agent
from ultramon.integrations.message_texts import texts_in
from ultramon.integrations.requirements import missing_extra, refuse_older

try:
    from agents import FunctionTool, MaxTurnsExceeded, RunConfig, RunHooks, RunState
    from agents.run import (
        AgentRunner,
        CallModelData,
        ModelInputData,
        get_default_agent_runner,
        set_default_agent_runner,
    )
    from agents.tool import default_tool_error_function
except ImportError as error:
    raise missing_extra(error, "agents", "openai-agents") from error
else:
    refuse_older("openai-agents")

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypedDict, Unpack

    from agents import Agent, ModelResponse, RunContextWrapper, Tool, ToolContext

    from ultramon.integrations.adapter import Choices, WatchedAgent
    from ultramon.monitor.monitor import ContextMonitor

    _Asked = WeakValueDictionary[tuple[str, str], WatchedAgent]

    class RunOptions(TypedDict):
        """What `ContextHooks.options` gives to one run."""

        hooks: RunHooks[Any]
        run_config: RunConfig


_log = logging.getLogger("ultramon.integrations")


class ContextHooks(RunHooks[Any]):
    """Watches the agents of runs: ``Runner.run(agent, question, **watched.options())``.

    ``hooks=watched`` does the same with defaults. Each agent of a run has a window: one that it
    hands over to is its child, and so is one that `as_tool` makes its tool. A run with a session
    or a conversation of the server is one of its turns: its agent waits after it.

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
        self._asked: _Asked = WeakValueDictionary()
        """Agents that wait for a person's answer, by the call that is asked for and their name."""
        self._own_sessions: WeakKeyDictionary[object, str] = WeakKeyDictionary()
        self._unseen: set[str] = set()
        _watch_ends()

    def options(
        self, run_config: RunConfig | None = None, *, conversation: str | None = None
    ) -> RunOptions:
        """Return the arguments of one run; each run needs its own, also one that is resumed.

        The run raises `HandedOffError` where ``on_return`` ends it, and `ConfigurationError` where
        an earlier run has had the same arguments.

        Args:
            run_config: Yours; its own input filter is applied first.
            conversation: Names the conversation, the same name in every process: its runs are one
                agent, which waits between them. None = that of the run's session or
                ``conversation_id``; without one the run is an agent.
        """
        # Another library may have set a runner of its own since.
        _watch_ends()
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
            # Each call of the tool is a run, and a run needs options of its own.
            options = self.options(config or context.run_config)
            watched = agent.as_tool(name, description, **given, **options)
            return await watched.on_invoke_tool(context, arguments)

        return replace(tool, on_invoke_tool=invoke)

    async def on_llm_start(self, *_given: Any, **_named: Any) -> None:
        """Refuse a run that has these hooks without what they need.

        Raises:
            ConfigurationError: Another runner than the SDK's made the run.
        """
        raise ConfigurationError("hooks", "ContextHooks()", "given as **watched.options()")

    def conversation(self, given: dict[str, Any]) -> str | None:
        """Return the name of the conversation that a run continues; None = it stands alone.

        Args:
            given: The arguments of the run.
        """
        if given.get("conversation_id"):
            return f"server {given['conversation_id']}"
        session = given.get("session")
        try:
            session_id = getattr(session, "session_id", None)
        except ValueError:  # it gets one with its first turn
            session_id = None
        path = str(getattr(session, "db_path", ""))
        if session is None:
            return None
        if path == ":memory:" or not session_id:
            # Another object of the same name is another conversation.
            try:
                return self._own_sessions.setdefault(session, str(uuid4()))
            except TypeError:  # it cannot be a key
                return None
        place = Path(path).resolve() if path else type(session).__name__
        return f"session {place} {session_id}"

    def say_unseen(self, name: str) -> None:
        """Log, once for each agent, that `Agent.as_tool` keeps it out of sight."""
        if name not in self._unseen:
            self._unseen.add(name)
            _log.warning(
                "agent %r runs as a tool of Agent.as_tool, which leaves it unwatched; "
                "watched.as_tool(agent, name, description) makes it a child",
                name,
            )

    def wait_for(self, calls: list[str], name: str, agent: WatchedAgent) -> None:
        """Remember the agent of a run that a person has been asked about."""
        for call_id in calls:
            self._asked[call_id, name] = agent

    def asked(self, calls: list[str], name: str) -> str | None:
        """Return the id of the agent that was asked about; None = none of these calls."""
        agents = [self._asked.pop((call_id, name), None) for call_id in calls]
        found = next(filter(None, agents), None)
        return None if found is None or found.monitor is None else found.monitor.agent_id


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
        self._resumed_calls: list[str] = []
        self._agents: dict[str, WatchedAgent] = {}
        self._has_begun = False
        self._is_over = False
        self._awaits_hooks = False
        self._request: tuple[Any, ...] = ()

    def begin(self, input_: object, given: dict[str, Any]) -> None:
        """Note the run that begins.

        Args:
            input_: What it is given: a state is that of a run which waited for a person.
            given: Its other arguments.

        Raises:
            ConfigurationError: An earlier run had these hooks.
        """
        if self._has_begun:
            raise ConfigurationError("options()", "used twice", "made anew for each run")
        self._has_begun = True
        if self._conversation is None:
            self._conversation = self._watched.conversation(given)
        if isinstance(input_, RunState):
            self._resumed_calls = _call_ids(input_.get_interruptions())

    def end(self, error: BaseException | None, asked: list[Any]) -> None:
        """End the agents of a run; blocks until that is stored.

        Args:
            error: What the run raised; None = nothing.
            asked: The tools for which a person's approval is needed: the run waits for it.
        """
        if self._is_over:
            return
        self._is_over = True
        calls = _call_ids(asked)
        first = next(iter(self._agents.values()), None)
        if error is not None and self._agents:
            next(reversed(self._agents.values())).failed(error)
        for name, agent in self._agents.items():
            agent.running_tools = 0
            if error is not None:
                agent.error = type(error)
            goes_on = bool(asked) or (agent is first and self._conversation is not None)
            self._adapter.finish(agent, goes_on=goes_on)
            if agent.is_resting:
                self._watched.wait_for(calls, name, agent)

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
            # A tool that is an agent, and is not watched, inherits this filter.
            self._watched.say_unseen(data.agent.name)
            return sent
        if self._awaits_hooks:
            raise ConfigurationError("hooks", None, "those of options(), with its run_config")
        self._awaits_hooks = True
        agent = await self._agent(data.agent.name)
        # A new request: whatever the hooks missed, the tools of the last turn have ended.
        agent.running_tools = 0
        # The tools of this turn run in copies of this context.
        agent.make_current()
        agent.summarised(_compaction_id(sent.input))
        if agent.should_end:
            record = await asyncio.to_thread(agent.hand_off)
            await asyncio.to_thread(self.end, None, [])
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
        self._request = (system_prompt, items)

    async def on_llm_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse
    ) -> None:
        """Read what the call used."""
        request = self._request
        watched = await self._agent(agent.name)
        watched.after_call(response, lambda: texts_in([*request, response.output]))

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
        watched.running_tools = max(0, watched.running_tools - 1)
        watched.tool_returned(result, tool.name)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        """End the agents of the run."""
        await asyncio.to_thread(self.end, None, [])

    async def _agent(self, name: str) -> WatchedAgent:
        agent = self._agents.get(name)
        if agent is None:
            known = self._watched.asked(self._resumed_calls, name)
            if not self._agents:
                if known is None and self._conversation is not None:
                    known = self._adapter.conversation_id(self._conversation)
                agent = await asyncio.to_thread(self._adapter.begin, known, name=name, alone=True)
            else:
                with next(reversed(self._agents.values())).inside():
                    agent = await asyncio.to_thread(self._adapter.begin, known, name=name)
            self._agents[name] = agent
        return agent


class _WatchedRunner(AgentRunner):
    """The runner of the process, which says to the hooks above how their run ended.

    The SDK has no hook for a run that raises, or that stops to ask a person.

    Args:
        inner: The runner that was there.
    """

    def __init__(self, inner: AgentRunner) -> None:
        super().__init__()
        self._inner = inner

    async def run(self, starting_agent: Any, input: Any, **given: Any) -> Any:
        run = _begin_run(input, given)
        if run is None:
            return await self._inner.run(starting_agent, input, **given)
        try:
            result = await self._inner.run(starting_agent, input, **given)
        except BaseException as error:
            await asyncio.to_thread(run.end, error, [])
            raise
        await asyncio.to_thread(run.end, None, result.interruptions)
        return result

    def run_sync(self, starting_agent: Any, input: Any, **given: Any) -> Any:
        run = _begin_run(input, given)
        if run is None:
            return self._inner.run_sync(starting_agent, input, **given)
        try:
            result = self._inner.run_sync(starting_agent, input, **given)
        except BaseException as error:
            run.end(error, [])
            raise
        run.end(None, result.interruptions)
        return result

    def run_streamed(self, starting_agent: Any, input: Any, **given: Any) -> Any:
        run = _begin_run(input, given)
        result = self._inner.run_streamed(starting_agent, input, **given)
        if run is not None and result.run_loop_task is not None:
            loop = asyncio.get_running_loop()

            # Called in the event loop, which must not wait for the store.
            def end(task: asyncio.Task[Any]) -> None:
                is_stopped = getattr(result, "_cancel_mode", "none") != "none"
                if task.cancelled() or (is_stopped and not task.exception()):
                    error: BaseException | None = asyncio.CancelledError()
                else:
                    error = task.exception()
                if error is None and not result.interruptions:
                    # No word, and no output: a stream keeps this one for its reader.
                    error = MaxTurnsExceeded("the stream has ended without an output")
                loop.run_in_executor(None, run.end, error, result.interruptions)

            result.run_loop_task.add_done_callback(end)
        return result


def _watch_ends() -> None:
    """Put the watched runner in front of the process's, unless it is there."""
    runner = get_default_agent_runner()
    if not isinstance(runner, _WatchedRunner):
        set_default_agent_runner(_WatchedRunner(runner))


def _begin_run(input_: object, given: dict[str, Any]) -> _Run | None:
    """Return what watches a run, None where nothing does; completes its arguments."""
    hooks = given.get("hooks")
    if isinstance(hooks, ContextHooks):
        given.update(hooks.options(given.get("run_config")))
        hooks = given["hooks"]
    if not isinstance(hooks, _Run):
        return None
    hooks.begin(input_, given)
    return hooks


def _call_ids(approvals: list[Any]) -> list[str]:
    raw = [approval.raw_item for approval in approvals]
    found = [one.get("call_id") if isinstance(one, dict) else one.call_id for one in raw]
    return [call_id for call_id in found if call_id]


def _compaction_id(items: Iterable[Any]) -> str | None:
    for item in items:
        if isinstance(item, dict) and item.get("type") == "compaction":
            return str(item.get("id"))
    return None


def _describe_failure(context: RunContextWrapper[Any], error: Exception) -> str:
    # The SDK's words ask the model to try again, which a handoff must not.
    if isinstance(error, HandedOffError):
        return str(error)
    return default_tool_error_function(context, error)
