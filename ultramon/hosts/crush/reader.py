"""Reads the lines of a Crush session as a stream of records.

Standard library only. The format was learnt from the client's source at migration 20260127000000,
never from a running one; the lines are those of `ultramon.hosts.crush.database.session_lines`.
"""

from __future__ import annotations

from ultramon.hosts.transcripts.jsonl import (
    Recent,
    decode_object,
    object_in,
    read_lines,
    text_of,
    text_or_none,
    token_count,
)
from ultramon.hosts.transcripts.records import (
    UNSTATED_MODEL,
    Billed,
    Boundary,
    Content,
    Record,
    Report,
    Returned,
    TranscriptIdentity,
)
from ultramon.hosts.transcripts.session_lines import identify_session, looks_like_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ultramon.hosts.transcripts.jsonl import JsonObject

_KIND = "crush"
_AGENT_TOOLS = ("agent", "agentic_fetch")
"""Launch a subagent, whose session is named after the call."""


def read_transcript(lines: Iterable[bytes]) -> Iterator[Record]:
    """Yield the facts of one session; never raises, whatever the bytes."""
    return read_lines(lines, _LineReader().read, lambda line: False)


def looks_like_transcript(head: bytes) -> bool:
    """Tell whether lines that begin with `head` are those of a session of Crush."""
    return looks_like_session(head, _KIND)


def identify(lines: Iterable[bytes]) -> TranscriptIdentity | None:
    """Return whose lines they are; None = they do not say."""
    return identify_session(lines, _KIND)


class _LineReader:
    """What must be remembered from line to line of one session."""

    def __init__(self) -> None:
        self._tools = Recent()
        self._children = Recent()
        self._is_counted = False

    def read(self, entry: JsonObject) -> Iterable[Record]:
        """Return the facts of one line; raise ValueError when it makes no sense."""
        data, kind = object_in(entry, "data"), entry.get(_KIND)
        at = data.get("at")
        at = float(at) if isinstance(at, int | float) else None
        if kind == "usage":
            return self._read_usage(data, at)
        return self._read_message(data, at) if kind == "message" else ()

    def _read_usage(self, data: JsonObject, at: float | None) -> list[Report | Billed]:
        """Read the only count of a session: of its last request, and what all have cost."""
        model, cost = text_or_none(data.get("model")), data.get("cost")
        prompt, completion = token_count(data, "prompt"), token_count(data, "completion")
        if not prompt:  # behind a summary, whose own reply is all that is counted
            billed = (0, 0, 0, 0, completion)
            return [Billed(UNSTATED_MODEL, billed, at)] if completion else []
        usd = float(cost) if isinstance(cost, int | float) and cost > 0 else None
        self._is_counted = True
        priced = model if usd is not None else UNSTATED_MODEL
        return [Report(None, priced, model, prompt, 0, 0, completion, at, cost_usd=usd)]

    def _read_message(self, data: JsonObject, at: float | None) -> Iterator[Record]:
        is_reply, is_summary = data.get("role") == "assistant", data.get("is_summary") is True
        counted, self._is_counted = self._is_counted and is_reply, False
        if is_summary:
            yield Boundary(None, None, at)
        source = "summary" if is_summary else "assistant" if is_reply else "user"
        name = text_or_none(data.get("id")) or ""
        parts = data.get("parts")
        for part in parts if isinstance(parts, list) else ():
            if not isinstance(part, dict):
                continue
            inner = object_in(part, "data")
            if part.get("type") == "tool_call":
                yield from self._read_call(inner, name, at, counted=counted)
            elif part.get("type") == "tool_result":
                yield from self._read_result(inner, at)
            elif text := text_of(inner, ("text", "thinking", "command", "output")):
                yield Content(text, source, at, counted=counted)

    def _read_call(
        self, call: JsonObject, message_id: str, at: float | None, *, counted: bool
    ) -> Iterator[Record]:
        tool, asked = text_or_none(call.get("name")) or "unknown", text_of(call, ("input",))
        try:
            file = text_or_none(decode_object(asked.encode("utf-8", "replace")).get("file_path"))
        except ValueError:
            file = None
        self._tools.add(call.get("id"), f"{tool} {file or ''}")
        if tool in _AGENT_TOOLS:
            self._children.add(call.get("id"), f"{message_id}$${call.get('id')}")
        yield Content(f"{tool}\n{asked}", "assistant", at, counted=counted)

    def _read_result(self, result: JsonObject, at: float | None) -> Iterator[Record]:
        call_id, text = result.get("tool_call_id"), text_of(result, ("content",))
        tool, _, file = (self._tools.get(call_id) or "unknown").partition(" ")
        if (child := self._children.get(call_id)) is not None:
            yield Returned(child, bool(text.strip()) and result.get("is_error") is not True, at)
        if text:
            yield Content(text, f"tool:{tool}", at, file=file or None)
