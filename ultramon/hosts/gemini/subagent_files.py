"""The session files of subagents, by which their hook calls are known from those of their session.

Standard library only. Every payload names the session, for a call of a subagent too. A subagent
writes ``<session id>/<its id>.jsonl`` beside the session's own file.
"""

from __future__ import annotations

import os

from ultramon.hosts.gemini.reader import holds_results, result_of, waits_for_tools
from ultramon.hosts.transcripts.jsonl import decode_object, open_transcript, text_of
from ultramon.hosts.transcripts.records import Record
from ultramon.hosts.transcripts.tail import objects_from_end
from ultramon.system.timestamps import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.transcripts.jsonl import JsonObject

SUFFIX = ".jsonl"
_HEAD_BYTES = 64 * 1024
_MARKS = (b'"type"', b'"summary"')
_OBJECTIVE = "objective"
"""The element in which some kinds of subagents get their task, within words of the host."""
_MAX_FILES = 256


class SubagentFile(Record):
    """One subagent of a session, as its file shows it.

    Attributes:
        subagent_id: The host's name for it.
        task: What it was asked, as the host words it.
        is_over: Whether its result is written down.
        has_result: Whether that is a text.
        is_in_tool: Whether a reply of it waits for its tools.
        has_run_tools: Whether the tools of its last reply have run, and nothing else has happened.
    """

    subagent_id: str
    task: str
    is_over: bool
    has_result: bool
    is_in_tool: bool
    has_run_tools: bool

    @property
    def objective(self) -> str:
        """The task alone, as its launcher worded it."""
        _, _, inner = self.task.partition(f"<{_OBJECTIVE}>")
        return inner.partition(f"</{_OBJECTIVE}>")[0].strip() or self.task


def folder_of(session_path: str, session_id: str) -> str:
    """Return the folder of a session's subagents, whether it exists or not."""
    return os.path.join(os.path.dirname(session_path), session_id)


def subagents_of_call(session_path: str, session_id: str) -> list[SubagentFile]:
    """Return the subagents that began since the last reply of a session, those that ended too.

    The session waits for all of them before it asks its model again, so that no other one runs.

    Args:
        session_path: The session's own file.
        session_id: The session.
    """
    folder = folder_of(session_path, session_id)
    try:
        names = [name for name in os.listdir(folder) if name.endswith(SUFFIX)]
    except OSError:
        return []
    # Only the last reply's calls can have launched one that still runs.
    since = _last_reply_at(session_path)
    recent = [path for name in names if _changed_at(path := os.path.join(folder, name)) >= since]
    found = (_read(path, since) for path in sorted(recent)[:_MAX_FILES])
    return [one for one in found if one is not None]


def _changed_at(path: str) -> float:
    """Return when a file changed, at the latest: its time is coarser than the host's."""
    try:
        return os.stat(path).st_mtime + 1
    except OSError:
        return 0.0


def _last_reply_at(path: str) -> float:
    try:
        entries = objects_from_end(*open_transcript(path), (b'"gemini"',))
    except (OSError, ValueError):
        return 0.0
    for entry, _ in entries:
        if entry.get("type") == "gemini":
            return parse_time(entry.get("timestamp")) or 0.0
    return 0.0


def _read(path: str, since: float) -> SubagentFile | None:
    """Return a subagent, unless it began before a time."""
    try:
        fd, size = open_transcript(path)
    except (OSError, ValueError):
        return None
    entries = objects_from_end(fd, size, _MARKS)
    head = os.pread(fd, _HEAD_BYTES, 0).split(b"\n", 2)
    try:
        if (parse_time(decode_object(head[0]).get("startTime")) or 0.0) < since:
            return None
        task = text_of(decode_object(head[1]).get("content"), ("text",)) if head[1:] else ""
    except ValueError:
        task = ""
    finally:
        last = next(entries, (None, 0))[0]
        entries.close()
    name = os.path.basename(path).removesuffix(SUFFIX)
    return _described(name, task, last)


def _described(name: str, task: str, last: JsonObject | None) -> SubagentFile:
    result = None if last is None else result_of(last)
    return SubagentFile(
        subagent_id=name,
        task=task,
        is_over=result is not None,
        has_result=bool(result),
        is_in_tool=waits_for_tools(last or {}),
        has_run_tools=holds_results(last or {}),
    )
