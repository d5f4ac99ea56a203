"""Counts of one response that contradict each other: what adds up decides, for every shape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultramon.context.provider_usage import usage_from_response
from ultramon.context.token_counts import input_side, is_cache_inside
from ultramon.hosts.codex.reader import LineReader as CodexReader
from ultramon.hosts.gemini.reader import report_of as gemini_report
from ultramon.hosts.qwen.reader import LineReader as QwenReader

COUNTS = st.integers(0, 1_000_000)


@given(COUNTS, COUNTS, st.booleans())
def test_the_input_side_lies_between_the_input_and_the_sum(tokens, cache, inside):
    """No count is invented, and a cache that is larger than the input is never left out."""
    side = input_side(tokens, cache, cache_in_input=inside)
    assert side in (tokens, tokens + cache)
    assert side >= cache


@given(COUNTS, COUNTS, COUNTS, st.booleans())
def test_a_total_that_one_way_adds_up_to_decides(tokens, cache, output, usual):
    """Whatever the shape stands for, as far as the cache can lie in the input at all."""
    if 0 < cache <= tokens:
        total = tokens + output
        assert is_cache_inside(tokens, cache, output, total, usual=usual)
        assert not is_cache_inside(tokens, cache, output, total + cache, usual=usual)


@pytest.mark.parametrize(
    "report",
    [
        lambda: CodexReader().read(
            {
                "type": "event_msg",
                "payload": {
                    "type": "token_count",
                    "info": {
                        "total_token_usage": {"total_tokens": 152_010},
                        "last_token_usage": {"input_tokens": 2_000, "cached_input_tokens": 150_000},
                    },
                },
            }
        )[-1],
        lambda: gemini_report(
            {"type": "gemini", "id": "1", "tokens": {"input": 2_000, "cached": 150_000}}
        ),
        lambda: QwenReader().read(
            {
                "type": "assistant",
                "isSidechain": True,
                "usageMetadata": {"promptTokenCount": 2_000, "cachedContentTokenCount": 150_000},
            }
        )[0],
    ],
    ids=["codex", "gemini", "qwen"],
)
def test_a_host_with_more_cached_than_input(report):
    """A proxy counts the cache beside the input in a shape that usually includes it."""
    assert report().tokens == 152_000


def test_a_richer_count_of_the_same_reply_wins():
    """LangChain's own count may lack the cache that the provider's answer beside it states."""
    usage = usage_from_response(
        {
            "type": "ai",
            "usage_metadata": {"input_tokens": 31, "output_tokens": 467, "total_tokens": 498},
            "response_metadata": {
                "usage": {
                    "input_tokens": 31,
                    "output_tokens": 467,
                    "cache_creation_input_tokens": 152_000,
                    "cache_read_input_tokens": 0,
                }
            },
        }
    )
    assert (usage.input_tokens, usage.cache_creation_tokens) == (31, 152_000)
    assert not usage.cache_in_input
