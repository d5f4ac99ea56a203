"""The last reading in a rollout, found from its end.

Standard library only: every hook call that measures uses it. The host writes the usage of a reply
down before it calls the hooks of its tools, so nothing newer is ever missing.
"""

from __future__ import annotations

import os

from ultramon.hosts.codex.reader import LineReader
from ultramon.hosts.transcripts.jsonl import (
    bounded_lines,
    head_objects,
    object_in,
    open_transcript,
    text_or_none,
)
from ultramon.hosts.transcripts.records import OVERFLOW, LastReading, Report
from ultramon.hosts.transcripts.tail import MAX_TAIL_BYTES, Owner, objects_from_end
from ultramon.system.timestamps import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.hosts.transcripts.jsonl import JsonObject

_KINDS = (
    "token_usage_record",
    "token_count",
    "task_started",
    "task_complete",
    "turn_context",
    "compacted",
)
_MARKS = tuple(f'"{kind}"'.encode() for kind in _KINDS)
_CALL = b'"function_call"'
_TOTAL = "total_token_usage"


def read_last_reading(path: str, *, is_subagent: bool, call_id: str | None = None) -> LastReading:
    """Read a rollout from its end until the last reply or compaction, and the window, are found.

    The usage of the request that wrote a summary is no reading: it saw the old window.

    Args:
        path: The rollout of the agent itself.
        is_subagent: Whether it is a subagent's; each has a rollout of its own.
        call_id: Not needed: a hook is called when its reply is written down.

    Raises:
        OSError: It cannot be opened: it is not there, or not readable.
        ValueError: It is no regular file but, for example, a link.
    """
    owner = Owner(path)
    reading = _read_from_end(path, owner)
    return _read_from_end(path, None) if owner.is_missing else reading


def _read_from_end(path: str, owner: Owner | None) -> LastReading:
    fd, size = open_transcript(path)
    reading = LastReading.of_file(os.fstat(fd).st_ino, size)
    # Codex writes a reply down before it calls the hooks of its tools.
    reading.is_current = True
    is_over = has_begun = False
    event = _EventCount()
    for entry, end in _entries_from_end(fd, size, _MARKS, owner):
        kind, payload = _kind(entry), object_in(entry, "payload")
        if reading.window_tokens is None and kind in ("token_count", "task_started"):
            reading.window_tokens = _window_of(payload)
        if kind == "token_count" and not reading.plan_limits:
            _take_limits(reading, payload, entry)
        if not is_over:
            if kind == "compacted":
                is_over = event.report is None
                event.is_behind_compaction = True
            elif kind == "task_started":
                has_begun = True
            elif kind == "task_complete" and not has_begun and event.report is None:
                _take_end(reading, payload, parse_time(entry.get("timestamp")))
            elif kind == "token_count":
                is_over = event.take(payload, entry, end)
            elif (report := _report_of(entry)) is not None:
                # This version writes records; what the events repeat is not asked for.
                event.report, is_over = None, True
                if not event.is_behind_compaction:
                    reading.report, reading.bytes_behind = report, size - end
        if is_over and reading.window_tokens is not None:
            break
    else:
        reading.has_given_up = not is_over and event.report is None and size > MAX_TAIL_BYTES
    if event.report is not None:
        reading.report, reading.bytes_behind = event.report, size - event.end
    return reading


class _EventCount:
    """The last count of a version that writes none but events: late, and again with each limit.

    Attributes:
        report: The count; None where there is none, or it is of the window before a compaction.
        end: Where its line ends.
        is_behind_compaction: Whether the search has passed a compaction.
    """

    def __init__(self) -> None:
        self.report: Report | None = None
        self.end = 0
        self.is_behind_compaction = False
        self._total: object = None

    def take(self, payload: JsonObject, entry: JsonObject, end: int) -> bool:
        """Take an event, going back; return whether the search is over."""
        report = _event_report(entry)
        if report is None:
            return False
        total = object_in(payload, "info").get(_TOTAL)
        if self.report is None:
            self.report, self.end, self._total = report, end, total
            return False
        if total != self._total:
            return True
        if self.is_behind_compaction:
            self.report = None  # its line before the compaction, written again
            return True
        self.end = end
        return False


def _event_report(entry: JsonObject) -> Report | None:
    """Return the count in an event; None where it holds none, or zeros."""
    try:
        found = [one for one in LineReader().read(entry) if isinstance(one, Report)]
    except ValueError:
        return None
    return found[0] if found else None


