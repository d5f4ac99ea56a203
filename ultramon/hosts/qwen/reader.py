"""Reads the file of a Qwen Code session or subagent as a stream of records.

Standard library only: hooks import it. The format was learnt from recordings of versions 0.15.10
and 0.24.4.
"""

from __future__ import annotations

from ultramon.hosts.calls.claude_dialect import returned_by_news
from ultramon.hosts.transcripts.images import images_in
from ultramon.hosts.transcripts.jsonl import (
    Recent,
    TranscriptReader,
    has_line,
    head_objects,
    optional_token_count,
    text_of,
    text_or_none,
    token_count,
)
from ultramon.hosts.transcripts.prompts import split_prompt
from ultramon.hosts.transcripts.records import (
    THINKING,
    Boundary,
    Content,
    Overflow,
    Record,
    Report,
    Returned,
    Rewind,
    TranscriptIdentity,
    Window,
)
from ultramon.system.timestamps import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ultramon.hosts.transcripts.jsonl import JsonObject

UNSTATED_WINDOW_TOKENS = 131_072
"""The window that Qwen Code works with where it writes none beside the replies of a session."""
_NO_PARENT = "none"
_API_ERROR = "qwen-code.api_error"
_FIRST_KEYS = b'{"uuid":"'
_TEXT_KEYS = ("text",)
_RESULT_KEYS = ("output", "error")
_FILE_KEYS = ("file_path", "absolute_path")


def identify(lines: Iterable[bytes]) -> TranscriptIdentity | None:
    """Return whose file it is, from its first 400 lines, or None when they do not say.

    A subagent's file names no model.
    """
    identity: TranscriptIdentity | None = None
    for entry in head_objects(lines):
        if not _is_own(entry):
            continue
        if identity is None:
            agent_id = text_or_none(entry.get("agentId")) if entry.get("isSidechain") else None
            cwd = text_or_none(entry.get("cwd"))
            identity = TranscriptIdentity(entry["sessionId"], agent_id, None, cwd)
        identity.model = text_or_none(entry.get("model"))
        if identity.model is not None:
            break
    return identity


def looks_like_transcript(head: bytes) -> bool:
    """Tell whether a file that begins with `head` was written by Qwen Code.

    Args:
        head: The first bytes, 64 kB being plenty; the last line may be cut anywhere.
    """
    cut = head.rpartition(b"\n")[2]
    is_first = cut.startswith(_FIRST_KEYS) and b'"sessionId":"' in cut[:256]
    return is_first or has_line(head, _is_own)


def _is_own(entry: JsonObject) -> bool:
    message = entry.get("message")
    has_parts = isinstance(message, dict) and isinstance(message.get("parts"), list)
    is_named = text_or_none(entry.get("uuid")) and text_or_none(entry.get("sessionId"))
    return bool(is_named) and (has_parts or isinstance(entry.get("systemPayload"), dict))


class LineReader(TranscriptReader):
    """What must be remembered from line to line of one file.

    A Report comes before the Content of its reply, and its input includes the cached tokens.

    Args:
        memory: Of a reader of the lines before.
    """

    def __init__(self, memory: dict[str, Any] | None = None) -> None:
        self._files = Recent()
        self._window_tokens: int | None = None
        self._is_counted = False
        self._prompts = Recent()
        self._replies = 0
        if memory is not None:
            self._prompts, self._replies = Recent(memory["prompts"]), memory["replies"]
            self._files = Recent(memory["files"])
            self._window_tokens = memory["windowTokens"]
            self._is_counted = memory["isCounted"]

    def memory(self) -> dict[str, Any]:
        """Return what the constructor takes as `memory`."""
        return {
            "files": self._files.to_json(),
            "windowTokens": self._window_tokens,
            "isCounted": self._is_counted,
            "prompts": self._prompts.to_json(),
            "replies": self._replies,
        }

    def read(self, entry: JsonObject) -> Iterable[Record]:
        """Return the facts of one line; raise ValueError when it makes no sense."""
        at = parse_time(entry.get("timestamp"))
        kind = entry.get("type")
        if kind == "assistant":
            return self._read_reply(entry, at)
        if kind in ("user", "tool_result"):
            self._is_counted = False
            rewound = self._take_prompt(entry, at) if kind == "user" else ()
            return (*rewound, *self._read_input(parts_of(entry), at))
        if kind == "system" and entry.get("subtype") == "chat_compression":
            self._prompts = Recent()
        return _read_system(entry, at) if kind == "system" else ()

    def _take_prompt(self, entry: JsonObject, at: float | None) -> Iterable[Record]:
        """Return a rewind where a prompt stands in the place of an earlier one with its replies."""
        parent = text_or_none(entry.get("parentUuid")) or _NO_PARENT
        before = self._prompts.get(parent)
        self._prompts.add(parent, str(self._replies))
        return (Rewind(at),) if before is not None and int(before) < self._replies else ()

    def _read_reply(self, entry: JsonObject, at: float | None) -> list[Record]:
        records: list[Record] = []
        report = _report(entry, at)
        if report is not None:
            # A subagent's calls are in the line that follows that of their usage.
            self._is_counted = True
            self._replies += 1
            records = [*self._window(entry, at), report]
        for part in parts_of(entry):
            source = THINKING if isinstance(part, dict) and part.get("thought") else "assistant"
            if call := _call_of(part):
                arguments = call.get("args")
                self._note_file(call.get("id"), arguments)
                text = text_of([call.get("name"), arguments], None)
            else:
                text = text_of(part, _TEXT_KEYS)
            if text:
                records.append(Content(text, source, at, counted=self._is_counted))
        return records

    def _window(self, entry: JsonObject, at: float | None) -> Iterable[Window]:
        tokens = window_of(entry)
        if not tokens or tokens == self._window_tokens:
            return ()
        self._window_tokens = tokens
        return (Window(tokens, at),)

    def _note_file(self, call_id: object, arguments: object) -> None:
        if isinstance(arguments, dict):
            for key in _FILE_KEYS:
                if path := text_or_none(arguments.get(key)):
                    self._files.add(call_id, path)

    def _read_input(self, parts: list[Any], at: float | None) -> Iterable[Record]:
        for part in parts:
            result = part.get("functionResponse") if isinstance(part, dict) else None
            if isinstance(result, dict):
                text = text_of(result.get("response"), _RESULT_KEYS)
                if text:
                    source = f"tool:{text_or_none(result.get('name')) or 'unknown'}"
                    yield Content(text, source, at, file=self._files.get(result.get("id")))
                file, tool = self._files.get(result.get("id")), text_or_none(result.get("name"))
                yield from images_in(part, at, file, tool)
                continue
            yield from images_in(part, at)
            text = text_of(part, _TEXT_KEYS)
            for name, has_text in returned_by_news(text):
                yield Returned(name, has_text, at)
            for said, source in split_prompt(text, "user"):
                yield Content(said, source, at)


