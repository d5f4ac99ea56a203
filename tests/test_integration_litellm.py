"""What holds for LiteLLM alone: refused choices, streams without a count, refused prompts."""

from __future__ import annotations

import pytest

from ultramon import ConfigurationError

pytest.importorskip("litellm", reason="in an environment of its own: pip install litellm")

from helpers.frameworks import Run
from helpers.frameworks.litellm import Caller, forget_callbacks
from helpers.provider_api import ProviderApi

from ultramon.integrations.litellm import ContextLogger

pytestmark = pytest.mark.filterwarnings("ignore")  # LiteLLM's own models warn


@pytest.fixture
def run():
    yield Run("plain")
    forget_callbacks()


@pytest.mark.parametrize("choice", [{"tell": True}, {"on_return": "stop"}])
def test_a_logger_only_reads(choice):
    """It cannot add to a call and cannot end a run, and says so at once."""
    with pytest.raises(ConfigurationError, match="a logger only reads"):
        ContextLogger(**choice)


def test_calls_without_an_id_are_one_agent_and_zeros_are_no_reading(run):
    """A stream without a count leaves the last reading as it was."""
    logger = ContextLogger(**run.adapter_choices())
    caller = Caller(run, logger)
    with ProviderApi(run.outer) as api:
        caller.call(api.url)
        run.mode, caller.stream_options = "streaming", None
        caller.call(api.url)
    logger.adapter.close()
    (state,) = run.states()
    assert (state.estimated_tokens, state.tokens_source) == (10_000, "reported")
