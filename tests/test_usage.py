"""Usage is found in the real response classes of the providers, by shape alone."""

import anthropic.types
import anthropic.types.beta
import openai.types.chat
import openai.types.responses
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatResult, Generation, LLMResult

from ultramon.usage import Usage, usage_from_response

ANTHROPIC_MODEL = "claude-sonnet-4-5"
OPENAI_MODEL = "gpt-5.2"


def anthropic_json(**usage):
    """The JSON of a message as the Messages API sends it."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": ANTHROPIC_MODEL,
        "content": [{"type": "text", "text": "Done."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 12, "output_tokens": 50, **usage},
    }


def chat_json(usage):
    """The JSON of a chat completion as the API sends it."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1795292931,
        "model": OPENAI_MODEL,
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "Done."},
            }
        ],
        "usage": usage,
    }


def responses_json(usage):
    """The JSON of a response as the Responses API sends it."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1795292931,
        "model": OPENAI_MODEL,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }


CHAT_USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 30,
    "total_tokens": 1030,
    "prompt_tokens_details": {"cached_tokens": 900, "cache_write_tokens": 40},
}
RESPONSES_USAGE = {
    "input_tokens": 1000,
    "output_tokens": 30,
    "total_tokens": 1030,
    "input_tokens_details": {"cached_tokens": 900, "cache_write_tokens": 40},
    "output_tokens_details": {"reasoning_tokens": 10},
}
LANGCHAIN_USAGE = {
    "input_tokens": 1000,
    "output_tokens": 30,
    "total_tokens": 1030,
    "input_token_details": {"cache_read": 900, "cache_creation": 40},
}


def iteration(kind, input_tokens, cache_read_tokens):
    """The usage of one of several requests behind one message."""
    entry = {
        "type": kind,
        "input_tokens": input_tokens,
        "output_tokens": 7,
        "cache_read_input_tokens": cache_read_tokens,
        "cache_creation_input_tokens": 0,
    }
    return entry | ({"model": ANTHROPIC_MODEL} if kind == "fallback_message" else {})


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (
            {"cache_read_input_tokens": 140_000, "cache_creation_input_tokens": 500},
            Usage(12, 140_000, 500, 50, False, ANTHROPIC_MODEL),
        ),
        (
            {"cache_read_input_tokens": None, "cache_creation_input_tokens": None},
            Usage(12, 0, 0, 50, False, ANTHROPIC_MODEL),
        ),
        ({}, Usage(12, 0, 0, 50, False, ANTHROPIC_MODEL)),
    ],
)
def test_anthropic_messages_count_the_cache_beside_the_input(sent, expected):
    """Message, BetaMessage and their JSON give the same usage, cache not in the input."""
    data = anthropic_json(**sent)
    assert usage_from_response(anthropic.types.Message.model_validate(data)) == expected
    assert usage_from_response(anthropic.types.beta.BetaMessage.model_validate(data)) == expected
    assert usage_from_response(data) == expected


@pytest.mark.parametrize("last", ["message", "fallback_message"])
def test_the_last_request_of_an_anthropic_message_counts(last):
    """With tools on the provider's side the outer sum is not what the window holds."""
    data = anthropic_json(
        cache_read_input_tokens=180_000,
        cache_creation_input_tokens=0,
        iterations=[
            iteration("message", 30, 80_000),
            iteration(last, 60, 100_000),
            iteration("compaction", 5, 0),
        ],
    )
    expected = Usage(60, 100_000, 0, 7, False, ANTHROPIC_MODEL)
    assert usage_from_response(anthropic.types.beta.BetaMessage.model_validate(data)) == expected
    assert usage_from_response(anthropic.types.Message.model_validate(data)) == expected


def test_an_anthropic_message_without_usage_has_none():
    """A message built without usage gives None."""
    assert usage_from_response(anthropic.types.Message.model_construct(usage=None)) is None
    assert usage_from_response(anthropic.types.Message.model_construct()) is None


