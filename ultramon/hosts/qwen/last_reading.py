"""The last reading in the file of an agent, found from its end.

Standard library only: every hook call that measures uses it. The host writes while its hooks run:
on a busy machine a reply may come after the call of the hook.
"""

from __future__ import annotations

import os

from ultramon.hosts.qwen.reader import LineReader, parts_of, said_in
from ultramon.hosts.transcripts.jsonl import open_transcript
from ultramon.hosts.transcripts.records import (
    OVERFLOW,
    Boundary,
    LastReading,
    Overflow,
    Report,
    Window,
)
from ultramon.hosts.transcripts.tail import MAX_TAIL_BYTES, Owner, objects_from_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.hosts.transcripts.jsonl import JsonObject
    from ultramon.hosts.transcripts.records import Record

LAUNCH_TOOL = "agent"
"""The tool by which an agent launches a subagent."""
_MARKS = (b'"usageMetadata"', b'"chat_compression"', b"qwen-code.api_error")
_CALL_MARKS = (b'"functionCall"', b'"functionResponse"')


def read_last_reading(path: str, *, is_subagent: bool, call_id: str | None = None) -> LastReading:
    """Read a file from its end until the last reply or compaction is found.

    Args:
        path: The file of the agent itself.
        is_subagent: Whether it is a subagent's; each has a file of its own.
        call_id: The tool call that has run; its own result is written after the hooks.

    Raises:
        OSError: It cannot be opened: it is not there, or not readable.
        ValueError: It is no regular file but, for example, a link.
    """
    owner = Owner(path)
    reading = _read_from_end(path, call_id, owner)
    return _read_from_end(path, call_id, None) if owner.is_missing else reading


def _read_from_end(path: str, call_id: str | None, owner: Owner | None) -> LastReading:
    fd, size = open_transcript(path)
    reading = LastReading.of_file(os.fstat(fd).st_ino, size)
    calls: set[str] = set()
    answered: set[str] = set()
    for entry, records, end in _entries_from_end(fd, size, (*_MARKS, *_CALL_MARKS), owner):
        calls |= _ids(entry, "functionCall")
        answered |= _ids(entry, "functionResponse")
        for record in records:
            if isinstance(record, Report):
                reading.report, reading.bytes_behind = record, size - end
                reading.text = said_in(entry)
            elif isinstance(record, Window):
                reading.window_tokens = record.tokens
            elif isinstance(record, Overflow):
                reading.error, reading.stopped_at = OVERFLOW, record.at
        if reading.report is not None or any(isinstance(one, Boundary) for one in records):
            break
    else:
        reading.has_given_up = size > MAX_TAIL_BYTES
    # Version 0.15 names the call by an id that is not in the file.
    reading.is_current = call_id is None or not calls <= answered
    return reading


def read_last_replies(path: str, *, is_subagent: bool) -> list[tuple[Report, list[str]]]:
    """Return the last two replies after the last compaction, newest first, each with its calls.

    Args:
        path: The file of the agent itself.
        is_subagent: Whether it is a subagent's.

    Raises:
        OSError: It cannot be opened: it is not there, or not readable.
        ValueError: It is no regular file but, for example, a link.
    """
    replies: list[tuple[Report, list[str]]] = []
    calls: list[str] = []
    marks = (*_MARKS, *_CALL_MARKS)
    for entry, records, _ in _entries_from_end(*open_transcript(path), marks, Owner(path)):
        if any(isinstance(record, Boundary) for record in records):
            break
        calls[:0] = sorted(_ids(entry, "functionCall"))
        for record in records:
            if isinstance(record, Report):
                replies.append((record, calls))
                calls = []
        if len(replies) == 2:
            break
    return replies


def may_run_subagent(path: str) -> bool:
    """Tell whether the last reply has launched a subagent that has not come back.

    The hooks of version 0.15 do not say whose tool has run.

    Args:
        path: The file of the session.
    """
    try:
        fd, size = open_transcript(path)
    except (OSError, ValueError):
        return False
    answered: set[str] = set()
    for entry, _, _ in _entries_from_end(fd, size, _CALL_MARKS):
        if _ids(entry, "functionCall"):
            return not _ids(entry, "functionCall", LAUNCH_TOOL) <= answered
        answered |= _ids(entry, "functionResponse")
    return False


def _ids(entry: JsonObject, kind: str, name: str | None = None) -> set[str]:
    """Return the ids of the calls or results in a line, only those of a tool if it is named."""
    found = (part.get(kind) for part in parts_of(entry) if isinstance(part, dict))
    return {
        one["id"]
        for one in found
        if isinstance(one, dict)
        and isinstance(one.get("id"), str)
        and name in (None, one.get("name"))
    }


def _entries_from_end(
    fd: int, size: int, marks: tuple[bytes, ...], owner: Owner | None = None
) -> Iterator[tuple[JsonObject, list[Record], int]]:
    """Yield the lines with one of these marks, last first, with their records and where they end.

    Each line is judged as if it were the first.
    """
    for entry, end in objects_from_end(fd, size, marks):
        if owner is not None and not owner.accept(entry.get("sessionId")):
            continue
        try:
            records = list(LineReader().read(entry))
        except ValueError:
            continue  # not the host's own
        yield entry, records, end
