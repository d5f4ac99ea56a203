"""The last reading in a transcript, found from its end: as fast in 100 MB as in one.

Standard library only: every hook call that measures uses it.
"""

from __future__ import annotations

import os

from ultramon.hosts.claude_code.reader import (
    LineReader,
    error_of,
    is_beside_requests,
    refused_above,
)
from ultramon.hosts.transcripts.jsonl import (
    decode_object,
    object_in,
    open_transcript,
    text_of,
    text_or_none,
)
from ultramon.hosts.transcripts.records import OVERFLOW, Boundary, Content, LastReading, Report
from ultramon.hosts.transcripts.tail import MAX_TAIL_BYTES, Owner, objects_from_end
from ultramon.system.timestamps import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ultramon.hosts.transcripts.jsonl import JsonObject
    from ultramon.hosts.transcripts.records import Record

_BUDGET = b"total_tokens_reminder"
_BUDGET_TAIL_BYTES = 1024 * 1024
"""Where a budget is looked for: the host repeats it with each request."""
_INTERRUPTION = b"[Request interrupted by user"
_HOOK_STOP = b"hook_stopped_continuation"
_COUNTS = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "iterations",
)
_MARKS = (b'"usage"', b"compact_boundary", _INTERRUPTION, _HOOK_STOP)


def read_last_reading(path: str, *, is_subagent: bool, call_id: str | None = None) -> LastReading:
    """Read a transcript from its end until the last reply or compaction is found.

    Args:
        path: The transcript of the agent itself.
        is_subagent: Whether it is a subagent's own file.
        call_id: The tool call that the reply should hold.

    Raises:
        OSError: It cannot be opened: it is not there, or not readable.
        ValueError: It is no regular file but, for example, a link.
    """
    owner = None if is_subagent else Owner(path)
    tail = _read_from_end(path, is_subagent, call_id, owner)
    # A copy under another name: none of its lines names the session of the file.
    if owner is not None and owner.is_missing:
        tail = _read_from_end(path, is_subagent, call_id, None)
    return tail


def _read_from_end(
    path: str, is_subagent: bool, call_id: str | None, owner: Owner | None
) -> LastReading:
    fd, size = open_transcript(path)
    tail = LastReading.of_file(os.fstat(fd).st_ino, size)
    for entry, records, error, end in _entries_from_end(fd, size, is_subagent, owner):
        report = next((record for record in records if isinstance(record, Report)), None)
        if tail.report is None:
            tail.report = report
            tail.bytes_behind = size - end
            if report is not None:
                tail.text = text_of(object_in(entry, "message").get("content"), ("text",))
            tail.error = tail.error or error
            if error == OVERFLOW and tail.refused_above_tokens is None:
                tail.refused_above_tokens = refused_above(entry)
            tail.lacks_count = tail.lacks_count or (report is None and _is_uncounted(entry))
            if tail.stop_reason is None and report is None:
                tail.stop_reason = _stop_reason(entry)
            if tail.stopped_at is None:
                tail.stopped_at = (
                    parse_time(entry.get("timestamp")) if error else _interrupted_at(records)
                )
        if any(isinstance(record, Boundary) for record in records):
            break
        if report is None or tail.report is None:
            continue
        # The host writes one line per block of a reply, all with the id of the reply.
        if report.message_id != tail.report.message_id:
            break
        tail.is_current = call_id is not None and call_id in _calls(entry)
        if call_id is None or tail.is_current:
            break
    else:
        tail.has_given_up = tail.report is None and size > MAX_TAIL_BYTES
    return tail


def _is_uncounted(entry: JsonObject) -> bool:
    """Tell a reply beside which there are zeros: the host had no numbers of its provider."""
    message = object_in(entry, "message")
    usage = message.get("usage")
    return (
        entry.get("type") == "assistant"
        and message.get("model") != "<synthetic>"
        and isinstance(usage, dict)
        and not any(usage.get(name) for name in _COUNTS)
    )


def read_last_replies(path: str, *, is_subagent: bool) -> list[tuple[Report, list[str]]]:
    """Return the last two replies after the last compaction, newest first, each with its calls.

    Args:
        path: The transcript of the agent itself.
        is_subagent: Whether it is a subagent's own file.

    Raises:
        OSError: It cannot be opened: it is not there, or not readable.
        ValueError: It is no regular file but, for example, a link.
    """
    replies: list[tuple[Report, list[str]]] = []
    owner = None if is_subagent else Owner(path)
    for entry, records, _, _ in _entries_from_end(*open_transcript(path), is_subagent, owner):
        if any(isinstance(record, Boundary) for record in records):
            break
        for record in records:
            if not isinstance(record, Report):
                continue
            if not replies or replies[-1][0].message_id != record.message_id:
                if len(replies) == 2:
                    return replies
                replies.append((record, []))
            replies[-1][1][:0] = _calls(entry)
    return replies


def read_token_budget(path: str) -> int | None:
    """Return the token budget that the host last wrote into the conversation, or None.

    It counts for the session, up to 15 million in the recordings, and is no context window.

    Args:
        path: The transcript of the agent itself.
    """
    try:
        fd, size = open_transcript(path)
    except (OSError, ValueError):
        return None
    try:
        start = max(0, size - _BUDGET_TAIL_BYTES)
        tail = os.pread(fd, size - start, start)
    finally:
        os.close(fd)
    for line in reversed(tail.split(b"\n")) if _BUDGET in tail else ():
        if _BUDGET in line:
            try:
                attachment = decode_object(line)["attachment"]
                if attachment["type"] == _BUDGET.decode():
                    left = attachment["text"].removeprefix("<total_tokens>")
                    return int(left.removesuffix(" tokens left</total_tokens>"))
            except (ValueError, LookupError, TypeError, AttributeError):
                continue  # cut off, or a text that quotes the mark
    return None


def _entries_from_end(
    fd: int, size: int, is_subagent: bool, owner: Owner | None
) -> Iterator[tuple[JsonObject, list[Record], str | None, int]]:
    """Yield what can be read, last first, and close the file.

    Each line is yielded decoded, with its records, the error that it reports in the place of a
    reply, and where it ends.
    """
    for entry, end in objects_from_end(fd, size, _MARKS, is_beside_requests):
        if owner is not None and not owner.accept(entry.get("sessionId")):
            continue
        # One reader a line: each must be judged as if it were the first of its message.
        reader = LineReader(is_subagent)
        try:
            # Of an attachment only why a hook ended the turn is asked: no text of it is weighed.
            records = [] if entry.get("type") == "attachment" else list(reader.read(entry))
            error = error_of(entry) if reader.owns(entry) else None
        except ValueError:
            continue  # not the host's own
        yield entry, records, error, end


def _stop_reason(entry: JsonObject) -> str | None:
    """Return what a hook said that ended the agent, as the host's own line says it."""
    attachment = entry.get("attachment") if entry.get("type") == "attachment" else None
    if not isinstance(attachment, dict) or attachment.get("type") != _HOOK_STOP.decode():
        return None
    return text_or_none(attachment.get("message")) or ""


def _interrupted_at(records: list[Record]) -> float | None:
    for record in records:
        if isinstance(record, Content) and record.source == "user":
            return record.at if record.text.startswith(_INTERRUPTION.decode()) else None
    return None


def _calls(entry: JsonObject) -> list[Any]:
    """Return the ids of the tool calls in a line of a reply."""
    content = object_in(entry, "message").get("content")
    return [
        block.get("id")
        for block in (content if isinstance(content, list) else ())
        if isinstance(block, dict) and block.get("type") == "tool_use"
    ]
