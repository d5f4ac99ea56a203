"""The payload of a hook call, read in bounded time, and its members, checked.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from ultramon.hosts.transcripts.jsonl import JsonObject

    class Begun(Protocol):
        """What was read of a payload already."""

        data: bytes
        is_ended: bool


MAX_PAYLOAD_BYTES = 1 << 20
"""A larger payload is read to its end and known only by its first and last part."""
HEAD_BYTES = 64 * 1024
_TAIL_BYTES = 4 * 1024
INPUT_SECONDS = 2.0
MAX_FIELD_CHARS = 4096
"""As long as a path may be; what names an agent or a call is shorter."""
_CALL_ID_MARK = b'"tool_use_id":"'
_MAX_CALL_ID_CHARS = 256


def checked_text(payload: JsonObject, name: str) -> str | None:
    """Return a text that names something; None where it is missing or empty.

    Raises:
        ValueError: It is no text, or too long for a name.
    """
    value = payload.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{name} is of kind {type(value).__name__}, not text")
    if len(value) > MAX_FIELD_CHARS:
        raise ValueError(f"{name} has {len(value):,} characters, at most {MAX_FIELD_CHARS:,}")
    return value or None


def text_in(payload: JsonObject, name: str) -> str:
    """Return a text; empty where there is none."""
    value = payload.get(name)
    return value if isinstance(value, str) else ""


def call_id_at_end(tail: bytes) -> str | None:
    """Return the ``tool_use_id`` in the last part of a payload, or None."""
    # Quotes inside a text are escaped, so this spelling is a key; the payload's own comes last.
    _, found, rest = tail.rpartition(_CALL_ID_MARK)
    call_id, closed, _ = rest.partition(b'"')
    if not (found and closed and call_id.isascii() and len(call_id) <= _MAX_CALL_ID_CHARS):
        return None
    return call_id.decode("ascii")


def read_payload(fd: int, begun: Begun | None = None) -> tuple[dict[str, Any], bytes]:
    """Read one payload.

    Args:
        fd: Where it comes from.
        begun: What was read of it already, and whether that is all; None = nothing.

    Returns:
        Its members; of one above 1 MiB the first members, and its last 4 KiB.

    Raises:
        ValueError: It is no JSON object, or did not come in time.
    """
    from ultramon.system.compact_json import leading_members

    data, tail = read_bounded(fd, begun)
    if tail is None:
        return decode_payload(data), b""
    # The cut may lie within a character. Nothing is left out: that would make two ids the same.
    return leading_members(data[:HEAD_BYTES].decode("utf-8", "replace")), tail


def decode_payload(data: bytes) -> dict[str, Any]:
    """Decode one payload.

    Raises:
        ValueError: It is no JSON object.
    """
    from ultramon.system import compact_json

    value = compact_json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"the payload is a {type(value).__name__}, not an object")
    return value


def read_bounded(fd: int, begun: Begun | None = None) -> tuple[bytes, bytes | None]:
    """Read a stream to its end, for 2 s at most, keeping its first MiB.

    Args:
        fd: The stream.
        begun: As for `read_payload`.

    Returns:
        The beginning, and the last bytes when that is not all of it; else None.
    """
    if begun is not None and begun.is_ended:
        return begun.data, None
    import select

    deadline = time.monotonic() + INPUT_SECONDS
    chunks = [] if begun is None else [begun.data]
    size = sum(map(len, chunks))
    tail: bytes | None = None
    if size > MAX_PAYLOAD_BYTES:
        tail = chunks[0][-_TAIL_BYTES:]
        chunks[0] = chunks[0][:MAX_PAYLOAD_BYTES]
    waiting = select.poll() if hasattr(select, "poll") else None
    if waiting is not None:
        waiting.register(fd, select.POLLIN | select.POLLHUP)
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or (waiting is not None and not waiting.poll(left * 1000)):
            # The host writes and closes at once: what came by now is all there will be.
            break
        chunk = os.read(fd, 1 << 16)
        if not chunk:
            break
        size += len(chunk)
        if size <= MAX_PAYLOAD_BYTES:
            chunks.append(chunk)
        else:
            tail = ((tail if tail is not None else b"".join(chunks)) + chunk)[-_TAIL_BYTES:]
    return b"".join(chunks), tail
