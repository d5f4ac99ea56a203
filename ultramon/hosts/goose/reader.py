"""Reads the lines of a Goose session as a stream of records.

Standard library only. The format was learnt from the client's source at schema 17, never from a
running one; the lines are those of `ultramon.hosts.goose.database.session_lines`.
"""

from __future__ import annotations

from ultramon.hosts.transcripts.jsonl import (
    Recent,
    object_in,
    optional_token_count,
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
    TranscriptIdentity,
    Window,
)
from ultramon.hosts.transcripts.session_lines import identify_session, looks_like_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ultramon.hosts.transcripts.jsonl import JsonObject

_KIND = "goose"
_NAMES = ("input_tokens", "output_tokens", "total_tokens", "cache_read_tokens",
          "cache_write_tokens")  # fmt: skip
_CARRIED = "carried_forward"
"""Names a row for all that was counted before there was one for each request."""


def read_transcript(lines: Iterable[bytes]) -> Iterator[Record]:
    """Yield the facts of one session; never raises, whatever the bytes."""
    return read_lines(lines, _LineReader().read, lambda line: False)


def looks_like_transcript(head: bytes) -> bool:
    """Tell whether lines that begin with `head` are those of a session of Goose."""
    return looks_like_session(head, _KIND)


def identify(lines: Iterable[bytes]) -> TranscriptIdentity | None:
    """Return whose lines they are; None = they do not say."""
    return identify_session(lines, _KIND)


class _LineReader:
    """What must be remembered from line to line of one session."""

    def __init__(self) -> None:
        self._model: str | None = None
        self._tools = Recent()
        self._has_costs = False
        self._compacted_at: float | None = None
        self._is_compacted = False

    def read(self, entry: JsonObject) -> Iterable[Record]:
        """Return the facts of one line; raise ValueError when it makes no sense."""
        data, kind = object_in(entry, "data"), entry.get(_KIND)
        at = data.get("at")
        at = float(at) if isinstance(at, int | float) else None
        if kind == "session":
            return self._read_session(data)
        if kind == "message":
            return self._read_message(data, at)
        if kind == "usage":
            return self._read_usage(data, at)
        return self._read_sums(data, at) if kind == "sums" else ()

    def _read_session(self, data: JsonObject) -> list[Record]:
        model = object_in(data, "model")
        self._model = text_or_none(model.get("model_name"))
        compacted = data.get("compacted")
        self._compacted_at = float(compacted) if isinstance(compacted, int | float) else None
        window = optional_token_count(model, "context_limit")
        return [Window(window, None)] if window else []

    def _read_usage(self, data: JsonObject, at: float | None) -> list[Record]:
        counts, cost = data.get("counts"), data.get("cost")
        if not isinstance(counts, list) or not isinstance(cost, list) or len(cost) != 3:
            return []
        self._has_costs = True
        usd, source, is_summary = cost
        model = text_or_none(data.get("model")) or self._model
        report = _report(dict(zip(_NAMES, counts, strict=False)), model, at)
        if report is None:
            return []
        if is_summary:
            self._is_compacted = True
            summary = Billed(model, report.billed_tokens, at, is_summary=True)
            return [summary, Boundary(None, None, at)]
        if source == _CARRIED:
            return [Billed(model, report.billed_tokens, at)]
        if isinstance(usd, int | float) and usd > 0:
            report.cost_usd = float(usd)
        return [report]

    def _read_sums(self, data: JsonObject, at: float | None) -> list[Record]:
        """Read what is all that is known of a session without a count for each request."""
        last = _report(data, self._model, at)
        if last is None:
            return []
        total = _report({name: data.get(f"accumulated_{name}") for name in _NAMES}, None, at)
        usd = data.get("accumulated_cost")
        if isinstance(usd, int | float) and usd > 0:
            last.cost_usd = float(usd)
        before = _difference(total, last)
        if before is None:
            last.model = UNSTATED_MODEL
            return [last]
        return [*([Billed(self._model, before, at)] if any(before) else ()), last]

    def _read_message(self, data: JsonObject, at: float | None) -> Iterator[Record]:
        metadata = object_in(data, "metadata")
        if metadata.get("agentVisible") is False:
            # A compaction hides from the agent what it replaces.
            was_read = at is not None and at <= (self._compacted_at or 0.0)
            if not was_read or metadata.get("userVisible") is False:
                return
        is_summary = self._is_compacted and metadata.get("userVisible") is False
        self._is_compacted = False
        content, role = data.get("content"), data.get("role")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                source = "summary" if is_summary else "assistant" if role == "assistant" else "user"
                yield from self._read_part(part, source, at)

    def _read_part(self, part: JsonObject, source: str, at: float | None) -> Iterator[Record]:
        kind = part.get("type")
        if kind == "toolRequest":
            call = object_in(object_in(part, "toolCall"), "value")
            tool = text_or_none(call.get("name")) or "unknown"
            asked = object_in(call, "arguments")
            file = text_or_none(asked.get("path")) or text_or_none(asked.get("file_path")) or ""
            self._tools.add(part.get("id"), f"{tool} {file}")
            yield Content(text_of([tool, asked], None), "assistant", at, counted=self._has_costs)
        elif kind == "toolResponse":
            result = object_in(part, "toolResult")
            text = text_of(result.get("value"), ("text", "content")) or text_of(result, ("error",))
            tool, _, file = (self._tools.get(part.get("id")) or "unknown").partition(" ")
            if text:
                yield Content(text, f"tool:{tool}", at, file=file or None)
        elif text := text_of(part, ("text", "thinking")):
            counted = source == "assistant" and self._has_costs
            yield Content(text, source, at, counted=counted)


def _report(counts: JsonObject, model: str | None, at: float | None) -> Report | None:
    known = {name: value for name, value in counts.items() if value is not None}
    found = Report(
        None, model, model, token_count(known, "input_tokens"),
        token_count(known, "cache_read_tokens"), token_count(known, "cache_write_tokens"),
        token_count(known, "output_tokens"), at,
    )  # fmt: skip
    found.find_cache(optional_token_count(known, "total_tokens"))
    return found if found.tokens else None


def _difference(total: Report | None, last: Report) -> tuple[int, ...] | None:
    """Return what was billed before the last request; None = the sums do not say."""
    if total is None:
        return None
    total.cache_in_input = last.cache_in_input
    pairs = zip(total.billed_tokens, last.billed_tokens, strict=True)
    found = tuple(whole - part for whole, part in pairs)
    return None if any(count < 0 for count in found) else found
