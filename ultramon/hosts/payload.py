"""The payload of a hook on standard input, read within bounds of time and memory.

Standard library only. Hostile or broken input raises ValueError; nothing else.
"""

from __future__ import annotations

import os
import select
import time

from ultramon.system import compact_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_PAYLOAD_BYTES = 1 << 20
"""A larger payload is read to its end and known only by its first and last part."""
HEAD_BYTES = 64 * 1024
_TAIL_BYTES = 4 * 1024
INPUT_SECONDS = 2.0


def read_payload(fd: int) -> tuple[dict[str, Any], bytes]:
    """Read one payload.

    Returns:
        Its members; of one above 1 MiB the first members, and its last 4 KiB.

    Raises:
        ValueError: It is no JSON object, or did not come in time.
    """
    data, tail = read_bounded(fd, time.monotonic() + INPUT_SECONDS)
    if tail is None:
        return decode_payload(data), b""
    # The cut may lie within a character. Nothing is left out: that would make two ids the same.
    return compact_json.leading_members(data[:HEAD_BYTES].decode("utf-8", "replace")), tail


def decode_payload(data: bytes) -> dict[str, Any]:
    """Decode one payload.

    Raises:
        ValueError: It is no JSON object.
    """
    value = compact_json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"the payload is a {type(value).__name__}, not an object")
    return value


def read_bounded(fd: int, deadline: float) -> tuple[bytes, bytes | None]:
    """Read a stream to its end, keeping its first MiB.

    Args:
        fd: The stream.
        deadline: When to give up, by the monotonic clock.

    Returns:
        The beginning, and the last bytes when that is not all of it; else None.
    """
    chunks: list[bytes] = []
    size = 0
    tail: bytes | None = None
    waiting = select.poll() if hasattr(select, "poll") else None
    if waiting is not None:
        waiting.register(fd, select.POLLIN | select.POLLHUP)
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or (waiting is not None and not waiting.poll(left * 1000)):
            # The client writes and closes at once: what came by now is all there will be.
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
