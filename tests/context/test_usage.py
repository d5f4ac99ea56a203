"""Usage is found in the real response classes of the providers, by shape alone."""

import asyncio

import pytest
from helpers.late import Late
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult, Generation, LLMResult

from ultramon.context import provider_usage
from ultramon.context.provider_usage import Usage, is_stream_part, usage_from_response

agent_framework, agents, ollama = Late("agent_framework"), Late("agents"), Late("ollama")
anthropic = Late("anthropic", "anthropic.types", "anthropic.types.beta")
google = Late("google", "google.genai.types")
openai = Late("openai", "openai.types.chat", "openai.types.responses")
pydantic_ai = Late("pydantic_ai", "pydantic_ai.models.function")

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


GEMINI_JSON = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "Done."}]}}],
    "usageMetadata": {
        "promptTokenCount": 1000,
        "cachedContentTokenCount": 900,
        "candidatesTokenCount": 30,
        "thoughtsTokenCount": 200,
        "totalTokenCount": 1230,
    },
    "modelVersion": "gemini-2.5-pro",
}
OLLAMA_JSON = {
    "model": "llama3.2",
    "message": {"role": "assistant", "content": "Done."},
    "done": True,
    "prompt_eval_count": 1000,
    "eval_count": 30,
}
BEDROCK_USAGE = {
    "inputTokens": 12,
    "outputTokens": 30,
    "totalTokens": 1042,
    "cacheReadInputTokens": 900,
    "cacheWriteInputTokens": 100,
}
MICROSOFT_USAGE = {
    "input_token_count": 1000,
    "output_token_count": 30,
    "total_token_count": 1030,
    "cache_read_input_token_count": 900,
}


def test_gemini_counts_the_cache_into_the_input():
    """GenerateContentResponse, its dump and the JSON of the API give the same usage."""
    response = google.genai.types.GenerateContentResponse.model_validate(GEMINI_JSON)
    expected = Usage(1000, 900, 0, 30, True, "gemini-2.5-pro")
    assert usage_from_response(response) == expected
    assert usage_from_response(response.model_dump()) == expected
    assert usage_from_response(GEMINI_JSON) == expected


def test_a_gemini_response_without_a_reply_is_a_reading():
    """A refused prompt was counted though nothing was answered."""
    data = {"usageMetadata": {"promptTokenCount": 1000, "totalTokenCount": 1000}}
    response = google.genai.types.GenerateContentResponse.model_validate(data)
    assert usage_from_response(response) == Usage(1000, 0, 0, 0, True, None)


def test_bedrock_leaves_the_cache_out_of_the_input():
    """A converse response and the last event of its stream, as botocore decodes them."""
    response = {"output": {"message": {}}, "stopReason": "end_turn", "usage": BEDROCK_USAGE}
    expected = Usage(12, 900, 100, 30, False, None)
    assert usage_from_response(response) == expected
    assert usage_from_response({"metadata": {"usage": BEDROCK_USAGE}}) == expected


@pytest.mark.parametrize("reply", [{}, {"message": None, "response": "Done."}])
def test_ollama_says_its_numbers_on_the_response_itself(reply):
    """Both kinds of response, and their JSON."""
    data = OLLAMA_JSON | reply
    kind = ollama.ChatResponse if data["message"] else ollama.GenerateResponse
    expected = Usage(1000, 0, 0, 30, True, "llama3.2")
    assert usage_from_response(kind.model_validate(data)) == expected
    assert usage_from_response(data) == expected


def test_an_agent_framework_response_is_understood():
    """A ChatResponse counts the cache into the input, but for counts taken from Anthropic."""
    reply = agent_framework.Message(role="assistant", contents=["Done."])
    make = agent_framework.ChatResponse
    assert usage_from_response(
        make(messages=[reply], model=OPENAI_MODEL, usage_details=MICROSOFT_USAGE)
    ) == Usage(1000, 900, 0, 30, True, OPENAI_MODEL)
    anthropic_usage = MICROSOFT_USAGE | {
        "input_token_count": 12,
        "anthropic.cache_read_input_tokens": 900,
    }
    assert usage_from_response(make(messages=[reply], usage_details=anthropic_usage)) == Usage(
        12, 900, 0, 30, False, None
    )


def test_of_an_agent_framework_run_only_the_last_provider_response_counts():
    """The sum over its requests is never read; what the provider answered last is."""
    messages = [
        agent_framework.Message(role=role, contents=["Done."])
        for role in ("assistant", "tool", "assistant")
    ]
    last = openai.types.responses.Response.model_validate(responses_json(RESPONSES_USAGE))
    for raw, expected in ((None, None), (last, Usage(1000, 900, 40, 30, True, OPENAI_MODEL))):
        chat = agent_framework.ChatResponse(
            messages=messages, usage_details=MICROSOFT_USAGE, raw_representation=raw
        )
        run = agent_framework.AgentResponse(
            messages=messages, usage_details=MICROSOFT_USAGE, raw_representation=chat
        )
        assert usage_from_response(chat) == expected
        assert usage_from_response(run) == expected


