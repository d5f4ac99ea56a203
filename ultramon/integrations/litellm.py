"""LiteLLM: a logger that reads what calls used; it can neither add to a call nor end a run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ultramon.integrations.message_texts import texts_in
from ultramon.integrations.reading_adapter import ReadingAdapter
from ultramon.integrations.requirements import missing_extra, refuse_older

try:
    from litellm import model_cost, token_counter
    from litellm.integrations.custom_logger import CustomLogger
except ImportError as error:
    raise missing_extra(error, "litellm", "litellm") from error
else:
    refuse_older("litellm")

if TYPE_CHECKING:
    from typing import Unpack

    from ultramon.integrations.adapter import Choices, WatchedAgent
    from ultramon.monitor.monitor import ContextMonitor


class ContextLogger(CustomLogger):  # type: ignore[misc, unused-ignore]
    """Watches the calls of a program: ``litellm.callbacks = [ContextLogger()]``.

    Calls with the same ``metadata={"agent_id": …, "parent_id": …}`` are one agent; those without
    are one agent of the logger. It begins with the first call that came back, and ends with
    `adapter.close()`, after an hour of silence or with the process. LiteLLM keeps its callbacks in
    lists of the process and takes one of a class: have one logger.

    Args:
        monitor: The monitor of all calls, whatever their metadata, already started; None = each
            agent gets one.
        choices: See `ultramon.integrations.adapter.Choices`, without ``tell`` and ``on_return``.

    Attributes:
        adapter: Holds the agents and their monitors.

    Raises:
        ConfigurationError: A choice is not allowed.
    """

    def __init__(self, monitor: ContextMonitor | None = None, **choices: Unpack[Choices]) -> None:
        super().__init__()
        self.adapter = ReadingAdapter("a logger", "LiteLLM", monitor, **choices)

    def log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Read what a call used; LiteLLM calls this in a thread, soon after the call."""
        agent = self._agent(kwargs)
        model = kwargs.get("model")
        agent.uses_model(model, (model_cost.get(model) or {}).get("max_input_tokens"))
        messages = kwargs.get("messages") or []
        own_count = _own_count(kwargs, response_obj)
        if own_count is None:
            agent.after_call(
                response_obj, lambda: texts_in([messages, getattr(response_obj, "choices", None)])
            )
        else:
            agent.after_call({"usage": None}, lambda: own_count)

    def log_failure_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Learn the limit from a request that was too long."""
        self._agent(kwargs).failed(kwargs["exception"])

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Do the same for a call in an event loop, which does not wait for a start."""
        given = kwargs, response_obj, start_time, end_time
        if self.adapter.knows(_metadata(kwargs).get("agent_id")):
            self.log_success_event(*given)
        else:
            await asyncio.to_thread(self.log_success_event, *given)

    async def async_log_failure_event(self, *given: Any, **named: Any) -> None:
        """Do the same for a call in an event loop."""
        await asyncio.to_thread(self.log_failure_event, *given, **named)

    def _agent(self, kwargs: dict[str, Any]) -> WatchedAgent:
        metadata = _metadata(kwargs)
        return self.adapter.agent_of_call(metadata.get("agent_id"), metadata.get("parent_id"))


def _metadata(kwargs: dict[str, Any]) -> dict[str, Any]:
    return (kwargs.get("litellm_params") or {}).get("metadata") or {}


def _own_count(kwargs: dict[str, Any], response: Any) -> int | None:
    """Return the tokens of a stream that LiteLLM counted by itself; None where a provider did.

    Some versions do where the provider sends no usage, and nothing tells their number from one of
    the provider but that it is what LiteLLM counts.
    """
    options = (kwargs.get("optional_params") or {}).get("stream_options") or {}
    stated = getattr(getattr(response, "usage", None), "prompt_tokens", None)
    if not kwargs.get("stream") or options.get("include_usage") or not stated:
        return None
    counted = token_counter(model=kwargs.get("model") or "", messages=kwargs.get("messages") or [])
    return int(stated) if counted == stated else None