def test_of_an_anthropic_stream_only_parts_with_input_tokens_count():
    """The start of a stream reports the input; a delta with output alone is no reading."""
    start = anthropic.types.RawMessageStartEvent.model_validate(
        {"type": "message_start", "message": anthropic_json(cache_read_input_tokens=7)}
    )
    delta = anthropic.types.RawMessageDeltaEvent.model_validate(
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 5}}
    )
    text = anthropic.types.RawContentBlockDeltaEvent.model_validate(
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "usage"},
        }
    )
    assert usage_from_response(start) == Usage(12, 7, 0, 50, False, ANTHROPIC_MODEL)
    assert usage_from_response(delta) is None
    assert usage_from_response(text) is None


@pytest.mark.parametrize(
    ("details", "cached", "written"),
    [
        ({"cached_tokens": 900, "cache_write_tokens": 40}, 900, 40),
        ({"cached_tokens": None}, 0, 0),
        (None, 0, 0),
    ],
)
def test_openai_chat_completions_count_the_cache_into_the_input(details, cached, written):
    """ChatCompletion and its JSON give the same usage, cache in the input."""
    data = chat_json(CHAT_USAGE | {"prompt_tokens_details": details})
    expected = Usage(1000, cached, written, 30, True, OPENAI_MODEL)
    assert usage_from_response(openai.types.chat.ChatCompletion.model_validate(data)) == expected
    assert usage_from_response(data) == expected


def test_of_an_openai_stream_only_the_last_chunk_counts():
    """Chunks carry no usage until the last one."""
    chunk = chat_json(None) | {"object": "chat.completion.chunk", "choices": []}
    validate = openai.types.chat.ChatCompletionChunk.model_validate
    assert usage_from_response(validate(chunk)) is None
    assert usage_from_response(validate(chunk | {"usage": CHAT_USAGE})) == Usage(
        1000, 900, 40, 30, True, OPENAI_MODEL
    )


def test_openai_responses_are_not_taken_for_anthropic_messages():
    """Both say input_tokens; only in a Response does that include the cache."""
    data = responses_json(RESPONSES_USAGE)
    expected = Usage(1000, 900, 40, 30, True, OPENAI_MODEL)
    assert usage_from_response(openai.types.responses.Response.model_validate(data)) == expected
    assert usage_from_response(data) == expected


def test_an_openai_response_in_progress_has_no_usage():
    """Usage is None until a response is complete."""
    data = responses_json(None)
    assert usage_from_response(openai.types.responses.Response.model_validate(data)) is None
    assert usage_from_response(openai.types.chat.ChatCompletion.model_construct()) is None


def test_an_anthropic_usage_with_a_total_is_still_anthropic():
    """A gateway may add a total; the names of the cache fields say who counted."""
    read = anthropic_json(cache_read_input_tokens=900, total_tokens=962)
    written = anthropic_json(cache_creation_input_tokens=900, total_tokens=962)
    assert usage_from_response(read) == Usage(12, 900, 0, 50, False, ANTHROPIC_MODEL)
    assert usage_from_response(written) == Usage(12, 0, 900, 50, False, ANTHROPIC_MODEL)


@pytest.mark.parametrize("message_class", [AIMessage, AIMessageChunk])
@pytest.mark.parametrize(
    ("details", "cached", "written"),
    [({"cache_read": 900, "cache_creation": 40}, 900, 40), ({"audio": 3}, 0, 0), ({}, 0, 0)],
)
def test_langchain_messages_count_the_cache_into_the_input(message_class, details, cached, written):
    """The usage metadata of LangChain includes the cache, whoever the provider is."""
    message = message_class(
        content="Done.",
        usage_metadata=LANGCHAIN_USAGE | {"input_token_details": details},
        response_metadata={"model_name": ANTHROPIC_MODEL},
    )
    expected = Usage(1000, cached, written, 30, True, ANTHROPIC_MODEL)
    assert usage_from_response(message) == expected
    assert usage_from_response(message.model_dump()) == expected


def test_langchain_usage_without_details_counts_the_cache_into_the_input():
    """The details are optional and their absence changes nothing about the way of counting."""
    usage = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    message = AIMessage(content="", usage_metadata=usage)
    assert usage_from_response(message) == Usage(10, 0, 0, 2, True, None)


