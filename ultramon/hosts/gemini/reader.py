"""Reads the session file of a Gemini agent as a stream of records.

Standard library only: hooks import it. The format was learnt from recordings of version 0.61.0.
"""

from __future__ import annotations

from ultramon.hosts.transcripts.images import images_in
from ultramon.hosts.transcripts.jsonl import (
    Recent,
    TranscriptReader,
    decode_object,
    head_objects,
    object_in,
    optional_token_count,
    text_of,
    text_or_none,
    token_count,
)
from ultramon.hosts.transcripts.prompts import split_prompt
from ultramon.hosts.transcripts.records import (
    Boundary,
    Content,
    Image,
    Record,
    Report,
    Returned,
    Rewind,
    TranscriptIdentity,
)
from ultramon.system.timestamps import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from ultramon.hosts.transcripts.jsonl import JsonObject

SUMMARY_TAG = "<state_snapshot>"
"""What the host's summaries begin with."""
_FOLDERS = "**Workspace Directories:**\n  - "
_SUBAGENT = "subagent"
_MESSAGES = ("user", "gemini", "info", "error")
_NUDGE = "[System: You successfully executed a tool but returned an empty response."


def identify(lines: Iterable[bytes], session_id: str | None = None) -> TranscriptIdentity | None:
    """Return whose session file it is, from its first 400 lines, or None when they do not say.

    Args:
        lines: The file's lines.
        session_id: The session of a subagent, which its own file does not name; None = unknown.
    """
    identity: TranscriptIdentity | None = None
    for entry in head_objects(lines):
        if identity is None:
            own_id = text_or_none(entry.get("sessionId"))
            if own_id is None:
                return None  # the file's name is all there is
            is_child = entry.get("kind") == _SUBAGENT and session_id is not None
            identity = TranscriptIdentity(str(session_id), own_id) if is_child else None
            identity = identity or TranscriptIdentity(own_id)
            folders = entry.get("directories")
            if isinstance(folders, list) and folders:
                identity.project = text_or_none(folders[0])
        elif identity.project is None and (messages := _messages_of(entry)):
            identity.project = _project_in(_text(messages[0]))
        elif entry.get("type") == "gemini" and (model := text_or_none(entry.get("model"))):
            identity.model = model
            break
    return identity


def looks_like_transcript(head: bytes) -> bool:
    """Tell whether a file that begins with `head` is a session file of Gemini.

    Args:
        head: The first bytes, 64 kB being plenty; the last line may be cut anywhere.
    """
    try:
        entry = decode_object(head.partition(b"\n")[0])
    except ValueError:
        return False
    if all(isinstance(entry.get(name), str) for name in ("sessionId", "projectHash", "kind")):
        return True
    # The host may have lost the first line; then it names neither session nor project.
    return (
        entry.get("type") in _MESSAGES
        and "content" in entry
        and all(isinstance(entry.get(name), str) for name in ("id", "timestamp"))
    )


def is_nudge(content: object) -> bool:
    """Tell whether a prompt is the host's own, after tools whose turn gave no text."""
    return text_of(content, ("text",)).startswith(_NUDGE)


def waits_for_tools(entry: JsonObject) -> bool:
    """Tell whether a line is a reply whose tools, if it has any, have not all run."""
    return entry.get("type") == "gemini" and "toolCalls" not in entry


def holds_results(entry: JsonObject) -> bool:
    """Tell whether a line holds what the tools of a reply have answered, and nothing else."""
    parts = entry.get("content")
    if entry.get("type") != "user":
        return entry.get("type") == "gemini" and "toolCalls" in entry
    return (
        isinstance(parts, list)
        and bool(parts)
        and all(isinstance(part, dict) and "functionResponse" in part for part in parts)
    )


def report_of(entry: JsonObject) -> Report | None:
    """Return the count of the reply in a line; None for other lines and replies without one.

    Raises:
        ValueError: The line reports impossible token counts.
    """
    tokens = entry.get("tokens")
    if entry.get("type") != "gemini" or not isinstance(tokens, dict):
        return None
    if not token_count(tokens, "input"):
        return None  # a request that was cancelled
    model = text_or_none(entry.get("model"))
    report = Report(
        message_id=text_or_none(entry.get("id")),
        model=model,
        requested_model=model,
        input_tokens=token_count(tokens, "input"),
        cache_read_tokens=token_count(tokens, "cached"),
        cache_creation_tokens=0,
        output_tokens=token_count(tokens, "output"),
        at=parse_time(entry.get("timestamp")),
    )
    total = optional_token_count(tokens, "total")
    report.find_cache(total)
    report.find_thoughts(optional_token_count(tokens, "thoughts") or 0, total)
    return report


