"""The last reading of a session, from its newest messages, and how it ended.

Standard library only. The plugin sends these messages with each request; elsewhere they come from
the database.
"""

from __future__ import annotations

from ultramon.hosts.opencode.reader import (
    ABORTED,
    CHECKPOINT,
    created_at,
    ended_at,
    error_of,
    is_summary,
    report_of,
    request_of,
)
from ultramon.hosts.transcripts.jsonl import decode_object, object_in, text_of
from ultramon.hosts.transcripts.records import LastReading, SessionEnd
from ultramon.hosts.transcripts.session_databases import split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from typing import Any

    from ultramon.hosts.transcripts.jsonl import JsonObject
    from ultramon.hosts.transcripts.records import Billed, Report

_MAX_MESSAGES = 200
_CALLS = "tool-calls"


def reading_of(messages: Iterable[tuple[str, JsonObject]]) -> LastReading:
    """Return what the newest messages say of the window.

    Args:
        messages: Id and content, the newest first; two replies or a compaction are enough.
    """
    reading = LastReading()
    reading.is_current = True
    for name, info in messages:
        if is_summary(info) or info.get(CHECKPOINT):
            reading.compaction_id, reading.compacted_at = name, ended_at(info) or created_at(info)
            break
        if info.get("role") != "assistant":
            continue
        if info.get("summary") is True:
            continue
        report, error = _report_or_none(info, name), error_of(info)
        if reading.report is not None:
            if report is not None:
                break
            continue
        if error is not None and reading.stopped_at is None:
            reading.stopped_at = ended_at(info) or (report.at if report else None)
            reading.error = None if error == ABORTED else error
        reading.report = report
    return reading


def read_last_reading(path: str, *, is_subagent: bool, call_id: str | None = None) -> LastReading:
    """Read the newest messages of a session; see `Transcripts.read_last_reading`.

    Args:
        path: ``<database>/<session>``.
        is_subagent: Whether it is a subagent's; each has a session of its own.
        call_id: Not needed: nothing newer than a stored reply is asked for.

    Raises:
        OSError: The database cannot be opened or read.
        ValueError: It is none, or of an unknown version.
    """
    from ultramon.hosts.opencode.database import parts_of
    from ultramon.hosts.transcripts.database import opened

    file, session_id = split(path)
    with opened(file) as database:
        reading = reading_of(_messages(database, session_id))
        if reading.report is not None and reading.report.message_id:
            for data in parts_of(database, reading.report.message_id):
                part = _decoded(data)
                if part.get("type") == "text":
                    reading.text = text_of(part, ("text",)) or reading.text
    return reading


def read_last_replies(path: str, *, is_subagent: bool) -> list[tuple[Report, list[str]]]:
    """Return the last two replies of this window; raises as `read_last_reading`.

    Without their calls: the plugin reports the end of all of a reply's calls at once.
    """
    from ultramon.hosts.transcripts.database import opened

    file, session_id = split(path)
    found: list[tuple[Report, list[str]]] = []
    with opened(file) as database:
        for name, info in _messages(database, session_id):
            if is_summary(info) or info.get(CHECKPOINT) or len(found) == 2:
                break
            report = None if info.get("summary") is True else _report_or_none(info, name)
            if report is not None:
                found.append((report, []))
    return found


def read_new_requests(
    path: str, counted: Collection[str], most: int
) -> list[tuple[str, Report | Billed]]:
    """Return what requests of a session cost; see `Transcripts.new_requests`."""
    from ultramon.hosts.opencode.database import message, newest_message_ids
    from ultramon.hosts.transcripts.database import opened

    file, session_id = split(path)
    found = []
    with opened(file) as database:
        for name in newest_message_ids(database, session_id, most):
            if name in counted:
                continue
            try:
                request = request_of(_decoded(message(database, name)), name)
            except ValueError:
                continue
            if request is not None:
                found.append((name, request))
    return found


def read_session_end(path: str) -> SessionEnd | None:
    """Return how a session ended, by its last message; None = in the middle of a reply.

    Raises:
        OSError: As `read_last_reading`.
        ValueError: As `read_last_reading`.
    """
    from ultramon.hosts.transcripts.database import opened

    file, session_id = split(path)
    with opened(file) as database:
        for _, info in _messages(database, session_id):
            at = ended_at(info)
            if info.get("role") != "assistant" or at is None:
                return None  # a prompt without a reply, or a reply that was cut
            error = error_of(info)
            if error == ABORTED:
                return SessionEnd(at, cuts_turn=True)
            return SessionEnd(at, error or "", cuts_turn=info.get("finish") == _CALLS)
    return None


def _messages(database: Any, session_id: str) -> Iterator[tuple[str, JsonObject]]:
    from ultramon.hosts.opencode.database import has_agents, newest_messages, parts_of

    has_checkpoints = has_agents(database)
    for name, data in newest_messages(database, session_id, _MAX_MESSAGES):
        info = _decoded(data)
        if has_checkpoints and info.get("role") == "user":
            kinds = {_decoded(part).get("type") for part in parts_of(database, name)}
            info[CHECKPOINT] = CHECKPOINT in kinds
        yield name, info


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        return decode_object(data)
    except ValueError:
        return {}


def _report_or_none(info: JsonObject, name: str) -> Report | None:
    try:
        return report_of(info, name) if object_in(info, "tokens") else None
    except ValueError:
        return None
