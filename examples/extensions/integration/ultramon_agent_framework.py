"""ultramon for the agents of Microsoft Agent Framework."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agent_framework import AgentContext, ChatContext, FunctionInvocationContext, Message

from ultramon import HandedOffError
from ultramon.integrations.adapter import Adapter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Unpack

    from agent_framework import ChatResponse

    from ultramon import ContextMonitor
    from ultramon.integrations.adapter import Choices

    CallNext = Callable[[], Awaitable[None]]


class ContextMiddleware:
    """Watches runs of an agent: ``agent.run(question, middleware=watched.for_run())``.

    Args:
        monitor: The monitor of the outermost agent, already started; None = one is made.
        choices: See `ultramon.integrations.adapter.Choices`.
    """

    def __init__(self, monitor: ContextMonitor | None = None, **choices: Unpack[Choices]) -> None:
        self.adapter = Adapter("Agent Framework", monitor, **choices)

    def for_run(self) -> list[Callable[..., Awaitable[None]]]:
        """Return the middleware of one run; each run needs its own."""
        run = _Run(self.adapter)
        return [run.watch_run, run.watch_call, run.watch_tool]


class _Run:
    """One run of an agent; the framework knows each middleware by the kind of its context."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._agent = adapter.nobody

    async def watch_run(self, context: AgentContext, call_next: CallNext) -> None:
        """Start the agent, and end it with the run."""
        name = context.agent.name
        self._agent = await asyncio.to_thread(self._adapter.begin, name=name)
        if context.stream:
            # Nothing has been called yet when the stream is returned.
            context.stream_cleanup_hooks.append(self._finish)
            await call_next()
            return
        try:
            await call_next()
        finally:
            await self._finish()

    async def watch_call(self, context: ChatContext, call_next: CallNext) -> None:
        """Add the facts to what is sent and read what was used; or end the run before it.

        Raises:
            HandedOffError: The agent should return, and its user wants the run to end then.
        """
        agent = self._agent
        if agent.should_end:
            record = await asyncio.to_thread(agent.hand_off)
            raise HandedOffError(record.agent_id, record)
        note = agent.before_call((context.options or {}).get("model"))
        if note is not None:
            context.messages = [*context.messages, Message("user", [note])]
        if context.stream:
            context.stream_result_hooks.append(self._read)
        try:
            await call_next()
        except Exception as error:
            agent.failed(error)
            raise
        if not context.stream:
            agent.after_call(context.result)

    async def watch_tool(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Run a tool as this agent's, and count what it brings."""
        with self._agent.inside():
            await call_next()
        for content in context.result or ():
            self._agent.tool_returned(getattr(content, "text", None), context.function.name)

    def _read(self, response: ChatResponse[Any]) -> ChatResponse[Any]:
        self._agent.after_call(response)
        return response

    async def _finish(self) -> None:
        await asyncio.to_thread(self._adapter.finish, self._agent)
