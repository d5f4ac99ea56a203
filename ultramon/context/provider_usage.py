"""The token usage of one response, found by shape in the objects of SDKs and agent frameworks.

Imports none of those packages, and takes the same shapes as decoded JSON.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from ultramon.context.token_counts import input_side, is_cache_inside

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

UNDERSTOOD = (
    "a response of Anthropic, OpenAI, Google Gemini, Amazon Bedrock (converse), Ollama, LangChain, "
    "pydantic-ai, OpenAI Agents, Microsoft Agent Framework or Semantic Kernel, the run result of "
    "OpenAI Agents or pydantic-ai, a LangGraph state, or the usage of one response"
)
"""The objects that `usage_from_response` reads, for messages."""
_MAX_DEPTH = 4


class Usage(NamedTuple):
    """The provider's counts for one response, not checked for plausibility.

    Attributes:
        input_tokens: Input tokens, with or without the cached ones, see `cache_in_input`.
        cache_read_tokens: Input tokens read from a cache.
        cache_creation_tokens: Input tokens written to a cache.
        output_tokens: Tokens of the reply.
        cache_in_input: True where `input_tokens` includes both kinds of cached tokens.
        model: The model that answered; None = not stated.
    """

    input_tokens: int
    cache_read_tokens: int
    cache_creation_tokens: int
    output_tokens: int
    cache_in_input: bool
    model: str | None = None


class _Names(NamedTuple):
    """One provider's names for the numbers of a usage; of several the first not 0 counts."""

    input_tokens: str
    output_tokens: str
    cache_read_tokens: str
    cache_creation_tokens: str
    cache_in_input: bool
    cache_details: str = ""
    """Names of an object that holds the numbers of the cache, where there is one."""


_DETAILS = "prompt_tokens_details input_tokens_details input_token_details"
_READ, _CREATED = "cached_tokens cache_read cache_read_tokens", "cache_write_tokens cache_creation"
_CHAT = _Names("prompt_tokens", "completion_tokens", _READ, _CREATED, True, _DETAILS)
_RESPONSES = _Names("input_tokens", "output_tokens", _READ, _CREATED, True, _DETAILS)
_ANTHROPIC = _Names(
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    cache_in_input=False,
)
# Their input count is present in every counted response; the output may be missing.
_OTHERS = (
    _Names("prompt_token_count", "candidates_token_count", "cached_content_token_count", "", True),
    _Names("promptTokenCount", "candidatesTokenCount", "cachedContentTokenCount", "", True),
    _Names("prompt_eval_count", "eval_count", "", "", True),
    _Names("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", False),
    _Names(
        "input_token_count",
        "output_token_count",
        "cache_read_input_token_count",
        "cache_creation_input_token_count",
        cache_in_input=True,
    ),
)
_TOTALS = "total_tokens totalTokens total_token_count totalTokenCount"
_MODELS = ("model", "model_name", "model_version", "modelVersion", "ai_model_id")
_HOLDERS = frozenset(
    (
        *("raw_representation", "inner_content", "raw_responses", "messages", "message"),
        *("response", "response_metadata", "generations", "llm_output", "metadata", "interrupts"),
        *(
            "usage",
            "usage_metadata",
            "usageMetadata",
            "usage_details",
            "num_turns",
            "type",
            "output",
        ),
        *_MODELS,
    )
)
"""All that `_find_usage` looks for in a response; a dict without any can only be the usage."""
_NOT_PLAIN = _HOLDERS.union(
    (*_CHAT[:2], *(names.input_tokens for names in _OTHERS)),
    ("requests", *_TOTALS.split()),
)
"""What decides how a usage counts, where it is there; without any it counts as Anthropic's does."""
_STREAM_CLASSES = ("Chunk", "Event", "Update", "StreamingChatMessageContent")
_STREAM_TYPES = ("content_block_", "message_", "ping", "response.")
_STREAM_KEYS = frozenset(
    ("messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop")
)


def usage_from_response(response: object) -> Usage | None:
    """Return the usage of one model response, None without one.

    `UNDERSTOOD` lists the shapes; the parts of a stream with input tokens and dicts of the same
    shapes are read too. Of the result of a whole run the last response counts. A sum over several
    requests is no usage: it is not what the window holds.

    Args:
        response: Any object; one whose attributes cannot be read holds no usage.
    """
    if type(response) is dict:
        usage = _read_plain(response)
        if usage is not None:
            return usage
    return _or_none(lambda: _find_usage(response, _MAX_DEPTH))