def test_a_semantic_kernel_message_is_read_through_its_provider_response():
    """Its own usage leaves the cache of Anthropic out, so what it wraps counts first."""
    message = {
        "role": "assistant",
        "ai_model_id": OPENAI_MODEL,
        "metadata": {"usage": {"prompt_tokens": 1000, "completion_tokens": 30}},
    }
    inner = anthropic.types.Message.model_validate(anthropic_json(cache_read_input_tokens=900))
    assert usage_from_response(message) == Usage(1000, 0, 0, 30, True, OPENAI_MODEL)
    assert usage_from_response([message]) == Usage(1000, 0, 0, 30, True, OPENAI_MODEL)
    assert usage_from_response(message | {"inner_content": inner}) == Usage(
        12, 900, 0, 50, False, ANTHROPIC_MODEL
    )


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (CHAT_USAGE, Usage(1000, 900, 40, 30, True, None)),
        (anthropic_json()["usage"], Usage(12, 0, 0, 50, False, None)),
        (LANGCHAIN_USAGE, Usage(1000, 900, 40, 30, True, None)),
        (GEMINI_JSON["usageMetadata"], Usage(1000, 900, 0, 30, True, None)),
        (BEDROCK_USAGE, Usage(12, 900, 100, 30, False, None)),
        (MICROSOFT_USAGE, Usage(1000, 900, 0, 30, True, None)),
    ],
)
def test_the_usage_itself_is_understood(usage, expected):
    """What somebody took out of a response is as good as the response."""
    assert usage_from_response(usage) == expected


def test_the_usage_of_a_class_is_understood():
    """As that of its JSON."""
    of_chat = openai.types.CompletionUsage(**CHAT_USAGE)
    assert usage_from_response(of_chat) == Usage(1000, 900, 40, 30, True, None)
    of_message = anthropic.types.Usage(input_tokens=12, output_tokens=50)
    assert usage_from_response(of_message) == Usage(12, 0, 0, 50, False, None)
    of_framework = agent_framework.UsageDetails(**MICROSOFT_USAGE)
    assert usage_from_response(of_framework) == Usage(1000, 900, 0, 30, True, None)


def langgraph_messages():
    return [
        HumanMessage("Look."),
        AIMessage(content="", usage_metadata=LANGCHAIN_USAGE | {"input_tokens": 500}),
        ToolMessage("found", tool_call_id="1"),
        AIMessage(content="Done.", usage_metadata=LANGCHAIN_USAGE),
        HumanMessage("Thanks."),
    ]


def test_of_a_langgraph_state_the_last_reply_counts():
    """The state of a graph, and the list of messages in it, as objects and as JSON."""
    messages = langgraph_messages()
    dumped = [message.model_dump() for message in messages]
    expected = Usage(1000, 900, 40, 30, True, None)
    for state in ({"messages": messages}, messages, {"messages": dumped}):
        assert usage_from_response(state) == expected


def test_a_langgraph_state_whose_last_reply_has_no_usage_has_none():
    """An older reply says what was in the window before."""
    assert usage_from_response([*langgraph_messages(), AIMessage("no usage")]) is None
    assert usage_from_response({"messages": [HumanMessage("Look.")]}) is None
    assert usage_from_response({"messages": []}) is None


def test_of_an_openai_agents_run_the_last_response_counts():
    """A real run with a tool call: two requests, whose sum is in the result too."""

    class Model(agents.Model):
        turns = 0

        async def get_response(self, *args, **kwargs):
            self.turns += 1
            call = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
            text = {"type": "output_text", "text": "Done.", "annotations": []}
            reply = {"id": "m", "type": "message", "role": "assistant", "status": "completed"}
            item = (
                openai.types.responses.ResponseFunctionToolCall.model_validate(call)
                if self.turns == 1
                else openai.types.responses.ResponseOutputMessage.model_validate(
                    reply | {"content": [text]}
                )
            )
            tokens = 1000 * self.turns
            usage = agents.Usage(
                requests=1, input_tokens=tokens, output_tokens=30, total_tokens=tokens + 30
            )
            return agents.ModelResponse(output=[item], usage=usage, response_id=None)

        def stream_response(self, *args, **kwargs):
            raise NotImplementedError

    look = agents.function_tool(lambda: "found", name_override="look", description_override="Look")
    agent = agents.Agent(name="scout", model=Model(), tools=[look])
    config = agents.RunConfig(tracing_disabled=True)
    result = asyncio.run(agents.Runner.run(agent, "Look.", run_config=config))
    assert result.context_wrapper.usage.input_tokens == 3000
    assert usage_from_response(result) == Usage(2000, 0, 0, 30, True, None)
    assert usage_from_response(result.raw_responses[0]) == Usage(1000, 0, 0, 30, True, None)
    assert usage_from_response(result.context_wrapper.usage) is None