def summary_id(entry: JsonObject) -> str | None:
    """Return the id of the summary that a conversation written anew begins with, or None.

    A resumed session writes its conversation anew too, with the ids that it had.
    """
    for message in _messages_of(entry)[:2]:
        if _text(message).startswith(SUMMARY_TAG):
            return text_or_none(message.get("id")) or ""
    return None


def result_of(entry: JsonObject) -> str | None:
    """Return the result in the line that ends a subagent's file; None in other lines."""
    update = entry.get("$set")
    result = update.get("summary") if isinstance(update, dict) else None
    return result if isinstance(result, str) else None


class LineReader(TranscriptReader):
    """What must be remembered from line to line of one session file.

    A Report's input includes the cached tokens.

    Args:
        memory: Of a reader of the lines before.
    """

    def __init__(self, memory: dict[str, Any] | None = None) -> None:
        self._is_subagent = self._has_begun = False
        self._counted = Recent()
        self._summaries = Recent()
        if memory is not None:
            self._is_subagent, self._has_begun = memory["isSubagent"], memory["hasBegun"]
            self._counted = Recent(memory["counted"])
            self._summaries = Recent(memory["summaries"])

    def memory(self) -> dict[str, Any]:
        """Return what the constructor takes as `memory`."""
        return {
            "isSubagent": self._is_subagent,
            "hasBegun": self._has_begun,
            "counted": self._counted.to_json(),
            "summaries": self._summaries.to_json(),
        }

    def read(self, entry: JsonObject) -> Iterable[Record]:
        """Return the facts of one line; raise ValueError when it makes no sense."""
        if isinstance(entry.get("$set"), dict):
            return self._read_update(entry)
        if isinstance(entry.get("$rewindTo"), str):
            return (Rewind(None),)
        if entry.get("kind") == _SUBAGENT:
            self._is_subagent = True
        if entry.get("type") == "user":
            self._has_begun = True
            return _content(entry, "user")
        report = report_of(entry)
        # A reply is written again when its tools have run.
        if report is None or report.message_id in self._counted:
            return ()
        self._has_begun = True
        self._counted.add(report.message_id)
        return (report,)

    def _read_update(self, entry: JsonObject) -> Iterable[Record]:
        messages = _messages_of(entry)
        summary = summary_id(entry)
        if summary is not None:
            if summary in self._summaries:
                return ()
            self._summaries.add(summary)
            at = parse_time(object_in(entry, "$set").get("lastUpdated"))
            first = _text(messages[0])
            kept = messages if first.startswith(SUMMARY_TAG) else messages[1:]
            texts = [one for message in kept for one in _content(message, "summary")]
            return (Boundary(None, None, at), *texts)
        if messages and not self._has_begun:
            self._has_begun = True
            return [one for message in messages for one in _content(message, "instructions")]
        result = result_of(entry)
        if result is None or not self._is_subagent:
            return ()
        return (Returned(None, bool(result), None),)


def _messages_of(entry: JsonObject) -> list[JsonObject]:
    update = entry.get("$set")
    messages = update.get("messages") if isinstance(update, dict) else None
    if not isinstance(messages, list):
        return []
    return [message for message in messages if isinstance(message, dict)]


def _content(message: JsonObject, source: str) -> Iterator[Content | Image]:
    """Yield the texts and images of one message; results of tools under their names."""
    at = parse_time(message.get("timestamp"))
    parts = message.get("content")
    for part in parts if isinstance(parts, list) else [parts]:
        result = part.get("functionResponse") if isinstance(part, dict) else None
        if isinstance(result, dict):
            name = text_or_none(result.get("name")) or "unknown"
            texts = iter([(text_of(result.get("response"), None), f"tool:{name}")])
        else:
            texts = split_prompt(text_of(part, ("text",)), source)
        for text, kind in texts:
            if text:
                yield Content(text, kind, at)
        yield from images_in(part, at)


def _text(message: JsonObject) -> str:
    return text_of(message.get("content"), ("text",))


def _project_in(text: str) -> str | None:
    """Return the first folder of the workspace, as the host describes it to the model."""
    return text_or_none(text.partition(_FOLDERS)[2].partition("\n")[0])
