"""Reads the lines of an opencode session as a stream of records.

Standard library only. The format was learnt from recordings of version 1.18.33; the lines are those
of `ultramon.hosts.opencode.database.session_lines`.
"""

from __future__ import annotations

from ultramon.hosts.transcripts.images import images_in
from ultramon.hosts.transcripts.jsonl import (
    decode_object,
    has_line,
    head_objects,
    object_in,
    read_lines,
    text_of,
    text_or_none,
    token_count,
)
from ultramon.hosts.transcripts.records import (
    OVERFLOW,
    THINKING,
    Billed,
    Boundary,
    Content,
    Overflow,
    Record,
    Report,
    Returned,
    TranscriptIdentity,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ultramon.hosts.transcripts.jsonl import JsonObject

OVERFLOW_ERROR = "ContextOverflowError"
ABORTED = "MessageAbortedError"
TASK = "task"
"""The tool that launches a subagent."""
_KIND = "opencode"
_MARK = b'"opencode"'
CHECKPOINT = "checkpoint"
"""The part of a message with which a fork begins a window anew from its notes."""
_RESULT = "task_result"


def read_transcript(lines: Iterable[bytes]) -> Iterator[Record]:
    """Yield the facts of one session in the order of its messages.

    Never raises, whatever the bytes; what cannot be read is a `Broken`. A Report comes before the
    Content of its reply.

    Args:
        lines: The lines of one session.
    """
    return read_lines(lines, _LineReader().read, lambda line: False)


def looks_like_transcript(head: bytes, host: str = _KIND) -> bool:
    """Tell whether lines that begin with `head` are those of a session of opencode, or a fork.

    Args:
        head: The first bytes of a file.
        host: Which of them.
    """
    return _MARK in head and has_line(
        head, lambda entry: entry.get(_KIND) == "session" and entry.get("host", _KIND) == host
    )


def identify(lines: Iterable[bytes]) -> TranscriptIdentity | None:
    """Return whose lines they are: the first one says it; None = it does not."""
    for entry in head_objects(lines):
        name, data = text_or_none(entry.get("id")), object_in(entry, "data")
        root = text_or_none(data.get("root"))
        if entry.get(_KIND) != "session" or name is None or root is None:
            continue
        return TranscriptIdentity(
            root,
            None if name == root else name.removeprefix(f"{root}."),
            _model_in(text_or_none(data.get("model"))),
            text_or_none(data.get("directory")),
            began_at=seconds(data.get("created")),
        )
    return None


def _model_in(text: str | None) -> str | None:
    try:
        return None if text is None else text_or_none(decode_object(text.encode()).get("id"))
    except ValueError:
        return None


def seconds(milliseconds: object) -> float | None:
    """Return epoch seconds; None where no time is stated."""
    is_time = isinstance(milliseconds, int | float) and 0 < milliseconds < 1 << 53
    return milliseconds / 1000 if is_time else None  # type: ignore[operator]


def ended_at(info: JsonObject) -> float | None:
    """Return when a message was complete, epoch seconds; None = it is not."""
    return seconds(object_in(info, "time").get("completed"))


def created_at(info: JsonObject) -> float | None:
    """Return when a message began, epoch seconds; None where it does not say."""
    return seconds(object_in(info, "time").get("created"))


def report_of(info: JsonObject, message_id: str) -> Report | None:
    """Return what the provider counted for a reply; None while it is not known.

    The host states reasoning beside the output, and its own total of the window has both.

    Raises:
        ValueError: A number is no token count.
    """
    tokens = object_in(info, "tokens")
    cache, reasoning = object_in(tokens, "cache"), token_count(tokens, "reasoning")
    model, cost = text_or_none(info.get("modelID")), info.get("cost")
    began_at = created_at(info)
    report = Report(
        message_id=message_id,
        model=model,
        requested_model=model,
        input_tokens=token_count(tokens, "input"),
        cache_read_tokens=token_count(cache, "read"),
        cache_creation_tokens=token_count(cache, "write"),
        output_tokens=token_count(tokens, "output") + reasoning,
        at=ended_at(info) or began_at,
        # Without a price the host counts 0.
        cost_usd=float(cost) if isinstance(cost, int | float) and cost > 0 else None,
        # Of some providers the output has it, and the host counts 0.
        thinking_tokens=reasoning or None,
        # A fork has the messages of its session under new ids, with their times.
        copied_id=None if began_at is None else str(began_at),
    )
    return report if report.tokens else None


def error_of(info: JsonObject) -> str | None:
    """Return what a reply failed with, `OVERFLOW` or the host's name; None = it did not."""
    return error_named(text_or_none(object_in(info, "error").get("name")))


def error_named(name: str | None) -> str | None:
    """Return the error of a name: `OVERFLOW`, or the host's name as it is."""
    return OVERFLOW if name == OVERFLOW_ERROR else name


def request_of(info: JsonObject, message_id: str) -> Report | Billed | None:
    """Return what the request behind a message cost; None = it had none, or it is not known yet.

    Raises:
        ValueError: A number is no token count.
    """
    if info.get("role") != "assistant":
        return None
    report = report_of(info, message_id)
    if report is None or info.get("summary") is not True:
        return report
    if not is_summary(info):
        return None
    return Billed(report.model, report.billed_tokens, report.at, is_summary=True)


def is_summary(info: JsonObject) -> bool:
    """Tell the complete summary of a compaction, whose count is of the window before."""
    return info.get("summary") is True and ended_at(info) is not None and not info.get("error")


def result_in(output: str) -> str:
    """Return the text that a subagent gave back, out of what its launcher reads; maybe empty."""
    inner = output.partition(f"<{_RESULT}>")[2].partition(f"</{_RESULT}>")[0]
    return inner.strip()


class _LineReader:
    """What must be remembered from line to line of one session."""

    def __init__(self) -> None:
        self._info: JsonObject = {}
        self._is_counted = False
        self._trigger: str | None = None

    def read(self, entry: JsonObject) -> Iterable[Record]:
        """Return the facts of one line; raise ValueError when it makes no sense."""
        data, kind = object_in(entry, "data"), entry.get(_KIND)
        if kind == "message":
            self._info, self._is_counted = data, False
            return self._read_message(data, text_or_none(entry.get("id")) or "")
        return self._read_part(data) if kind == "part" else ()

    def _read_message(self, info: JsonObject, name: str) -> list[Record]:
        if info.get("role") != "assistant":
            return []
        request = request_of(info, name)
        found: list[Record] = [] if request is None else [request]
        if info.get("summary") is True:
            if is_summary(info):
                found.append(Boundary(self._trigger, None, ended_at(info)))
            return found
        self._is_counted = request is not None
        if error_of(info) == OVERFLOW:
            found.append(Overflow(ended_at(info)))
        return found

    def _read_part(self, part: JsonObject) -> Iterable[Record]:
        kind, at = part.get("type"), created_at(self._info)
        if kind == "compaction":
            self._trigger = "auto" if part.get("auto") else "manual"
            if part.get("overflow"):
                yield Overflow(at)
        elif kind == CHECKPOINT:
            yield Boundary("auto", None, at)
        elif kind in ("text", "reasoning") and (text := text_of(part, ("text",))):
            is_reply = self._info.get("role") == "assistant"
            source = "user"
            if is_reply:
                source = THINKING if kind == "reasoning" else "assistant"
            if self._info.get("summary") is True:
                source = "summary"
            yield Content(text, source, at, counted=self._is_counted)
        elif kind == "tool":
            yield from self._read_call(part, at)
        elif kind == "file":
            yield from images_in(part, at)

    def _read_call(self, part: JsonObject, at: float | None) -> Iterable[Record]:
        state = object_in(part, "state")
        asked, tool = object_in(state, "input"), text_or_none(part.get("tool")) or "unknown"
        if text := text_of([tool, asked], None):
            yield Content(text, "assistant", at, counted=self._is_counted)
        result = text_of(state, ("output", "error"))
        ended = seconds(object_in(state, "time").get("end"))
        child = text_or_none(object_in(state, "metadata").get("sessionId"))
        if tool == TASK and child is not None and ended is not None:
            yield Returned(child, bool(result_in(result)), ended)
        file = text_or_none(asked.get("filePath"))
        if result:
            yield Content(result, f"tool:{tool}", ended, file=file)
        yield from images_in(state, ended, file, tool)
