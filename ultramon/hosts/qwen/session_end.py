"""How a session of Qwen Code ended of which no hook has reported the end.

The host writes a line for each session that it closes, also where its last request failed; only
version 0.15, and a process that was killed, leave none. It does so too where a signal ends a turn.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ultramon.hosts.qwen import configuration
from ultramon.hosts.qwen.reader import has_overflowed, parts_of, refusal_in
from ultramon.hosts.transcripts.jsonl import open_transcript, text_or_none
from ultramon.hosts.transcripts.records import OVERFLOW, SessionEnd
from ultramon.hosts.transcripts.tail import objects_from_end
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.hosts.transcripts.jsonl import JsonObject

_TELEMETRY = "ui_telemetry"
_MARKS = (
    b'"type":"assistant"', b'"type":"user"', b'"type":"tool_result"', b'"chat_compression"',
    _TELEMETRY.encode(),
)  # fmt: skip
_CLOSED_SESSIONS = "usage_record.jsonl"


def read_session_end(path: str, environ: Mapping[str, str]) -> SessionEnd | None:
    """Return how a session ended; see `Transcripts.read_session_end`.

    After a request that was too large the host makes a summary, and then ends. What else is
    refused may be sent again: it was the end only where the host has closed the session.
    """
    last_at = 0.0
    for entry, _ in objects_from_end(*open_transcript(path), _MARKS):
        at = parse_time(entry.get("timestamp"))
        if at is None:
            return None
        last_at = max(last_at, at)
        refusal = refusal_in(entry)
        if refusal is None and entry.get("subtype") == _TELEMETRY:
            continue
        closed_at = _closed_at(path, environ)
        if closed_at is None or closed_at < at:
            return SessionEnd(last_at, OVERFLOW) if has_overflowed(refusal) else None
        if refusal is not None:
            kind = text_or_none(refusal.get("error_type")) or "request failed"
            return SessionEnd(closed_at, OVERFLOW if has_overflowed(refusal) else kind)
        return SessionEnd(closed_at, cuts_turn=not _is_last_reply(entry))
    return None


def _is_last_reply(entry: JsonObject) -> bool:
    """Tell a whole reply that calls no tool."""
    if entry.get("type") != "assistant" or not isinstance(entry.get("usageMetadata"), dict):
        return False
    return not any(isinstance(part, dict) and "functionCall" in part for part in parts_of(entry))


def _closed_at(path: str, environ: Mapping[str, str]) -> float | None:
    """Return when the host has closed a session last, epoch seconds; None = it has not."""
    session_id, _ = os.path.splitext(os.path.basename(path))
    closed = os.path.join(configuration.home_directory(environ), _CLOSED_SESSIONS)
    try:
        lines = objects_from_end(*open_transcript(closed), (session_id.encode(),))
    except FileNotFoundError:
        return None
    for entry, _ in lines:
        at = entry.get("timestamp")
        if entry.get("sessionId") == session_id:
            return at / 1000 if type(at) is int and 0 < at < 1 << 53 else None
    return None