def test_of_a_pydantic_ai_run_the_last_response_counts():
    """A real run with a tool call: two requests, whose sum is in the result too."""

    def answer(messages, info):
        replies = sum(isinstance(message, pydantic_ai.ModelResponse) for message in messages)
        part = pydantic_ai.TextPart("Done.") if replies else pydantic_ai.ToolCallPart("look", {})
        usage = pydantic_ai.RequestUsage(
            input_tokens=1000 * (replies + 1), cache_read_tokens=900, output_tokens=30
        )
        return pydantic_ai.ModelResponse([part], usage=usage)

    agent = pydantic_ai.Agent(
        pydantic_ai.models.function.FunctionModel(answer, model_name="scripted")
    )
    agent.tool_plain(name="look")(lambda: "found")
    result = asyncio.run(agent.run("Look."))
    expected = Usage(2000, 900, 0, 30, True, "scripted")
    assert (result.usage.requests, result.usage.input_tokens) == (2, 3000)
    assert usage_from_response(result) == expected
    assert usage_from_response(result.all_messages()) == expected
    assert usage_from_response(result.usage) is None


@pytest.mark.parametrize(
    "part",
    [
        chat_json(None) | {"object": "chat.completion.chunk"},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 5}},
        {"type": "response.output_text.delta", "delta": "Done."},
        AIMessageChunk(content="no usage"),
        {"contentBlockDelta": {"delta": {"text": "Done."}}},
    ],
)
def test_a_part_of_a_stream_is_known_as_one(part):
    """Most parts carry no usage and say nothing about the object that does."""
    assert usage_from_response(part) is None
    assert is_stream_part(part)


def test_a_part_of_a_stream_of_a_class_is_known_as_one():
    """As its JSON."""
    chunk = chat_json(None) | {"object": "chat.completion.chunk", "choices": []}
    for part in (
        openai.types.chat.ChatCompletionChunk.model_validate(chunk),
        ollama.ChatResponse(message=ollama.Message(role="assistant", content="D"), done=False),
        agent_framework.ChatResponseUpdate(),
    ):
        assert usage_from_response(part) is None
        assert is_stream_part(part)


def test_the_end_of_an_openai_response_stream_carries_the_usage():
    """The event that completes a response holds the response."""
    response = openai.types.responses.Response.model_validate(responses_json(RESPONSES_USAGE))
    event = openai.types.responses.ResponseCompletedEvent(
        response=response, sequence_number=9, type="response.completed"
    )
    assert usage_from_response(event) == Usage(1000, 900, 40, 30, True, OPENAI_MODEL)


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
    [Treacherous(), Bottomless(), LateFailure(), Usage, 5, None, "hello", []],
    ids=["raises", "has everything", "fails late", "class", "number", "nothing", "text", "list"],
)
def test_odd_objects_have_no_usage(odd):
    """Whatever reading an attribute does, nothing is raised."""
    assert usage_from_response(odd) is None
    assert not is_stream_part(odd)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        *("usage", "message", "generations", "input_tokens", "output_tokens"),
                        *("model", "messages", "role", "response", "raw_responses", "metadata"),
                    ]
                ),
                inner,
            )
        ),
    )
)
def test_no_json_raises(value):
    """Any decoded JSON gives a usage or None."""
    assert isinstance(usage_from_response(value), Usage | None)


class Asked(dict):
    """A dict that notes which of its keys are looked for; not read as a mere usage."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.keys_asked = set()

    def get(self, key, default=None):
        self.keys_asked.add(key)
        return super().get(key, default)


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": 3, "cache_read_input_tokens": 700, "output_tokens": 5},
        {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8},
        {"prompt_tokens": 3, "completion_tokens": 5},
        {"prompt_tokens": 3, "completion_tokens": 5, "served_model": "x"},
        {"usage": {"input_tokens": 3, "output_tokens": 5}},
        {},
    ],
)
def test_a_mere_usage_is_read_as_in_a_response(usage):
    """The short way asks for all that the long one looks for."""
    found, counted = Asked(usage), Asked(usage)
    assert usage_from_response(usage) == usage_from_response(found)
    provider_usage._read_usage(counted)
    assert found.keys_asked - counted.keys_asked <= provider_usage._HOLDERS


class OtherDict(dict):
    """Equal to a dict, and not looked at as one that can only be Anthropic's."""


NAMES_OF_COUNTS = (
    *("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
    *("prompt_tokens", "completion_tokens", "total_tokens", "totalTokens", "requests"),
    *("prompt_token_count", "inputTokens", "eval_count", "prompt_eval_count", "input_token_count"),
    *("cache_read", "cached_tokens", "cache_creation", "service_tier", "model", "usage"),
)


@given(
    st.dictionaries(st.sampled_from(NAMES_OF_COUNTS[:4]), st.none() | st.integers(0, 99)),
    st.dictionaries(st.sampled_from(NAMES_OF_COUNTS), st.none() | st.integers(0, 99), max_size=2),
    st.none() | st.lists(st.just({"type": "message", "input_tokens": 7, "output_tokens": 1})),
)
def test_a_plain_usage_reads_the_short_way_as_the_general_one(counts, more, iterations):
    usage = counts | more | {"iterations": iterations}
    assert usage_from_response(usage) == usage_from_response(OtherDict(usage))