def read_last_replies(path: str, *, is_subagent: bool) -> list[tuple[Report, list[str]]]:
    """Return the last two replies after the last compaction, newest first, each with its calls.

    Calls of code mode are left out: the host calls hooks under other ids for those.

    Args:
        path: The rollout of the agent itself.
        is_subagent: Whether it is a subagent's.

    Raises:
        OSError: It cannot be opened: it is not there, or not readable.
        ValueError: It is no regular file but, for example, a link.
    """
    replies: list[tuple[Report, list[str]]] = []
    events: list[tuple[Report, list[str]]] = []
    total: object = None
    is_over = False
    marks = (*_MARKS, _CALL)
    for entry, _ in _entries_from_end(*open_transcript(path), marks, Owner(path)):
        kind, payload = _kind(entry), object_in(entry, "payload")
        found = replies or events
        if kind == "turn_context" and found:
            model = text_or_none(payload.get("model"))
            for reply, _ in found:
                reply.model = reply.requested_model = model
            break
        if is_over:
            continue
        if kind == "compacted":
            is_over = True
        elif kind == "function_call":
            for each in filter(None, (replies, events)):
                each[-1][1].insert(0, str(payload.get("call_id")))
        elif kind == "token_count":
            report, stated = _event_report(entry), object_in(payload, "info").get(_TOTAL)
            if report is not None and (not events or stated != total):
                total = stated
                is_over = not replies and len(events) == 2
                events.append((report, []))
        elif (report := _report_of(entry)) is not None:
            if len(replies) == 2:
                is_over = True
            else:
                replies.append((report, []))
    return replies or events[:2]


def client_version(path: str) -> str | None:
    """Return the version that began a rollout.

    Args:
        path: The rollout.

    Raises:
        OSError: It cannot be opened: it is not there, or not readable.
        ValueError: It is no regular file but, for example, a link.
    """
    fd, _ = open_transcript(path)
    with open(fd, "rb") as file:
        for entry in head_objects(bounded_lines(file)):
            if entry.get("type") == "session_meta":
                return text_or_none(object_in(entry, "payload").get("cli_version"))
    return None


def is_last_turn(path: str) -> bool:
    """Return whether the host ends with this turn: it was started to run one and no more."""
    try:
        fd, size = open_transcript(path)
    except (OSError, ValueError):
        return False
    for entry, _ in _entries_from_end(fd, size, (b'"task_started"',)):
        if _kind(entry) == "task_started":
            begun = object_in(entry, "payload").get("turn_attribution")
            return isinstance(begun, dict) and begun.get("turn_trigger") == "exec"
    return False


def _entries_from_end(
    fd: int, size: int, marks: tuple[bytes, ...], owner: Owner | None = None
) -> Iterator[tuple[JsonObject, int]]:
    """Yield the lines with one of these marks, last first, each with where it ends.

    A forked thread repeats the records of its parent, which name that one.
    """
    for entry, end in objects_from_end(fd, size, marks):
        payload = entry.get("payload")
        if isinstance(payload, dict) and (owner is None or owner.accept(payload.get("thread_id"))):
            yield entry, end


def _kind(entry: JsonObject) -> object:
    kind = entry.get("type")
    return (
        object_in(entry, "payload").get("type") if kind in ("event_msg", "response_item") else kind
    )


def _report_of(entry: JsonObject) -> Report | None:
    """Return the count in a line; a late copy of one, and zeros, are none."""
    if entry.get("type") != "token_usage_record":
        return None
    reader = LineReader()
    try:
        reader.read(entry)
    except ValueError:
        return None
    return reader.held[0] if reader.held else None


def _window_of(payload: JsonObject) -> int | None:
    info = payload.get("info") if payload.get("type") == "token_count" else payload
    tokens = info.get("model_context_window") if isinstance(info, dict) else None
    return tokens if type(tokens) is int and 0 < tokens <= 1_000_000_000 else None


def _take_limits(reading: LastReading, payload: JsonObject, entry: JsonObject) -> None:
    """Take the limits of the user's plan; most logins have them, a key of the API has none."""
    limits, at = payload.get("rate_limits"), parse_time(entry.get("timestamp"))
    if isinstance(limits, dict) and (limits.get("primary") or limits.get("secondary")) and at:
        from ultramon.hosts.codex.plan_limits import read_limits

        reading.plan_limits = read_limits(limits, at)


def _take_end(reading: LastReading, payload: JsonObject, at: float | None) -> None:
    reading.text = text_or_none(payload.get("last_agent_message")) or ""
    error = payload.get("error")
    if not isinstance(error, dict):
        return
    kind = error.get("codex_error_info")
    if isinstance(kind, dict) and len(kind) == 1:
        # A kind with facts is an object of one member, named after the kind.
        ((kind, facts),) = kind.items()
        status = facts.get("http_status_code") if isinstance(facts, dict) else None
        reading.error_status = status if type(status) is int else None
    reason = text_or_none(kind) or "request failed"
    reading.error = OVERFLOW if reason == "context_window_exceeded" else reason
    reading.stopped_at = at