def _read_plain(usage: dict[str, Any]) -> Usage | None:
    """Read what can only be one Anthropic usage; None for anything else.

    Between two calls of a model the processor's caches hold other code, so that each step of the
    general way takes several times as long as in a loop.
    """
    tokens, output_tokens = usage.get("input_tokens"), usage.get("output_tokens")
    is_plain = not usage.get("iterations") and _NOT_PLAIN.isdisjoint(usage)
    if tokens is None or output_tokens is None or not is_plain:
        return None
    read, created = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
    return Usage(tokens, read or 0, created or 0, output_tokens, cache_in_input=False)


def is_stream_part(response: object) -> bool:
    """Return whether an object is part of a streamed response, of which only one carries usage."""
    return _or_none(lambda: _is_stream_part(response)) is True


def _or_none(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except Exception:  # noqa: BLE001 - reading a foreign attribute may run and raise anything
        return None


def _is_stream_part(response: object) -> bool:
    kind = _field(response, "type")
    return (
        type(response).__name__.endswith(_STREAM_CLASSES)
        or (isinstance(kind, str) and kind.startswith(_STREAM_TYPES))
        or _field(response, "object") == "chat.completion.chunk"
        or _field(response, "done") is False
        or (isinstance(response, dict) and not _STREAM_KEYS.isdisjoint(response))
    )


def _find_usage(response: object, depth: int) -> Usage | None:
    if response is None or depth == 0 or isinstance(response, type):
        return None
    if type(response) is dict and _HOLDERS.isdisjoint(response):
        return _read_usage(response)
    # The provider's own answer shows how it counts the cache; a framework's may not.
    for name in ("raw_representation", "inner_content"):
        usage = _find_usage(_field(response, name), depth - 1)
        if usage is not None:
            return usage
    if _is_total(response):
        return None
    last = _last_response(response)
    if last is not None:
        return _find_usage(last, depth - 1)
    attempt = _last_attempt(response)
    if attempt is not None:
        return _read_usage(attempt)
    generation = _first(_first(_field(response, "generations")))
    message = _field(generation, "message") or _field(response, "message") or response
    metadata = _field(message, "response_metadata")
    summary = _field(response, "llm_output")
    places = (
        _field(message, "usage"),
        _field(message, "usage_metadata"),
        _field(message, "usageMetadata"),
        _field(message, "usage_details"),
        _field(_field(message, "metadata"), "usage"),
        _field(metadata, "usage"),
        _field(metadata, "token_usage"),
        _field(summary, "token_usage"),
        response,
    )
    # Most places are missing: looking into them took half of the time.
    there = (place for place in places if place is not None)
    found = [*filter(None, map(_read_usage, there))]
    if not found:
        return None
    usage = _richest(found)
    for holder in (message, metadata, summary, response):
        for name in _MODELS:
            model = _field(holder, name)
            if isinstance(model, str) and model:
                return usage._replace(model=model)
    return usage


def _last_attempt(response: object) -> object:
    """Return the usage of the attempt that was answered, where a call of OpenAI Agents was retried.

    The numbers beside it are those of all attempts.
    """
    # In the usage of a run the entries are its requests, in that of one call attempts; only a call
    # has an output.
    usage = _field(response, "usage")
    attempts, requests = _field(usage, "request_usage_entries"), _field(usage, "requests")
    is_one_call = isinstance(_field(response, "output"), list)
    is_retried = isinstance(requests, int) and requests > 1
    if not (is_one_call and is_retried and isinstance(attempts, list) and attempts):
        return None
    return cast("object", attempts[-1])


def _is_total(response: object) -> bool:
    """Return whether the numbers of a response are a sum over the requests of a turn or a run."""
    if _field(response, "num_turns") is not None or _field(response, "type") == "turn.completed":
        return True
    messages = _field(response, "messages")
    return (
        # A chat client that calls tools itself adds up the usage of its requests.
        _field(response, "usage_details") is not None
        and isinstance(messages, list)
        and sum(_field(message, "role") == "assistant" for message in messages) > 1
    )


def _last_response(response: object) -> object:
    """Return the last model response of a run result, a state or a list of messages, else None."""
    responses = _field(response, "raw_responses")
    if isinstance(responses, list):
        return responses[-1] if responses else None
    messages = response if isinstance(response, list) else _field(response, "messages")
    if isinstance(messages, list) and _field(response, "usage_details") is None:
        return next(filter(_is_reply, reversed(messages)), None)
    if _field(response, "interrupts") is not None:
        return _field(response, "value")
    inner = _field(response, "response")
    return None if isinstance(inner, str) else inner  # a text is the reply of Ollama


def _is_reply(message: object) -> bool:
    return (
        _field(message, "type") in ("ai", "AIMessageChunk")
        or _field(message, "kind") == "response"
        or _field(message, "role") == "assistant"
    )


def _read_usage(usage: object) -> Usage | None:
    """Read one usage object; a stated total means that the cache is in the input."""
    if _has(usage, _CHAT.input_tokens, _CHAT.output_tokens):
        return _counted(usage, _CHAT)
    for names in _OTHERS:
        if _has(usage, names.input_tokens):
            # Microsoft's client of Anthropic passes on counts without the cache.
            is_anthropic = isinstance(usage, dict) and any(
                isinstance(name, str) and name.startswith("anthropic.") for name in usage
            )
            in_input = names.cache_in_input and not is_anthropic
            return _counted(usage, names._replace(cache_in_input=in_input))
    requests = _field(usage, "requests")
    is_sum = isinstance(requests, int) and requests > 1
    if is_sum or not _has(usage, _ANTHROPIC.input_tokens, _ANTHROPIC.output_tokens):
        return None
    if _has(usage, "total_tokens") and not (
        _has(usage, _ANTHROPIC.cache_read_tokens) or _has(usage, _ANTHROPIC.cache_creation_tokens)
    ):
        return _counted(usage, _RESPONSES)
    return _counted(_last_request(usage), _ANTHROPIC)


def _counted(usage: object, names: _Names) -> Usage:
    """Return the numbers unchecked, 0 for None; the monitor refuses impossible ones."""
    details = _any_field(usage, names.cache_details) or usage
    # Proxies put Anthropic's counts of the cache beside the details of the chat shape.
    read = _any_field(details, names.cache_read_tokens) or _field(
        usage, _ANTHROPIC.cache_read_tokens
    )
    created = _any_field(details, names.cache_creation_tokens) or _field(
        usage, _ANTHROPIC.cache_creation_tokens
    )
    counts = (
        _any_field(usage, names.input_tokens) or 0,
        read or 0,
        created or 0,
        _any_field(usage, names.output_tokens) or 0,
    )
    found = Usage(*cast("tuple[int, int, int, int]", counts), names.cache_in_input)
    total = _any_field(usage, _TOTALS)
    if not _is_countable(found):
        return found
    cache = found.cache_read_tokens + found.cache_creation_tokens
    stated = total if type(total) is int else 0
    is_inside = is_cache_inside(
        found.input_tokens, cache, found.output_tokens, stated, usual=names.cache_in_input
    )
    return found._replace(cache_in_input=is_inside)


def _is_countable(usage: Usage) -> bool:
    return all(type(count) is int for count in usage[:4])


def _richest(found: list[Usage]) -> Usage:
    """Return the first usage, or a later one of the same reply that counts more of its cache."""
    first = found[0]
    others = [one for one in found[1:] if one.output_tokens == first.output_tokens]
    if not others or not all(map(_is_countable, [first, *others])):
        return first
    return max([first, *others], key=_input_side)


def _input_side(usage: Usage) -> int:
    cache = usage.cache_read_tokens + usage.cache_creation_tokens
    return input_side(usage.input_tokens, cache, cache_in_input=usage.cache_in_input)


def _last_request(usage: object) -> object:
    """Return the usage of the last request behind one Anthropic message.

    Tools on the provider's side cause several, and the outer numbers are their sum; the window
    holds the input of the last one.
    """
    iterations = _field(usage, "iterations")
    if isinstance(iterations, list):
        for iteration in reversed(iterations):
            if _field(iteration, "type") in ("message", "fallback_message"):
                return iteration
    return usage


def _has(source: object, *names: str) -> bool:
    for name in names:  # noqa: SIM110 - a generator takes three times as long
        if _field(source, name) is None:
            return False
    return True


def _any_field(source: object, names: str) -> object:
    return next((value for name in names.split() if (value := _field(source, name))), None)


def _field(source: object, name: str) -> object:
    if source is None:
        return None
    if isinstance(source, dict):
        return source.get(name)
    kind: type = type(source)
    if _may_have(kind, name):
        return getattr(source, name, None)
    extra = getattr(source, "__pydantic_extra__", None)
    return extra.get(name) if extra else None


@lru_cache(maxsize=4096)
def _may_have(kind: Any, name: str) -> bool:
    """Return whether objects of a type may have an attribute of their own or of their type.

    A pydantic model takes 3 µs to find out that it has not, and is asked for some thirty.
    """
    fields = getattr(kind, "__pydantic_fields__", None)
    if fields is None:
        return True
    return name in fields or any(name in base.__dict__ for base in kind.__mro__)


def _first(value: object) -> object:
    if not isinstance(value, list):
        return value
    return value[0] if value else None
