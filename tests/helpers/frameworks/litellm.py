"""A loop of LiteLLM's own calls, which a stand-in for OpenAI's API on loopback answers."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else the import asks the network

import litellm
from litellm.integrations.custom_logger import CustomLogger

from helpers.frameworks import Run, Script
from helpers.provider_api import MODEL, ProviderApi
from ultramon.integrations.litellm import ContextLogger

PACKAGE = "litellm"
WAIT_SECONDS = 100


class Logged(CustomLogger):
    """Says when the loggers before it have seen so many calls, which comes behind the callers."""

    def __init__(self, calls: int = 1) -> None:
        super().__init__()
        self.event = threading.Event()
        self._left = threading.Semaphore(calls - 1)

    def log_success_event(self, **_given: Any) -> None:
        if not self._left.acquire(blocking=False):
            self.event.set()

    log_failure_event = log_success_event

    async def async_log_success_event(self, **_given: Any) -> None:
        self.log_success_event()

    async_log_failure_event = async_log_success_event


def arguments(url: str, **metadata: str) -> Any:
    """Return the arguments of one call."""
    return {
        "model": f"openai/{MODEL}",
        "messages": [{"role": "user", "content": "Go."}],
        "api_base": url,
        "api_key": "none",
        "metadata": metadata,
        "num_retries": 0,
        "max_retries": 0,
    }


class Caller:
    """Calls a model until it is done, and looks after each call."""

    def __init__(self, run: Run, logger: ContextLogger) -> None:
        self.run, self.logger, self.logged = run, logger, Logged()
        self.stream_options: Any = {"include_usage": True}
        litellm.callbacks = [logger, self.logged]

    def call(self, url: str, **metadata: str) -> str:
        """Call once, as the mode wants it; return the text."""
        given = arguments(url, **metadata)
        self.logged.event.clear()
        if self.run.mode == "streaming":
            parts = litellm.completion(stream=True, stream_options=self.stream_options, **given)
            text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        elif self.run.mode == "async":
            text = asyncio.run(self._call(given))
        else:
            text = litellm.completion(**given).choices[0].message.content
        assert self.logged.event.wait(WAIT_SECONDS)
        return text

    async def _call(self, given: Any) -> str:
        response = await litellm.acompletion(**given)
        assert await asyncio.to_thread(self.logged.event.wait, WAIT_SECONDS)
        return response.choices[0].message.content

    def work(self, script: Script, **metadata: str) -> None:
        """Let one agent work to its end; in the mode ``nested`` another one works meanwhile."""
        with ProviderApi(script) as api:
            while self.call(api.url, **metadata) != "done":
                agent = self.logger.adapter.get(metadata["agent_id"])
                script.look_at(agent and agent.monitor)
                if self.run.mode == "nested" and script is self.run.outer and script.served == 1:
                    self.work(self.run.inner, agent_id="inner", parent_id=metadata["agent_id"])


def forget_callbacks() -> None:
    """Let the next test have loggers of its own: LiteLLM keeps them in lists of the process."""
    litellm.logging_callback_manager._reset_all_callbacks()


def drive(run: Run) -> None:
    """Run the loop in its mode to its end."""
    warnings.simplefilter("ignore")  # of LiteLLM's own models, and a loop that it leaves open
    logger = ContextLogger(**run.adapter_choices())
    try:
        Caller(run, logger).work(run.outer, agent_id="outer")
    finally:
        forget_callbacks()
        logger.adapter.close()
