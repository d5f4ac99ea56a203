"""What holds for LiteLLM alone: streams without a count, calls that come at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

pytest.importorskip(
    "helpers.frameworks.litellm", reason="in an environment of its own: pip install litellm"
)

import litellm
from helpers.frameworks import TURNS, Run
from helpers.frameworks.litellm import (
    WAIT_SECONDS,
    Caller,
    Logged,
    arguments,
    forget_callbacks,
)
from helpers.provider_api import MODEL, ProviderApi

from ultramon.integrations.litellm import ContextLogger

CALLS = 4
pytestmark = pytest.mark.filterwarnings("ignore")  # LiteLLM's own models warn


@pytest.fixture
def run():
    yield Run("plain")
    forget_callbacks()


def test_calls_without_an_id_are_one_agent_and_zeros_are_no_reading(run):
    """A stream without a count leaves the last reading, which held more than its messages."""
    logger = ContextLogger(**run.adapter_choices())
    caller = Caller(run, logger)
    with ProviderApi(run.outer) as api:
        caller.call(api.url)
        run.mode, caller.stream_options = "streaming", None
        caller.call(api.url)
    logger.adapter.close()
    (state,) = run.states()
    assert state.estimated_tokens == 10_000
    assert state.tokens_source == "reported"


def test_calls_that_come_at_once_are_one_agent(run):
    """The provider answers none of them before all have come."""
    logger, logged = ContextLogger(**run.adapter_choices()), Logged(CALLS)
    litellm.callbacks = [logger, logged]
    all_have_come = threading.Barrier(CALLS, timeout=WAIT_SECONDS)
    next_turn = run.outer.next_turn

    def answer_together(request):
        all_have_come.wait()
        return next_turn(request)

    async def call_at_once(url):
        await asyncio.gather(
            *(litellm.acompletion(**arguments(url)) for _number in range(CALLS)),
        )
        assert await asyncio.to_thread(logged.event.wait, WAIT_SECONDS)

    run.outer.turns = (TURNS[0],) * CALLS
    run.outer.next_turn = answer_together
    with ProviderApi(run.outer) as api:
        asyncio.run(call_at_once(api.url))
    logger.adapter.close()
    (state,) = run.states()
    assert (state.estimated_tokens, state.tokens_source) == (TURNS[0][0], "reported")


def test_a_stream_without_a_count_is_an_estimate(run):
    """Whether LiteLLM counts it by itself or states zeros; it is not the provider's number."""
    logger = ContextLogger(**run.adapter_choices())
    caller = Caller(run, logger)
    run.mode, caller.stream_options = "streaming", None
    with ProviderApi(run.outer) as api:
        caller.call(api.url)
    logger.adapter.close()
    (state,) = run.states()
    own_count = litellm.token_counter(model=MODEL, messages=[{"role": "user", "content": "Go."}])
    assert state.tokens_source == "estimated"
    assert 0 < state.estimated_tokens <= own_count + 10
