"""The last reading in an event file, found from its end, and how a session ended.

Standard library only: every hook call that measures uses it. The host writes its events down in
batches: up to 150 ms pass until the call of a hook, and the reply before it, is in the file.
"""

from __future__ import annotations

import os
import time

from ultramon.hosts.copilot.event_file import split
from ultramon.hosts.copilot.reader import (
    COMPACTED,
    ERROR,
    REPLY,
    USAGE,
    agent_of,
    call_of,
    error_of,
    is_compaction,
    request_of,
    window_of,
)
from ultramon.hosts.transcripts.jsonl import object_in, open_transcript, text_of, text_or_none
from ultramon.hosts.transcripts.records import OVERFLOW, Billed, LastReading, Report, SessionEnd
from ultramon.hosts.transcripts.tail import BLOCK_BYTES, MAX_TAIL_BYTES, objects_from_end
from ultramon.system.timestamps import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ultramon.hosts.transcripts.jsonl import JsonObject

_ABORT, _SHUTDOWN = "abort", "session.shutdown"
_ASKED = "permission.requested"
_WAIT_SECONDS, _LOOK_AGAIN_SECONDS = 1.0, 0.005
"""Nearly always over within 0.15 s; what it waits for is rare, and wrong without it."""
_CALLED, _FAILED = "tool.execution_start", "subagent.failed"
_FACTS = (USAGE, COMPACTED, ERROR, REPLY, _ABORT)
_MARKED_BYTES = 1 << 20
_TURNS = ("assistant.turn_start", "assistant.turn_end")


def read_last_reading(path: str, *, is_subagent: bool, call_id: str | None = None) -> LastReading:
    """Read an event file from its end until the last reply of an agent, or a compaction, is found.

    Args:
        path: The event file, or ``<file>/<id>`` of a subagent in it.
        is_subagent: Whether it is a subagent's; its name says it too.
        call_id: The milliseconds of the hook call that asks; None = nothing is waited for.

    Raises:
        OSError: It cannot be opened: it is not there, or not readable.
        ValueError: It is no regular file but, for example, a link.
    """
    file, agent_id = split(path)
    fd, size = open_transcript(file)
    reading = LastReading.of_file(os.fstat(fd).st_ino, size)
    reading.is_current = call_id is None or _holds(fd, size, call_id.encode())
    texts: dict[str | None, str] = {}
    for entry, end in _own_events(fd, size, agent_id, _FACTS):
        kind, data, at = entry["type"], object_in(entry, "data"), parse_time(entry.get("timestamp"))
        if kind == COMPACTED:
            if is_compaction(entry):
                reading.compaction_id = text_or_none(entry.get("id")) or ""
                reading.compacted_at = at
                break
        elif kind == USAGE:
            report = _report_or_none(entry)
            if report is None:
                continue
            if reading.report is not None:
                break
            reading.report, reading.bytes_behind = report, size - end
            reading.window_tokens = window_of(entry) or None
            reading.text = texts.get(call_of(entry), "")
        elif reading.report is None and kind == REPLY:
            texts.setdefault(call_of(entry), text_of(data.get("content"), ("text",)))
        elif reading.report is None and reading.stopped_at is None:
            reading.stopped_at = at
            _note_error(reading, entry, data)
    else:
        reading.has_given_up = reading.report is None and size > MAX_TAIL_BYTES
    return reading


def _holds(fd: int, size: int, mark: bytes) -> bool:
    """Return whether a mark is in the last MiB of a file, nearly always in its last block."""
    end = size
    while end > max(0, size - _MARKED_BYTES):
        start = max(0, end - BLOCK_BYTES)
        if mark in os.pread(fd, end - start + len(mark), start):
            return True
        end = start
    return False


def _note_error(reading: LastReading, entry: JsonObject, data: JsonObject) -> None:
    reading.error = error_of(entry)
    status = data.get("statusCode")
    reading.error_status = status if type(status) is int else None
    if reading.error == OVERFLOW:
        from ultramon.context.limits import parse_overflow

        numbers = parse_overflow(text_of(data.get("message"), None))
        reading.refused_above_tokens = None if numbers is None else numbers[1]


