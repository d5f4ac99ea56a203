"""The last reading in a session file, found from its end.

Standard library only: every hook call that measures uses it. The host writes the usage of a reply
down before it calls the hooks of its tools, so nothing newer is ever missing.
"""

from __future__ import annotations

import os

from ultramon.hosts.gemini.reader import report_of, summary_id
from ultramon.hosts.transcripts.jsonl import object_in, open_transcript, text_of
from ultramon.hosts.transcripts.records import LastReading, Report
from ultramon.hosts.transcripts.tail import MAX_TAIL_BYTES, objects_from_end
from ultramon.system.timestamps import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.transcripts.jsonl import JsonObject

    _Reply = tuple[Report, JsonObject, int]

_MARKS = (b'"gemini"', b'"messages"')


def read_last_reading(path: str, *, is_subagent: bool, call_id: str | None = None) -> LastReading:
    """Read a session file from its end until the last reply or compression is found.

    Args:
        path: The session file of the agent itself.
        is_subagent: Whether it is a subagent's; each has a file of its own.
        call_id: Not needed: a hook is called when its reply is written down.

    Raises:
        OSError: It cannot be opened: it is not there, or not readable.
        ValueError: It is no regular file but, for example, a link.
    """
    fd, size = open_transcript(path)
    reading = LastReading.of_file(os.fstat(fd).st_ino, size)
    # Gemini CLI writes a reply down before it calls the hooks of its tools.
    reading.is_current = True
    replies, compaction = _window_from_end(fd, size)
    if compaction is not None:
        reading.compaction_id = summary_id(compaction)
        reading.compacted_at = parse_time(object_in(compaction, "$set").get("lastUpdated"))
    elif not replies:
        reading.has_given_up = size > MAX_TAIL_BYTES
    for report, entry, end in replies[:1]:
        reading.report, reading.bytes_behind = report, size - end
        reading.text = text_of(entry.get("content"), ("text",))
    return reading


def read_last_replies(path: str, *, is_subagent: bool) -> list[tuple[Report, list[str]]]:
    """Return the last two replies after the last compression, newest first.

    Without their calls: hooks do not learn the ids of those.

    Args:
        path: The session file of the agent itself.
        is_subagent: Whether it is a subagent's.

    Raises:
        OSError: It cannot be opened: it is not there, or not readable.
        ValueError: It is no regular file but, for example, a link.
    """
    replies, _ = _window_from_end(*open_transcript(path))
    return [(report, []) for report, _, _ in replies]


def lacks_reply(path: str) -> bool:
    """Return whether the last request of a session has got no reply: its file names no error."""
    return last_message(path).get("type") == "user"


def last_message(path: str) -> JsonObject:
    """Return the last line of a file that is a message; empty where there is none."""
    try:
        return _find_last_message(path)
    except (OSError, ValueError):
        return {}


def unanswered_request(path: str) -> JsonObject | None:
    """Return the line of the last request of a session if no reply follows it.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It is no regular file.
    """
    last = _find_last_message(path)
    return last if last.get("type") == "user" else None


def _find_last_message(path: str) -> JsonObject:
    """Return the last message, as `last_message`, or raise why the file cannot be read.

    Where the first request of a prompt fails, the host writes the conversation before it anew.
    """
    for entry, _ in objects_from_end(*open_transcript(path), (b'"user"', b'"gemini"')):
        if entry.get("type") in ("user", "gemini"):
            return entry
    return {}


def _window_from_end(fd: int, size: int) -> tuple[list[_Reply], JsonObject | None]:
    """Return the last two replies of the present window, last first, and how that began.

    Returns:
        Each reply with its line and where that ends, and the line of the compression; None where
        both replies follow it. A resume writes a conversation that was compressed anew, summary
        and all: of lines with the same summary the first one is the compression.
    """
    replies: list[_Reply] = []
    earlier: list[_Reply] = []
    compaction: JsonObject | None = None
    for entry, end in objects_from_end(fd, size, _MARKS):
        found = summary_id(entry)
        if found is not None:
            if compaction is not None:
                if summary_id(compaction) != found:
                    break
                replies, earlier = (replies + earlier)[:2], []
            compaction = entry
        elif (report := _report_of(entry)) is not None:
            own = replies if compaction is None else earlier
            if not own or own[-1][0].message_id != report.message_id:
                own.append((report, entry, end))
                del own[2:]
        if len(replies) == 2:
            return replies, None
    return replies, compaction


def _report_of(entry: JsonObject) -> Report | None:
    try:
        return report_of(entry)
    except ValueError:
        return None
