"""Reads the transcript of a Claude Code session or subagent as a stream of records.

Standard library only: hooks import it. The format was learnt from recordings of version 2.1.330.
"""

from __future__ import annotations

from ultramon.hosts.calls.claude_dialect import returned_by_news
from ultramon.hosts.claude_code.message_usage import (
    USUAL_SPEED,
    billed_tokens,
    last_request,
    stated_usd,
    tokens_by_kind,
)
from ultramon.hosts.transcripts.images import images_in
from ultramon.hosts.transcripts.jsonl import (
    TEXT_KEYS,
    Recent,
    TranscriptReader,
    has_line,
    head_objects,
    object_in,
    optional_token_count,
    read_lines,
    text_of,
    text_or_none,
    token_count,
)
from ultramon.hosts.transcripts.records import (
    OVERFLOW,
    THINKING,
    Billed,
    Boundary,
    Content,
    LimitReached,
    Overflow,
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

_MESSAGE_TYPES = ("assistant", "user", "attachment", "system")
_SHAPE = "api-request-shape"
_MESSAGE_TYPE_BYTES = tuple(name.encode() for name in _MESSAGE_TYPES)
_READ_TYPE_BYTES = (*_MESSAGE_TYPE_BYTES, _SHAPE.encode())
_FILE_KEYS = ("file_path", "notebook_path")
_INTERRUPTION = "[Request interrupted by user"
_NO_PARENT = "none"
_LIMIT_REACHED = "rate_limit"
_THINKING_TYPES = ("thinking", "redacted_thinking")
_TOOLS_USED = "<tools-used-before-summary>"
"""Begins a text that the host puts before a subagent's own."""


def read_transcript(lines: Iterable[bytes], *, sidechain: bool | None = None) -> Iterator[Record]:
    """Yield the facts of one agent's transcript in the order they were written.

    Holds one line at a time and never raises, whatever the bytes; what cannot be read, or reports
    impossible token counts, is a `Broken`. A Report comes before the Content of its reply.

    Args:
        lines: The file's lines with their line ends; `bounded_lines` keeps hostile files small.
        sidechain: True for a subagent's own file, False for a session's, where the lines of
            subagents are skipped; None lets the first message line decide.
    """
    return read_lines(lines, LineReader(sidechain).read, is_ignorable)


def identify(lines: Iterable[bytes]) -> TranscriptIdentity | None:
    """Return whose transcript it is, from its first 400 lines, or None when they do not say.

    The model is that of the first reply and None before one is written.
    """
    reader = LineReader(None)
    identity: TranscriptIdentity | None = None
    for entry in head_objects(lines):
        session_id = text_or_none(entry.get("sessionId"))
        if session_id is None or not reader.owns(entry):
            continue
        if identity is None:
            identity = TranscriptIdentity(session_id, reader.agent_id)
        if identity.copied_from is None and isinstance(entry.get("forkedFrom"), dict):
            identity.copied_from = text_or_none(entry["forkedFrom"].get("sessionId"))
        if identity.project is None:
            identity.project = text_or_none(entry.get("cwd"))
        message = entry.get("message")
        if entry.get("type") == "assistant" and isinstance(message, dict):
            model = text_or_none(message.get("model"))
            if model != "<synthetic>":
                identity.model = text_or_none(entry.get("requestedModel")) or model
                break
    return identity


def looks_like_transcript(head: bytes) -> bool:
    """Tell whether a file that begins with `head` is a Claude Code transcript.

    Args:
        head: The first bytes, 64 kB being plenty; the last line may be cut anywhere.
    """
    cut = head.rpartition(b"\n")[2]
    is_cut = b'"parentUuid"' in cut and b'"isSidechain"' in cut
    return is_cut or has_line(head, _is_own)


def _is_own(entry: JsonObject) -> bool:
    return bool(text_or_none(entry.get("sessionId")) and text_or_none(entry.get("type")))


def error_of(entry: JsonObject) -> str | None:
    """Return why a request failed, as a line says it in the place of a reply; else None.

    Returns:
        `OVERFLOW`, else the host's name for the kind of error: never the words of a provider.
    """
    if entry.get("type") != "assistant" or entry.get("isApiErrorMessage") is not True:
        return None
    if text_of(_message(entry).get("content"), ("text",)).startswith(OVERFLOW):
        return OVERFLOW
    return text_or_none(entry.get("error")) or "unknown"


def refused_above(entry: JsonObject) -> int | None:
    """Return the most that the provider takes, as the line of a request that was too long says."""
    from ultramon.context.limits import parse_overflow

    found = parse_overflow(text_of(_message(entry).get("content"), ("text",)))
    return None if found is None else found[1]


def returned_by_tool(response: object) -> tuple[str, bool] | None:
    """Return which subagent a tool says to have completed, and whether it returned a text."""
    if not isinstance(response, dict) or response.get("status") != "completed":
        return None
    name, content = response.get("agentId"), response.get("content")
    if not isinstance(name, str):
        return None
    blocks = content if isinstance(content, list) else [content]
    texts = (text_of(block, ("text",)).strip() for block in blocks)
    return name, any(text and not text.startswith(_TOOLS_USED) for text in texts)


def is_ignorable(line: bytes) -> bool:
    """Tell that a complete line names, as its first key, a type that `LineReader` does not read.

    Only the first key is looked at, with any white space JSON allows: searching the line for a
    spelling of the key would overlook the same JSON written with other spaces.
    """
    return _has_other_type(line, _READ_TYPE_BYTES)


def is_beside_requests(line: bytes) -> bool:
    """Tell the same of a line that says nothing of a request, though much of its tools."""
    return _has_other_type(line, _MESSAGE_TYPE_BYTES)


def _has_other_type(line: bytes, types: tuple[bytes, ...]) -> bool:
    parts = line[:128].split(b'"', 4)
    return (
        len(parts) == 5
        and parts[1] == b"type"
        and parts[0].strip() == b"{"
        and parts[2].strip() == b":"
        and parts[3] not in types
        and b"\\" not in parts[3]
        and line.rstrip().endswith(b"}")
    )


class LineReader(TranscriptReader):
    """What must be remembered from line to line of one transcript.

    Args:
        sidechain: As for `read_transcript`.
        memory: Of a reader of the lines before.
    """

    is_ignorable = staticmethod(is_ignorable)
    is_beside_requests = staticmethod(is_beside_requests)

    def __init__(self, sidechain: bool | None, memory: dict[str, Any] | None = None) -> None:
        self._sidechain = sidechain
        self._tools = Recent()
        self._files = Recent()
        self._reported = Recent()
        self._last: Report | None = None
        self.agent_id: str | None = None
        self._compacted_at: float | None = None
        self._post_tokens_known = False
        self._seen = Recent()
        self._prompts = Recent()
        self._replies = 0
        self._has_stepped_back = False
        self._session_id: str | None = None
        self._others = Recent()
        self._own_texts = Recent()
        """Of ultramon's hooks."""
        if memory is not None:
            self._own_texts = Recent(memory["ownTexts"])
            self._session_id, self._others = memory["sessionId"], Recent(memory["others"])
            self._seen, self._prompts = Recent(memory["seen"]), Recent(memory["prompts"])
            self._replies = memory["replies"]
            self._has_stepped_back = memory["hasSteppedBack"]
            self._tools = Recent(memory["tools"])
            self._files = Recent(memory["files"])
            self._reported = Recent(memory["reported"])
            self._last = None if memory["last"] is None else Report(**memory["last"])
            self.agent_id, self._sidechain = memory["agentId"], memory["sidechain"]
            self._compacted_at = memory["compactedAt"]
            self._post_tokens_known = memory["postTokensKnown"]

    def memory(self) -> dict[str, Any]:
        """Return what the constructor takes as `memory`."""
        return {
            "tools": self._tools.to_json(),
            "files": self._files.to_json(),
            "reported": self._reported.to_json(),
            "last": None if self._last is None else vars(self._last),
            "agentId": self.agent_id,
            "sidechain": self._sidechain,
            "compactedAt": self._compacted_at,
            "postTokensKnown": self._post_tokens_known,
            "seen": self._seen.to_json(),
            "prompts": self._prompts.to_json(),
            "replies": self._replies,
            "hasSteppedBack": self._has_stepped_back,
            "sessionId": self._session_id,
            "others": self._others.to_json(),
            "ownTexts": self._own_texts.to_json(),
        }

    def read(self, entry: JsonObject) -> Iterable[Record]:
        """Return the facts of one line; raise ValueError when it makes no sense."""
        kind = entry.get("type")
        if kind == _SHAPE:
            if not self._owns_shape(entry):
                return ()
            from ultramon.hosts.claude_code.attachments import read_shape

            return read_shape(entry)
        if kind not in _MESSAGE_TYPES or not self.owns(entry) or self._is_of_another(entry):
            return ()
        at = parse_time(entry.get("timestamp"))
        if kind == "assistant":
            return self._read_reply(entry, at)
        if kind == "user":
            return self._read_input(entry, at)
        if kind == "attachment":
            if not self._is_new(entry):
                return ()
            from ultramon.hosts.claude_code.attachments import read_attachment

            return read_attachment(entry, at, self._own_texts)
        return self._read_system(entry, at)

    def owns(self, entry: JsonObject) -> bool:
        """Tell whether a line is this agent's own; the first message line decides who that is."""
        if entry.get("type") not in _MESSAGE_TYPES:
            return False
        sidechain = entry.get("isSidechain") is True
        agent_id = text_or_none(entry.get("agentId"))
        if self._sidechain is None:
            # Old versions wrote subagents into the session's file, without an agentId.
            self._sidechain = sidechain and agent_id is not None
        if self._sidechain and sidechain and self.agent_id is None:
            self.agent_id = agent_id
        return sidechain == self._sidechain and (not sidechain or agent_id == self.agent_id)

    def _owns_shape(self, entry: JsonObject) -> bool:
        """Tell whether requests of this agent are meant: such a line is in no chain of messages."""
        if entry.get("sessionId") in self._others:
            return False
        agent_id = text_or_none(entry.get("agentId"))
        if self._sidechain and self.agent_id is not None:
            return agent_id in (None, self.agent_id)
        return agent_id is None or self._sidechain is not False

    def _read_reply(self, entry: JsonObject, at: float | None) -> list[Record]:
        message = _message(entry)
        if message.get("model") == "<synthetic>":
            error = error_of(entry)
            if error == OVERFLOW:
                return [Overflow(at)]
            return [LimitReached(at)] if error == _LIMIT_REACHED else []
        content = message.get("content")
        blocks = content if isinstance(content, list) else [content]
        for block in blocks:
            if isinstance(block, dict) and block.get("type") == "tool_use":
                self._tools.add(block.get("id"), text_or_none(block.get("name")) or "unknown")
                if path := _file_of(block.get("input")):
                    self._files.add(block.get("id"), path)
        report = self._report(entry, message, at)
        if self._is_earlier(at) and not self._has_stepped_back:
            # The summary's own reply, or one of the window that is gone.
            return self._billed_beside(message, report, at)
        records: list[Record] = []
        if report is None:
            records = self._billed_beside(message, None, at)
        elif self._accept(report):
            records.append(report)
        is_counted = report is not None
        for block in blocks:
            if isinstance(block, dict) and block.get("type") in _THINKING_TYPES:
                text, source = text_of(block, ("thinking",)), THINKING
            else:
                text, source = _reply_text(block), "assistant"
            # Of thinking that is hidden the count of the reply is all there is.
            if text or (source == THINKING and is_counted):
                records.append(Content(text, source, at, counted=is_counted))
        return records

    def _is_of_another(self, entry: JsonObject) -> bool:
        """Tell a line that another session has written into this file.

        A session that was resumed under a new id continues the old one's chain; one that begins a
        chain of its own is another.
        """
        session_id = entry.get("sessionId")
        if not isinstance(session_id, str) or session_id == self._session_id:
            return False
        is_start = entry.get("parentUuid", "") is None and entry.get("type") != "system"
        if self._session_id is not None and (is_start or session_id in self._others):
            self._others.add(session_id)
            return True
        self._session_id = session_id
        return False

    def _is_earlier(self, at: float | None) -> bool:
        """Tell a time before the last compaction."""
        return at is not None and self._compacted_at is not None and at < self._compacted_at

    def _report(self, entry: JsonObject, message: JsonObject, at: float | None) -> Report | None:
        usage = message.get("usage")
        if not isinstance(usage, dict):
            return None
        billed, speed = billed_tokens(usage), text_or_none(usage.get("speed"))
        usage = last_request(usage)
        report = Report(
            message_id=text_or_none(message.get("id")),
            model=text_or_none(message.get("model")),
            requested_model=text_or_none(entry.get("requestedModel")),
            input_tokens=token_count(usage, "input_tokens"),
            cache_read_tokens=token_count(usage, "cache_read_input_tokens"),
            cache_creation_tokens=token_count(usage, "cache_creation_input_tokens"),
            output_tokens=token_count(usage, "output_tokens"),
            at=at,
            billed=billed,
            speed=None if speed == USUAL_SPEED else speed,
            cost_usd=stated_usd(entry.get("costUSD")),
            # The host writes 0 where the provider says nothing of it.
            thinking_tokens=optional_token_count(
                object_in(usage, "output_tokens_details"), "thinking_tokens"
            )
            or None,
        )
        # No reply is made from nothing: the host writes zeros where it has no numbers.
        return report if report.tokens else None

    def _billed_beside(
        self, message: JsonObject, report: Report | None, at: float | None
    ) -> list[Record]:
        """Return what a message cost that says nothing of the present window, once."""
        usage, name = message.get("usage"), text_or_none(message.get("id"))
        if not isinstance(usage, dict) or name is None or name in self._reported:
            return []
        billed = billed_tokens(usage) or tokens_by_kind(usage)
        if not any(billed):
            return []
        self._reported.add(name)
        model = text_or_none(message.get("model"))
        return [Billed(model, billed, at, is_summary=report is None)]

    def _accept(self, report: Report) -> bool:
        """Remember a report; False when its message was reported and it says nothing new.

        The host writes one line per content block, each with the usage of the whole message.
        """
        last = self._last
        if report.message_id in self._reported:
            if (
                last is None
                or last.message_id != report.message_id
                or report.tokens + report.output_tokens <= last.tokens + last.output_tokens
            ):
                return False
            report.update = True
        self._reported.add(report.message_id)
        self._replies += not report.update
        self._last = report
        return True

    def _is_new(self, entry: JsonObject) -> bool:
        """Remember a line; False when it was read: some are written again, as by a resume."""
        uuid = entry.get("uuid")
        if uuid in self._seen:
            return False
        self._seen.add(uuid)
        return True

    def _take_prompt(self, entry: JsonObject, at: float | None) -> Iterable[Record]:
        """Yield a rewind where a prompt stands in the place of an earlier one with its replies."""
        self._has_stepped_back = self._has_stepped_back or self._is_earlier(at)
        parent = text_or_none(entry.get("parentUuid")) or _NO_PARENT
        before = self._prompts.get(parent)
        self._prompts.add(parent, str(self._replies))
        return (Rewind(at),) if before is not None and int(before) < self._replies else ()

    def _read_input(self, entry: JsonObject, at: float | None) -> list[Record]:
        content = _message(entry).get("content")
        is_summary = entry.get("isCompactSummary") is True
        source = "summary" if is_summary else "user"
        counted = is_summary and self._post_tokens_known
        records: list[Record] = []
        if _is_prompt(entry, content):
            if not self._is_new(entry):
                return []
            if not is_summary:
                records.extend(self._take_prompt(entry, at))
        result = returned_by_tool(entry.get("toolUseResult"))
        results = [] if result is None else [result]
        if result is None and isinstance(content, str):
            results = returned_by_news(content)
        records.extend(Returned(*one, at) for one in results)
        is_meta = entry.get("isMeta") is True
        for block in content if isinstance(content, list) else [content]:
            text, file, tool = text_of(block, TEXT_KEYS), None, None
            if isinstance(block, dict) and block.get("type") == "tool_result":
                call_id = block.get("tool_use_id")
                tool = self._tools.get(call_id) or "unknown"
                file = self._files.get(call_id)
                if text:
                    records.append(Content(text, f"tool:{tool}", at, file=file))
            elif text:
                by_host = is_meta or text.startswith(_INTERRUPTION)
                records.append(Content(text, source, at, counted, by_host=by_host))
            # Most results are one text, which is not worth a look.
            if isinstance(block, dict) and not isinstance(block.get("content"), str):
                records.extend(images_in(block, at, file, tool))
        return records

    def _read_system(self, entry: JsonObject, at: float | None) -> Iterable[Record]:
        if entry.get("subtype") != "compact_boundary" or not self._is_new(entry):
            return ()
        metadata = entry.get("compactMetadata")
        if not isinstance(metadata, dict):
            metadata = {}
        boundary = Boundary(
            text_or_none(metadata.get("trigger")),
            optional_token_count(metadata, "postTokens"),
            at,
        )
        self._post_tokens_known = boundary.post_tokens is not None
        self._compacted_at = at
        self._has_stepped_back = False
        self._prompts = Recent()
        return (boundary,)


def _is_prompt(entry: JsonObject, content: object) -> bool:
    """Tell what a person wrote from results of tools and lines of the host itself."""
    blocks = content if isinstance(content, list) else [content]
    return entry.get("isMeta") is not True and not any(
        isinstance(block, dict) and block.get("type") == "tool_result" for block in blocks
    )


def _message(entry: JsonObject) -> JsonObject:
    message = entry.get("message")
    if not isinstance(message, dict):
        raise ValueError("its message is not an object")
    return message


def _file_of(arguments: object) -> str | None:
    if not isinstance(arguments, dict):
        return None
    return next((path for key in _FILE_KEYS if (path := text_or_none(arguments.get(key)))), None)


def _reply_text(block: object) -> str:
    if not isinstance(block, dict):
        return text_of(block, TEXT_KEYS)
    if block.get("type") == "tool_use":
        return text_of([block.get("name"), block.get("input")], None)
    return text_of(block, ("text",))
