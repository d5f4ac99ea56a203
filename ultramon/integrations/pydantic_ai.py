"""pydantic-ai: a capability for an agent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ultramon.handoff import HandedOffError
from ultramon.integrations.adapter import Adapter
from ultramon.integrations.message_texts import texts_in
from ultramon.integrations.requirements import missing_extra, refuse_older

try:
    from pydantic_ai import DeferredToolRequests
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
    from pydantic_ai.messages import ModelRequest, UserPromptPart
except ImportError as error:
    raise missing_extra(error, "pydantic_ai", "pydantic-ai") from error
else:
    refuse_older("pydantic-ai")

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from pydantic_ai import AgentRunResult, RunContext
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import ModelRequestContext

    from ultramon.integrations.adapter import Choices, WatchedAgent
    from ultramon.monitor.monitor import ContextMonitor


class ContextCapability(AbstractCapability[Any]):
    """Watches the runs of an agent: ``Agent(model, capabilities=[ContextCapability()])``.

    A run is an agent; the next run of its conversation, by ``conversation_id`` or its history, is
    the same agent with its last reading. One that a tool runs, with a capability of its own, is its
    child. The capability is innermost, so that it measures what is really sent.

    Args:
        monitor: The monitor of the outermost agent, already started; None = one is made.
        choices: See `ultramon.integrations.adapter.Choices`.

    Attributes:
        adapter: Holds the agents and their monitors.

    Raises:
        ConfigurationError: A choice is not allowed.
    """

    def __init__(self, monitor: ContextMonitor | None = None, **choices: Unpack[Choices]) -> None:
        self.adapter = Adapter("pydantic-ai", monitor, **choices)

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:
        """Return what watches one run."""
        return _Run(self.adapter)


class _Run(AbstractCapability[Any]):
    """One run of an agent."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self._agent: WatchedAgent = adapter.nobody

    def get_ordering(self) -> CapabilityOrdering:
        # Next to the model, so that it sees the request that is sent.
        return CapabilityOrdering(position="innermost")

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> AgentRunResult[Any]:
        """Start the agent, and end it with the run."""
        name = ctx.agent.name if ctx.agent is not None else None
        conversation = getattr(ctx, "conversation_id", None)
        agent_id = self.adapter.conversation_id(conversation, name or "") if conversation else None
        self._agent = await asyncio.to_thread(
            self.adapter.begin, agent_id, name=name, alone=True, is_new=not ctx.messages
        )
        goes_on = False
        try:
            result: AgentRunResult[Any] = await handler()
        except BaseException as error:
            # The error that ended this run for its handoff is no failure of it.
            if not isinstance(error, HandedOffError) or error.handoff is not self._agent.handoff:
                self._agent.failed(error)
            raise
        else:
            # A person is asked, or another program: the next run has the answers.
            goes_on = isinstance(result.output, DeferredToolRequests)
        finally:
            await asyncio.to_thread(self.adapter.finish, self._agent, goes_on=goes_on)
        return result

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Add the facts to what is sent, or end the run before it.

        Raises:
            HandedOffError: The agent should return, and its user wants the run to end then.
        """
        agent = self._agent
        agent.summarised(_compaction_id(agent.unseen(request_context.messages)))
        if agent.should_end:
            record = await asyncio.to_thread(agent.hand_off)
            raise HandedOffError(record.agent_id, record)
        note = agent.before_call(request_context.model.model_name)
        if note is None:
            return request_context
        added = ModelRequest(parts=[UserPromptPart(note)])
        return replace(request_context, messages=[*request_context.messages, added])

    async def after_model_request(
        self,
        ctx: RunContext[Any],
        *,
        request_context: ModelRequestContext,
        response: ModelResponse,
    ) -> ModelResponse:
        """Read what the request used."""
        self._agent.after_call(response, lambda: texts_in([*request_context.messages, response]))
        return response

    async def on_model_request_error(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        """Learn the limit from a request that was too long."""
        self._agent.failed(error)
        raise error

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: Any, tool_def: Any, args: Any, handler: Any
    ) -> Any:
        """Run a tool as this agent's, and count what it brings."""
        with self._agent.inside():
            result = await handler(args)
        self._agent.tool_returned(result, call.tool_name)
        return result


def _compaction_id(messages: Sequence[Any]) -> str | None:
    for message in messages:
        for part in message.parts:
            if part.part_kind == "compaction":
                # A summary that the application wrote has no id.
                return str(part.id or hash(part.content))
    return None