def parts_of(entry: JsonObject) -> list[Any]:
    """Return the parts of a line's message; empty where there is none."""
    message = entry.get("message")
    parts = message.get("parts") if isinstance(message, dict) else None
    return parts if isinstance(parts, list) else []


def said_in(entry: JsonObject) -> str:
    """Return the text of a reply, without what the model thought."""
    parts = parts_of(entry)
    return text_of([p for p in parts if not (isinstance(p, dict) and p.get("thought"))], _TEXT_KEYS)


def _call_of(part: object) -> JsonObject | None:
    call = part.get("functionCall") if isinstance(part, dict) else None
    return call if isinstance(call, dict) else None


def window_of(entry: JsonObject) -> int | None:
    """Return the window beside a reply; None for a subagent's, which says none."""
    tokens = optional_token_count(entry, "contextWindowSize")
    return tokens or (None if entry.get("isSidechain") else UNSTATED_WINDOW_TOKENS)


def _report(entry: JsonObject, at: float | None) -> Report | None:
    usage = entry.get("usageMetadata")
    if not isinstance(usage, dict):
        return None
    model = text_or_none(entry.get("model"))
    report = Report(
        message_id=text_or_none(entry.get("uuid")),
        model=model,
        requested_model=model,
        input_tokens=token_count(usage, "promptTokenCount"),
        cache_read_tokens=token_count(usage, "cachedContentTokenCount"),
        cache_creation_tokens=0,
        output_tokens=token_count(usage, "candidatesTokenCount"),
        at=at,
    )
    total = optional_token_count(usage, "totalTokenCount")
    report.find_cache(total)
    report.find_thoughts(optional_token_count(usage, "thoughtsTokenCount") or 0, total)
    # No reply is made from nothing: the provider sent no numbers.
    return report if report.input_tokens else None


def _read_system(entry: JsonObject, at: float | None) -> Iterable[Record]:
    payload = entry.get("systemPayload")
    if not isinstance(payload, dict):
        return
    if entry.get("subtype") == "chat_compression":
        info = payload.get("info")
        tokens = optional_token_count(info, "newTokenCount") if isinstance(info, dict) else None
        yield Boundary(None, tokens or None, at)
        text = text_of(payload.get("compressedHistory"), ("parts", *_TEXT_KEYS))
        if text:
            yield Content(text, "summary", at, counted=bool(tokens))
    elif has_overflowed(refusal_in(entry)):
        yield Overflow(at)


def refusal_in(entry: JsonObject) -> JsonObject | None:
    """Return the refusal in a line, of a request of the session itself and no subagent's."""
    payload = entry.get("systemPayload")
    event = payload.get("uiEvent") if isinstance(payload, dict) else None
    if not isinstance(event, dict) or event.get("event.name") != _API_ERROR:
        return None
    return None if event.get("subagent_name") else event


def has_overflowed(refusal: JsonObject | None) -> bool:
    """Tell that a request was refused as too large."""
    message = None if refusal is None else text_or_none(refusal.get("error_message"))
    if message is None:
        return False
    from ultramon.context.limits import parse_overflow

    return parse_overflow(message) is not None
