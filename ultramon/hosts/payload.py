"""What the client tells a hook on standard input, read within bounds of time and memory.

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
MAX_FIELD_CHARS = 4096
"""As long as a path may be; what names an agent or a call is shorter."""
_TAIL_BYTES = 4 * 1024
INPUT_SECONDS = 2.0
_CALL_ID_MARK = b'"tool_use_id":"'


class Payload:
    """One hook call.

    Attributes:
        event: Name of the event, e.g. ``PostToolUse``.
        session_id: The session.
        host_agent_id: The client's name for the subagent; None for the main agent.
        agent_type: The kind of subagent, empty when not told.
        transcript_path: The session's transcript, also for a subagent; None when not told.
        cwd: Working directory of the agent, or None.
        call_id: The tool call that the event is about, or None.
        fields: Everything that was told, or its beginning when that is large.
    """

    __slots__ = (
        "agent_type",
        "call_id",
        "cwd",
        "event",
        "fields",
        "host_agent_id",
        "session_id",
        "transcript_path",
    )

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.event = self._text("hook_event_name") or ""
        self.session_id = self._text("session_id") or ""
        self.host_agent_id = self._text("agent_id")
        self.agent_type = self._text("agent_type") or ""
        self.transcript_path = self._text("transcript_path")
        self.cwd = self._text("cwd")
        self.call_id = self._text("tool_use_id") or self._last_of_batch()

    def _text(self, name: str) -> str | None:
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise ValueError(f"{name} is of kind {type(value).__name__}, not text")
        if len(value) > MAX_FIELD_CHARS:
            raise ValueError(f"{name} has {len(value):,} characters, at most {MAX_FIELD_CHARS:,}")
        return value or None

    def _last_of_batch(self) -> str | None:
        calls = self.fields.get("tool_calls")
        last = calls[-1] if isinstance(calls, list) and calls else None
        call_id = last.get("tool_use_id") if isinstance(last, dict) else None
        return call_id if isinstance(call_id, str) and len(call_id) <= MAX_FIELD_CHARS else None

    def text(self, name: str) -> str:
        """Return a text among the fields, empty when there is none."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else ""


def read_payload(fd: int) -> Payload:
    """Read and understand one payload.

    Raises:
        ValueError: It is no JSON object with the fields of a hook, or did not come in time.
    """
    data, tail = read_bounded(fd, time.monotonic() + INPUT_SECONDS)
    if tail is None:
        value = compact_json.loads(data)
        if not isinstance(value, dict):
            raise ValueError(f"the payload is a {type(value).__name__}, not an object")
        return Payload(value)
    # The cut may lie within a character. Nothing is left out: that would make two ids the same.
    value = compact_json.leading_members(data[:HEAD_BYTES].decode("utf-8", "replace"))
    call_id = _call_id_at_end(tail)
    if call_id is not None:
        value.setdefault("tool_use_id", call_id)
    return Payload(value)


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


def _call_id_at_end(tail: bytes) -> str | None:
    # Quotes inside a text are escaped, so this spelling is a key; the payload's own comes last.
    _, found, rest = tail.rpartition(_CALL_ID_MARK)
    call_id, closed, _ = rest.partition(b'"')
    if not (found and closed and call_id.isascii() and len(call_id) <= 256):
        return None
    return call_id.decode("ascii")
