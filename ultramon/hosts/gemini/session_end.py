"""How a session of Gemini CLI ended of which no hook has reported the end.

The session file of a request that failed looks like that of a process that was killed while it
waited. The host writes a report of each failure, with the whole request, to the folder for
temporary files; its last message says whose it is.
"""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING

from ultramon.errors import StateCorruptError
from ultramon.hosts.gemini.configuration import TEMPORARY_VARIABLE
from ultramon.hosts.gemini.last_reading import unanswered_request
from ultramon.hosts.transcripts.jsonl import decode_object, text_or_none
from ultramon.hosts.transcripts.records import OVERFLOW, SessionEnd
from ultramon.system.files import read_private_file
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ultramon.hosts.transcripts.jsonl import JsonObject

_PREFIX = "gemini-client-error-"
_SUFFIX = ".json"
_STAMP = "-YYYY-MM-DDThh-mm-ss-mmmZ"
_MAX_REPORTS = 8
"""Of those after the request, the first ones: other sessions may have failed as well."""
_MAX_REPORT_BYTES = 16 * 1024 * 1024
_UNNAMED = "request failed"


def read_session_end(path: str, environ: Mapping[str, str]) -> SessionEnd | None:
    """Return what the last request failed with; see `Transcripts.read_session_end`."""
    request = unanswered_request(path)
    asked_at = None if request is None else parse_time(request.get("timestamp"))
    if request is None or asked_at is None:
        return None
    folder = environ.get(TEMPORARY_VARIABLE) or "/tmp"
    for at, name in islice(_reports_since(folder, asked_at), _MAX_REPORTS):
        try:
            # Others may write there: a file of another user is refused.
            data, _ = read_private_file(os.path.join(folder, name), _MAX_REPORT_BYTES)
            report = decode_object(data)
        except (OSError, StateCorruptError, ValueError):
            continue
        if _last_parts(report) == request.get("content"):
            return SessionEnd(at, _error_in(report))
    return None


def _reports_since(folder: str, since: float) -> Iterator[tuple[float, str]]:
    """Yield the reports written from a time on, the first one first."""
    found = []
    for name in os.listdir(folder):
        if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
            stamp = name.removesuffix(_SUFFIX)[-len(_STAMP) + 1 :]
            day, _, clock = stamp.partition("T")
            hours, minutes, rest = (*clock.split("-", 2), "", "")[:3]
            at = parse_time(f"{day}T{hours}:{minutes}:{rest.replace('-', '.')}")
            if at is not None and at >= since:
                found.append((at, name))
    return iter(sorted(found))


def _last_parts(report: JsonObject) -> object:
    messages = report.get("context")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return last.get("parts") if isinstance(last, dict) else None


def _error_in(report: JsonObject) -> str:
    """Return `OVERFLOW`, the provider's word for the failure, or that there was one."""
    from ultramon.context.limits import parse_overflow

    error = report.get("error")
    message = text_or_none(error.get("message")) if isinstance(error, dict) else None
    if message is None:
        return _UNNAMED
    if parse_overflow(message) is not None:
        return OVERFLOW
    try:
        answer = decode_object(message.encode("utf-8", "replace")).get("error")
    except ValueError:
        return _UNNAMED
    return text_or_none(answer.get("status")) or _UNNAMED if isinstance(answer, dict) else _UNNAMED