def read_last_replies(path: str, *, is_subagent: bool) -> list[tuple[Report, list[str]]]:
    """Return the last two replies of this window, newest first; raises as `read_last_reading`.

    Without their calls: hooks do not learn the ids of those.
    """
    file, agent_id = split(path)
    found: list[tuple[Report, list[str]]] = []
    for entry, _ in _own_events(*open_transcript(file), agent_id, (USAGE, COMPACTED)):
        report = _report_or_none(entry)
        if report is not None:
            found.append((report, []))
        if len(found) == 2 or is_compaction(entry):
            break
    return found


def read_new_requests(
    path: str, counted: Collection[str], most: int
) -> list[tuple[str, Report | Billed]] | None:
    """Return what requests of a subagent cost; see `Transcripts.new_requests`."""
    file, agent_id = split(path)
    if agent_id is None:
        return None
    found: list[tuple[str, Report | Billed]] = []
    for entry, _ in _own_events(*open_transcript(file), agent_id, (USAGE, COMPACTED)):
        name = text_or_none(entry.get("id"))
        try:
            request = request_of(entry)
        except ValueError:
            continue
        if name is not None and request is not None and name not in counted:
            found.append((name, request))
        if len(found) == most:
            break
    return found[::-1]


def await_mark(path: str, mark: str | None) -> None:
    """Wait, not for long, until the call of a hook stands in an event file; raises as above."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while mark is not None:
        fd, size = open_transcript(path)
        try:
            is_there = _holds(fd, size, mark.encode())
        finally:
            os.close(fd)
        if is_there or time.monotonic() >= deadline:
            return
        time.sleep(_LOOK_AGAIN_SECONDS)


def find_asking(path: str) -> str | None:
    """Return the subagent for which a person was asked last; None = the session."""
    for entry, _ in objects_from_end(*open_transcript(path), (_ASKED.encode(),)):
        if entry.get("type") == _ASKED:
            return agent_of(entry)
    return None


def find_failed(path: str, agent_id: str | None, asked: object) -> str | None:
    """Return the subagent of a call that has failed; None = it began none. Raises as above.

    Args:
        path: The event file.
        agent_id: The agent that called; None = the session.
        asked: The arguments of the call, by which the file names it too.
    """
    failed: dict[object, str | None] = {}
    marks = (_FAILED.encode(), _CALLED.encode())
    for entry, _ in objects_from_end(*open_transcript(path), marks):
        data = object_in(entry, "data")
        if entry.get("type") == _FAILED:
            failed[data.get("toolCallId")] = agent_of(entry)
        elif (
            entry.get("type") == _CALLED
            and agent_of(entry) == agent_id
            and data.get("arguments") == asked
        ):
            return failed.get(data.get("toolCallId"))
    return None


def read_session_end(path: str) -> SessionEnd | None:
    """Return how a session ended, by its last event; None = it was killed, or still runs.

    Raises:
        OSError: As `read_last_reading`.
        ValueError: As `read_last_reading`.
    """
    ended_at: float | None = None
    for entry, _ in _own_events(*open_transcript(path), None, (_SHUTDOWN, ERROR, _ABORT, *_TURNS)):
        kind = entry["type"]
        if ended_at is not None:
            return SessionEnd(ended_at, error_of(entry) or "", cuts_turn=kind == _TURNS[0])
        ended_at = parse_time(entry.get("timestamp")) if kind == _SHUTDOWN else None
        if ended_at is None:
            return None
    return None


def _own_events(
    fd: int, size: int, agent_id: str | None, kinds: Collection[str]
) -> Iterator[tuple[JsonObject, int]]:
    """Yield the events of one agent that are of some kinds, last first, each with its end."""
    marks = [f'"{kind}"' for kind in kinds] if agent_id is None else [f'"{agent_id}"']
    for entry, end in objects_from_end(fd, size, tuple(mark.encode() for mark in marks)):
        if entry.get("type") in kinds and agent_of(entry) == agent_id:
            yield entry, end


def _report_or_none(entry: JsonObject) -> Report | None:
    try:
        request = request_of(entry)
    except ValueError:
        return None
    return request if isinstance(request, Report) else None
