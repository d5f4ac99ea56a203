"""The texts in the messages of any framework, for the window of a model that reports no usage."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_BODIES = ("content", "parts", "text")
"""What a message or a part of one says; the others of these names repeat the first."""
_CALLS = (
    "tool_calls",
    "function",
    "message",
    "function_call",
    "function_response",
    "response",
    "args",
    "arguments",
    "output",
    "thinking",
)
_MEDIA_KINDS, _MEDIA = ("mimeType", "mime_type", "media_type"), ("data", "blob")
# Objects of a framework may refer to each other in a circle.
_MAX_DEPTH = 8


def texts_in(value: object, depth: int = _MAX_DEPTH) -> Iterator[str]:
    """Yield the texts that a request or a reply has in it: what is said, called and answered.

    Args:
        value: A message, its parts, a list of them, or the same as decoded JSON. Pictures and
            other bytes count nothing.
        depth: How deep it may be nested.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from texts_in(one, depth)
    elif value is not None and depth:
        body = next((found for name in _BODIES if (found := _field(value, name))), None)
        yield from texts_in(body, depth - 1)
        for name in _CALLS:
            called = _field(value, name)
            if isinstance(called, dict) and name in ("args", "arguments", "response"):
                yield shown(called)
            else:
                yield from texts_in(called, depth - 1)


def shown(value: object) -> str:
    """Return the arguments of a call, or its result, as one text without the bytes of pictures.

    Args:
        value: As decoded from JSON.
    """
    return str(_without_bytes(value, _MAX_DEPTH))


def _without_bytes(value: object, depth: int) -> object:
    if isinstance(value, bytes | bytearray):
        return ""
    if isinstance(value, dict) and depth:
        # A tool of an MCP server gives a picture as base64, which is long and no text.
        is_media = any(name in value for name in _MEDIA_KINDS)
        return {
            name: _without_bytes(inner, depth - 1)
            for name, inner in value.items()
            if not (is_media and name in _MEDIA)
        }
    if isinstance(value, list | tuple) and depth:
        return [_without_bytes(inner, depth - 1) for inner in value]
    return value


def _field(source: object, name: str) -> object:
    found = source.get(name) if isinstance(source, dict) else getattr(source, name, None)
    # A method of that name holds no text.
    return None if callable(found) else found
