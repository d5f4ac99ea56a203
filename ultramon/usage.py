"""Finds the token usage in the response objects of Anthropic, OpenAI and LangChain, by their shape.

Imports none of those packages, so it takes the same shapes as decoded JSON too.
"""

from __future__ import annotations

from typing import NamedTuple, cast


class Usage(NamedTuple):
    """The tokens of one response, as its provider counted them; not checked for plausibility.

    Attributes:
        input_tokens: Input tokens; `cache_in_input` says whether the cached ones are among them.
        cache_read_tokens: Input tokens read from a cache.
        cache_creation_tokens: Input tokens written to a cache.
        output_tokens: Tokens of the reply.
        cache_in_input: True where `input_tokens` includes both kinds of cached tokens.
        model: The model that answered, or None when the response does not say.
    """

    input_tokens: int
    cache_read_tokens: int
    cache_creation_tokens: int
    output_tokens: int
    cache_in_input: bool
    model: str | None


def usage_from_response(response: object) -> Usage | None:
    """Return the usage of one model response, or None when it holds none.

    Understood are Anthropic's messages, OpenAI's chat completions and responses, LangChain's
    messages and results, the streaming parts of these that carry input tokens, and dicts of the
    same shapes. A sum over several requests, such as the result of a whole turn, does not tell
    what is in the window and counts as no usage.

    Args:
        response: Any object; one whose attributes cannot be read holds no usage.
    """
    try:
        return _find_usage(response)
    except Exception:  # noqa: BLE001 - reading a foreign attribute may run and raise anything
        return None


def _find_usage(response: object) -> Usage | None:
    if _field(response, "num_turns") is not None or _field(response, "type") == "turn.completed":
        return None
    generation = _first(_first(_field(response, "generations")))
    message = _field(generation, "message") or _field(response, "message") or response
    metadata = _field(message, "response_metadata")
    summary = _field(response, "llm_output")
    usage = (
        _read_usage(_field(message, "usage"))
        or _read_usage(_field(message, "usage_metadata"))
        or _read_usage(_field(metadata, "usage"))
        or _read_usage(_field(metadata, "token_usage"))
        or _read_usage(_field(summary, "token_usage"))
    )
    if usage is None:
        return None
    for holder, name in (
        (message, "model"),
        (metadata, "model_name"),
        (metadata, "model"),
        (summary, "model_name"),
    ):
        model = _field(holder, name)
        if isinstance(model, str) and model:
            return usage._replace(model=model)
    return usage


def _read_usage(usage: object) -> Usage | None:
    """Read one usage object; whoever states a total counts the cache in, Anthropic does neither."""
    if _has(usage, "prompt_tokens", "completion_tokens"):
        return _with_cache_in_input(usage, "prompt_tokens", "completion_tokens")
    if not _has(usage, "input_tokens", "output_tokens"):
        return None
    requests = _field(usage, "requests")
    if isinstance(requests, int) and requests > 1:
        return None
    if _has(usage, "total_tokens") and not (
        _has(usage, "cache_read_input_tokens") or _has(usage, "cache_creation_input_tokens")
    ):
        return _with_cache_in_input(usage, "input_tokens", "output_tokens")
    request = _last_request(usage)
    return Usage(
        _count(request, "input_tokens"),
        _count(request, "cache_read_input_tokens"),
        _count(request, "cache_creation_input_tokens"),
        _count(request, "output_tokens"),
        cache_in_input=False,
        model=None,
    )


def _with_cache_in_input(usage: object, input_name: str, output_name: str) -> Usage:
    details = (
        _field(usage, "prompt_tokens_details")
        or _field(usage, "input_tokens_details")
        or _field(usage, "input_token_details")
    )
    return Usage(
        _count(usage, input_name),
        _count(details, "cached_tokens") or _count(details, "cache_read"),
        _count(details, "cache_write_tokens") or _count(details, "cache_creation"),
        _count(usage, output_name),
        cache_in_input=True,
        model=None,
    )


def _last_request(usage: object) -> object:
    """Return the usage of the last of the requests that made one Anthropic message.

    With tools on the provider's side there are several, and the outer numbers are their sum; the
    window holds what the last one read.
    """
    iterations = _field(usage, "iterations")
    if isinstance(iterations, list):
        for iteration in reversed(iterations):
            if _field(iteration, "type") in ("message", "fallback_message"):
                return iteration
    return usage


def _has(source: object, *names: str) -> bool:
    return all(_field(source, name) is not None for name in names)


def _count(source: object, name: str) -> int:
    """Return a number of a usage as it is, and 0 for None; the monitor refuses impossible ones."""
    value = _field(source, name)
    return 0 if value is None else cast("int", value)


def _field(source: object, name: str) -> object:
    return source.get(name) if isinstance(source, dict) else getattr(source, name, None)


def _first(value: object) -> object:
    if not isinstance(value, list):
        return value
    return value[0] if value else None
