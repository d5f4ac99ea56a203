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
                yield str(called)
            else:
                yield from texts_in(called, depth - 1)


def _field(source: object, name: str) -> object:
    found = source.get(name) if isinstance(source, dict) else getattr(source, name, None)
    # A method of that name holds no text.
    return None if callable(found) else found