def test_langchain_results_are_read_through_their_first_generation():
    """LLMResult and ChatResult hold the message that holds the usage."""
    message = AIMessage(content="Done.", usage_metadata=LANGCHAIN_USAGE)
    generation = ChatGeneration(message=message)
    expected = Usage(1000, 900, 40, 30, True, None)
    assert usage_from_response(LLMResult(generations=[[generation]])) == expected
    assert usage_from_response(ChatResult(generations=[generation])) == expected
    assert usage_from_response(generation) == expected


def test_legacy_langchain_metadata_is_understood():
    """Before usage_metadata the provider's own usage was kept in response_metadata."""
    openai_message = AIMessage(
        content="",
        response_metadata={"token_usage": CHAT_USAGE, "model_name": OPENAI_MODEL},
    )
    anthropic_message = AIMessage(
        content="",
        response_metadata={
            "usage": anthropic_json(cache_read_input_tokens=9)["usage"],
            "model": ANTHROPIC_MODEL,
        },
    )
    result = LLMResult(
        generations=[[Generation(text="Done.")]],
        llm_output={"token_usage": CHAT_USAGE, "model_name": OPENAI_MODEL},
    )
    expected = Usage(1000, 900, 40, 30, True, OPENAI_MODEL)
    assert usage_from_response(openai_message) == expected
    assert usage_from_response(result) == expected
    assert usage_from_response(anthropic_message) == Usage(12, 9, 0, 50, False, ANTHROPIC_MODEL)


@pytest.mark.parametrize(
    "empty",
    [
        AIMessage(content="no usage"),
        AIMessageChunk(content="no usage"),
        LLMResult(generations=[]),
        LLMResult(generations=[[]]),
        LLMResult(generations=[[Generation(text="no usage")]]),
    ],
    ids=["message", "chunk", "no prompts", "no generations", "no message"],
)
def test_langchain_objects_without_usage_have_none(empty):
    """A chunk, or a result of a model that reports nothing, is no usage."""
    assert usage_from_response(empty) is None


@pytest.mark.parametrize(
    "total",
    [
        {"type": "result", "num_turns": 3, "usage": anthropic_json()["usage"]},
        {"type": "turn.completed", "usage": {"input_tokens": 330_000, "output_tokens": 65}},
        {"usage": {"requests": 2, "input_tokens": 9, "output_tokens": 1, "total_tokens": 10}},
    ],
    ids=["result of a turn", "completed turn", "several requests"],
)
def test_a_sum_over_several_requests_is_no_usage(total):
    """A running total counts the same window many times."""
    assert usage_from_response(total) is None


@pytest.mark.parametrize("value", [-1, True, 10**12, 1.5])
def test_impossible_numbers_are_passed_on(value):
    """Judging the numbers is the monitor's part, so that it can name the agent."""
    usage = usage_from_response(anthropic_json(cache_read_input_tokens=value))
    assert usage is not None
    assert usage.cache_read_tokens is value


class Treacherous:
    """An object whose every attribute raises, and not AttributeError."""

    def __getattr__(self, name):
        raise RuntimeError(name)


class Bottomless:
    """An object that has every attribute, each of the same kind."""

    def __getattr__(self, name):
        return Bottomless()


class LateFailure:
    """An object whose usage is fine and whose model cannot be read."""

    usage = CHAT_USAGE

    @property
    def model(self):
        raise OSError("not now")


@pytest.mark.parametrize(
    "odd",
    [Treacherous(), Bottomless(), LateFailure(), Usage, 5, None],
    ids=["raises", "has everything", "fails late", "class", "number", "nothing"],
)
def test_odd_objects_have_no_usage(odd):
    """Whatever reading an attribute does, nothing is raised."""
    assert usage_from_response(odd) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["usage", "message", "generations", "input_tokens", "output_tokens", "model"]
                ),
                inner,
            )
        ),
    )
)
def test_no_json_raises(value):
    """Any decoded JSON gives a usage or None."""
    assert isinstance(usage_from_response(value), Usage | None)
