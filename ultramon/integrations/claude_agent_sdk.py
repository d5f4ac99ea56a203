"""Claude Agent SDK: clients and queries whose sessions are watched, and their subagents too."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ultramon.errors import UltramonError
from ultramon.handoff import HandedOffError
from ultramon.integrations.adapter import Adapter
from ultramon.integrations.requirements import missing_extra, refuse_older
from ultramon.system.environment import disabled

try:
    import claude_agent_sdk as sdk
    from anyio import Lock
    from anyio.to_thread import run_sync
except ImportError as error:
    raise missing_extra(error, "claude_agent_sdk", "claude-agent-sdk") from error
else:
    refuse_older("claude-agent-sdk")

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
    from typing import Unpack

    from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, Message, Transport

    from ultramon.integrations.adapter import Choices, WatchedAgent
    from ultramon.monitor.monitor import ContextMonitor

_STARTS = ("UserPromptSubmit", "SubagentStart")
_CALLS = ("PostToolUse", "PostToolUseFailure")
"""The hooks before a request, where something can be added to it or the run can be ended."""
_OWN_TOOLS = "mcp__.*"
_CALL_ID = "claudecode/toolUseId"
_LONE_TOOLS = frozenset(
    (
        *("Bash", "BashOutput", "Edit", "Glob", "Grep", "KillShell", "LS", "MultiEdit"),
        *("NotebookEdit", "NotebookRead", "Read", "TodoWrite", "WebFetch", "WebSearch", "Write"),
    )
)
"""Tools of the client that begin no subagent."""
_MAIN = "main"
"""The session itself among its agents; subagents have the ids that the client gives them."""


class ContextHooks:
    """Watches sessions: ``async with watched.client(options) as client`` or ``watched.query(…)``.

    A session is an agent, which waits between its turns; one that is resumed is the same agent
    with its last reading. A subagent is its child.

    Args:
        monitor: The monitor of the session, already started; None = one is made.
        choices: See `ultramon.integrations.adapter.Choices`.

    Attributes:
        adapter: Holds the agents and their monitors.

    Raises:
        ConfigurationError: A choice is not allowed.
    """

    def __init__(self, monitor: ContextMonitor | None = None, **choices: Unpack[Choices]) -> None:
        self.adapter = Adapter("Claude Agent SDK", monitor, keeps_texts=True, **choices)

    def client(
        self, options: ClaudeAgentOptions | None = None, transport: Transport | None = None
    ) -> ClaudeSDKClient:
        """Return a `ClaudeSDKClient` whose session ends with the connection.

        Its messages raise `HandedOffError` behind the result of a turn that ``on_return`` ended.

        Args:
            options: Yours; hooks of yours stay, and come first.
            transport: As for `ClaudeSDKClient`.
        """
        return _Client(_Session(self.adapter), options, transport)

    async def query(
        self,
        *,
        prompt: str | AsyncIterable[dict[str, Any]],
        options: ClaudeAgentOptions | None = None,
        transport: Transport | None = None,
    ) -> AsyncIterator[Message]:
        """Do what the SDK's `query` does; the arguments are the same.

        A program that raises in the loop, or leaves it before the result, has failed its agent.

        Raises:
            HandedOffError: ``on_return`` ended the turn; its result has been given.
        """
        session = _Session(self.adapter)
        reader = _current_task()
        messages = sdk.query(prompt=prompt, options=session.add_to(options), transport=transport)
        try:
            async with aclosing(cast("AsyncGenerator[Message]", messages)):
                try:
                    async for message in messages:
                        await session.read(message)
                        yield message
                except (GeneratorExit, asyncio.CancelledError) as stopped:
                    # A loop that ends closes what its tasks have left, and cancels that too.
                    if isinstance(stopped, GeneratorExit) or _current_task() is not reader:
                        session.left(_raised(reader))
                    raise
            session.check()
        except BaseException as error:
            if not session.is_left:
                session.failed(error)
            raise
        finally:
            await session.finish()


def _may_begin_subagents(options: ClaudeAgentOptions) -> bool:
    return not isinstance(options.tools, list) or not _LONE_TOOLS.issuperset(options.tools)


class LeftQueryError(UltramonError):
    """A program left `ContextHooks.query` before the result of its turn."""


def _current_task() -> asyncio.Task[Any] | None:
    with suppress(RuntimeError):  # another library's loop
        return asyncio.current_task()
    return None


def _raised(reader: asyncio.Task[Any] | None) -> BaseException | None:
    """Return what the task raised that read a query and has left it; None = nothing, or later."""
    if reader is None or not reader.done():
        return None
    return asyncio.CancelledError() if reader.cancelled() else reader.exception()


class _Client(sdk.ClaudeSDKClient):
    """A client that shows its session what it receives."""

    def __init__(
        self,
        session: _Session,
        options: ClaudeAgentOptions | None,
        transport: Transport | None,
    ) -> None:
        super().__init__(session.add_to(options), transport)
        self._session = session

    async def receive_messages(self) -> AsyncIterator[Message]:
        async for message in super().receive_messages():
            await self._session.read(message)
            yield message
            if isinstance(message, sdk.ResultMessage):
                self._session.check()

    async def receive_response(self) -> AsyncIterator[Message]:
        async for message in super().receive_response():
            yield message
        self._session.check()

    async def disconnect(self) -> None:
        try:
            await super().disconnect()
        finally:
            await self._session.finish()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if error is not None:
            self._session.failed(error)
        return await super().__aexit__(kind, error, trace)


class _Session:
    """One connection to the client, with the agents in it."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._agents: dict[str, WatchedAgent] = {}
        self._starting = Lock()
        self._children: dict[str, str] = {}
        """The call that started a subagent, and that subagent."""
        self._callers: dict[str, WatchedAgent] = {}
        """Running calls of the program's own tools."""
        self._tools: dict[str, str] = {}
        self._asks_who_calls = False
        self._only_reads = adapter.only_reads
        self.has_result = False
        self.is_left = False
        self._session_id: str | None = None
        self._model = ""
        self._windows: dict[str, int] = {}

    def add_to(self, given: ClaudeAgentOptions | None) -> ClaudeAgentOptions:
        """Return options with the hooks of this session behind those of the user."""
        options = given or sdk.ClaudeAgentOptions()
        if disabled():
            return options
        servers: Any = options.mcp_servers
        if isinstance(servers, dict):
            servers = {name: self._with_callers(server) for name, server in servers.items()}
        hooks: dict[Any, list[sdk.HookMatcher]] = dict(options.hooks or {})
        has_tools = servers != options.mcp_servers
        self._asks_who_calls = has_tools and _may_begin_subagents(options)
        for event, tools in self._needed_hooks():
            own = sdk.HookMatcher(matcher=tools, hooks=[cast("sdk.HookCallback", self._hook)])
            hooks[event] = [*hooks.get(event, ()), own]
        return replace(options, hooks=hooks, mcp_servers=servers)

    def _needed_hooks(self) -> Iterator[tuple[str, str | None]]:
        """Yield the hooks, and for which tools: the client waits for each, 0.3 ms of CPU here."""
        for event in _STARTS:
            yield event, None
        if self._asks_who_calls:
            yield "PreToolUse", _OWN_TOOLS
        if not self._only_reads:
            for event in _CALLS:
                yield event, None

    def _with_callers(self, server: Any) -> Any:
        instance = server.get("instance")
        layers = getattr(instance, "middleware", None)
        if layers is None:
            return server  # another process, or mcp 1, which does not say who calls
        shown = copy(instance)
        shown.middleware = [*layers, self._call_tool]
        return server | {"instance": shown}

    async def _call_tool(self, context: Any, call_next: Any) -> Any:
        """Let a tool of the program reach the monitor of the agent that calls it."""
        meta = (context.params or {}).get("_meta") or {}
        agent = self._callers.pop(meta.get(_CALL_ID, ""), None) or self._lone_agent()
        with agent.inside():
            return await call_next(context)

    def _lone_agent(self) -> WatchedAgent:
        """Return whose call it is that no hook has named."""
        is_lone = not self._asks_who_calls and len(self._agents) == 1
        return self._agents.get(_MAIN, self._adapter.nobody) if is_lone else self._adapter.nobody

    async def _agent(
        self, agent_id: str, name: str | None = None, *, in_new_turn: bool = False
    ) -> WatchedAgent:
        """Return an agent of the session, started where it has to be."""
        agent = self._agents.get(agent_id)
        if agent is not None and not (agent.is_resting or in_new_turn):
            return agent
        async with self._starting:
            # Another hook or message may have started it meanwhile.
            agent = self._agents.get(agent_id)
            if agent is not None and not (agent.is_resting or in_new_turn):
                return agent
            if agent_id != _MAIN:
                with self._agents.get(_MAIN, self._adapter.nobody).inside():
                    agent = await run_sync(partial(self._adapter.begin, name=name))
            else:
                known = None if agent is None or agent.monitor is None else agent.monitor.agent_id
                if known is None and self._session_id:
                    known = self._adapter.conversation_id(self._session_id)
                agent = await run_sync(partial(self._adapter.begin, known, alone=True))
            self._agents[agent_id] = agent
        return agent

    def _owner(self, parent_call: str | None) -> str | None:
        """Return whose message it is that names the call above it."""
        return _MAIN if parent_call is None else self._children.get(parent_call)

    async def _hook(self, given: dict[str, Any], call_id: str | None, _context: Any) -> Any:
        """Add the facts to the next request of an agent, or end its run before that."""
        event, call_id = given["hook_event_name"], call_id or ""
        self._session_id = self._session_id or given.get("session_id")
        agent = await self._agent(
            given.get("agent_id") or _MAIN,
            given.get("agent_type"),
            in_new_turn=event == "UserPromptSubmit",
        )
        if event == "PreToolUse":
            self._callers[call_id] = agent
        if event in ("PreToolUse", "SubagentStart"):
            return {}
        self._callers.pop(call_id, None)
        if agent.should_end:
            assert agent.monitor is not None
            reason = agent.monitor.get_threshold_action().message
            await run_sync(agent.hand_off)
            return {"continue_": False, "stopReason": reason}
        child = self._agents.get(self._children.get(call_id, ""))
        notes = [agent.before_call()]
        if child is not None and child is not agent and child.handoff is not None:
            notes.append(str(HandedOffError(child.handoff.agent_id, child.handoff)))
        text = "\n".join(filter(None, notes))
        if not text:
            return {}
        return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}

    async def read(self, message: Message) -> None:
        """Take what a message says of the window of an agent."""
        if self._session_id is None:
            said = message.data if isinstance(message, sdk.SystemMessage) else vars(message)
            self._session_id = said.get("session_id")
        # First what comes at every call of the model: each look at a type costs its time.
        is_reply = isinstance(message, sdk.AssistantMessage)
        if is_reply or isinstance(message, sdk.UserMessage):
            self.has_result = False
            await self._read_turn(message, is_reply=is_reply)
            return
        self.has_result = isinstance(message, sdk.ResultMessage)
        if isinstance(message, sdk.TaskStartedMessage):
            self._children[message.tool_use_id or ""] = message.task_id
        elif isinstance(message, sdk.TaskUpdatedMessage | sdk.TaskNotificationMessage):
            child = self._agents.get(message.task_id)
            if child is not None and message.status in sdk.TERMINAL_TASK_STATUSES:
                await self._end(child, failed=message.status == "failed")
        elif isinstance(message, sdk.ResultMessage):
            await self._end_turn(message)
        elif isinstance(message, sdk.ConversationResetMessage):
            self._agents.get(_MAIN, self._adapter.nobody).compacted(tokens_after=0)
        elif isinstance(message, sdk.SystemMessage):
            self._read_system(message.subtype, message.data)

    async def _read_turn(self, message: Any, *, is_reply: bool) -> None:
        owner = self._owner(message.parent_tool_use_id)
        if owner is None:
            return
        agent = self._agents.get(owner)
        if agent is None or agent.is_resting:
            agent = await self._agent(owner)
        content = message.content
        if not isinstance(content, str):
            self._read_blocks(agent, content)
        if is_reply and message.error is None:
            # The session's own name of it says how large the window is: "…[1m]".
            is_same = self._model.startswith(message.model)
            model = self._model if is_same else message.model
            agent.uses_model(model, self._windows.get(model))
            agent.after_call(message.usage or message)

    def _read_system(self, subtype: str, data: dict[str, Any]) -> None:
        if subtype == "init":
            self._model = str(data.get("model") or "")
        elif subtype == "compact_boundary":
            agent = self._agents.get(self._owner(data.get("parent_tool_use_id")) or "")
            if agent is not None:
                agent.compacted((data.get("compact_metadata") or {}).get("post_tokens"))

    def _read_blocks(self, agent: WatchedAgent, content: Iterable[Any]) -> None:
        for block in content:
            if isinstance(block, sdk.ToolUseBlock):
                self._tools[block.id] = block.name
                if not self._asks_who_calls:
                    self._callers[block.id] = agent
            elif isinstance(block, sdk.ToolResultBlock):
                name = self._tools.pop(block.tool_use_id, "tool")
                parts: Any = block.content or ""
                if not isinstance(parts, str):
                    parts = "\n".join([str(part.get("text") or "") for part in parts])
                agent.tool_returned(parts, name)
                self._callers.pop(block.tool_use_id, None)
                if self._only_reads:
                    agent.before_call()

    async def _end_turn(self, result: sdk.ResultMessage) -> None:
        agent = self._agents.get(_MAIN)
        if agent is None:
            return
        for model, usage in (result.model_usage or {}).items():
            self._windows[model] = usage["contextWindow"]
        was_interrupted = (result.terminal_reason or "").startswith("aborted")
        if result.is_error and not was_interrupted:
            self.failed(sdk.ClaudeSDKError(result.result or result.subtype))
        else:
            agent.is_calling = False
            await run_sync(partial(self._adapter.finish, agent, goes_on=True))

    async def _end(self, agent: WatchedAgent, *, failed: bool) -> None:
        if failed:
            agent.failed(sdk.ClaudeSDKError("the client says that the subagent failed"))
        await run_sync(self._adapter.finish, agent)

    def failed(self, error: BaseException) -> None:
        """Note that the turn raised, or that the program did that has the connection."""
        agent = self._agents.get(_MAIN)
        if agent is not None and not isinstance(error, HandedOffError):
            agent.failed(error)

    def left(self, error: BaseException | None) -> None:
        """Note that the program reads no further.

        Args:
            error: What it raised; None = nothing that is known.
        """
        self.is_left = True
        if error is not None or not self.has_result:
            self.failed(error or LeftQueryError("the program left before the result"))

    def check(self) -> None:
        """Raise behind a turn that was ended here.

        Raises:
            HandedOffError: The session should return, and its user wants the run to end then.
        """
        agent = self._agents.get(_MAIN)
        if agent is not None and agent.handoff is not None:
            raise HandedOffError(agent.handoff.agent_id, agent.handoff)

    async def finish(self) -> None:
        """End the agents of the session, subagents first."""
        agents = list(reversed(self._agents.values()))
        try:
            for agent in agents:
                await run_sync(self._adapter.finish, agent)
        except BaseException:
            # A loop that ends cancels what closes the queries that a program left.
            for agent in agents:
                self._adapter.finish(agent)
            raise
