"""Reads the rollout of a Codex thread as a stream of records.

Standard library only: hooks import it. The format was learnt from recordings of version 0.169.0.
"""

from __future__ import annotations

import os

from ultramon.hosts.codex.configuration import home_directory
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
from ultramon.hosts.transcripts.prompts import is_host_text, split_prompt
from ultramon.hosts.transcripts.records import (
    MEMORY,
    SKILLS,
    SYSTEM,
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
    Standing,
    TranscriptIdentity,
    Window,
)
from ultramon.system.timestamps import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ultramon.hosts.transcripts.jsonl import JsonObject

_TEXT_KEYS = ("text", "content")
_SKILLS_TAG = "<skills_instructions>"
_MEMORY_FILE = "AGENTS.md"
_MEMORY_HEADING = f"# {_MEMORY_FILE} instructions for "
_PROJECT_MARK = "\n--- project-doc ---\n"


def identify(lines: Iterable[bytes], thread_id: str | None = None) -> TranscriptIdentity | None:
    """Return whose rollout it is, from its first 400 lines, or None when they do not say.

    A subagent's rollout names its parent's session and its own thread as `agent_id`. Where the
    first line, which says so, is lost, the first usage names both.

    Args:
        lines: The file's lines.
        thread_id: The thread that its file is named after, where no line names one; or None.
    """
    identity = spare = None
    model = project = None
    for entry in head_objects(lines):
        payload = entry.get("payload")
        if not isinstance(payload, dict):
            continue
        kind = entry.get("type")
        if kind == "session_meta" and identity is None:
            identity = _identity(payload)
        elif kind == "token_usage_record" and spare is None:
            spare = _identity_of_usage(payload)
        elif kind == "turn_context":
            model = model or text_or_none(payload.get("model"))
            project = project or text_or_none(payload.get("cwd"))
        if identity is not None and model is not None:
            break
    if thread_id is not None:
        spare = spare or TranscriptIdentity(thread_id)
    identity = identity or spare
    if identity is not None:
        identity.model = model or identity.model
        identity.project = identity.project or project
    return identity


def looks_like_transcript(head: bytes) -> bool:
    """Tell whether a file that begins with `head` is a Codex rollout.

    Args:
        head: The first bytes, 64 kB being plenty; the last line may be cut anywhere.
    """
    first, _, rest = head.partition(b"\n")
    if not rest:
        # The first line holds the instructions and may be longer than the head.
        return b'"session_meta"' in first[:256] and b'"payload"' in first[:256]
    # The first line may be lost. Other hosts' files need not be decoded.
    return b'"payload"' in head and has_line(head, _is_own)


def _is_own(entry: JsonObject) -> bool:
    payload, kind = entry.get("payload"), entry.get("type")
    if not isinstance(payload, dict):
        return False
    if kind == "session_meta":
        return True
    if kind == "event_msg":
        return payload.get("type") in ("task_started", "token_count", "task_complete")
    return kind == "token_usage_record" and isinstance(payload.get("usage"), dict)


def _identity(payload: JsonObject) -> TranscriptIdentity | None:
    thread_id = text_or_none(payload.get("id"))
    session_id = text_or_none(payload.get("session_id"))
    if payload.get("thread_source") == "subagent":
        agent_id = thread_id
        session_id = text_or_none(payload.get("parent_thread_id")) or session_id
    else:
        agent_id = None
        session_id = session_id or thread_id
    if session_id is None:
        return None
    return TranscriptIdentity(
        session_id,
        agent_id,
        _instructed_model(payload.get("base_instructions")),
        text_or_none(payload.get("cwd")),
        text_or_none(payload.get("forked_from_id"))
        or text_or_none(payload.get("parent_thread_id")),
        parse_time(payload.get("timestamp")),
    )


def _identity_of_usage(payload: JsonObject) -> TranscriptIdentity | None:
    session_id, thread_id = (
        text_or_none(payload.get(name)) for name in ("session_id", "thread_id")
    )
    if session_id is None:
        return None
    return TranscriptIdentity(session_id, None if thread_id == session_id else thread_id)


def _instructed_model(instructions: object) -> str | None:
    """Return the model the instructions were written for: known before the first turn names one."""
    provenance = instructions.get("provenance") if isinstance(instructions, dict) else None
    return text_or_none(provenance.get("model")) if isinstance(provenance, dict) else None


class LineReader(TranscriptReader):
    """What must be remembered from line to line of one rollout.

    A Report comes after the Content of its reply, and its input includes the cached tokens.

    Args:
        memory: Of a reader of the lines before.

    Attributes:
        held: The last report, until it is known that no summary was its reply.
    """

    def __init__(self, memory: dict[str, Any] | None = None) -> None:
        self._is_begun = False
        self._model: str | None = None
        self._tools = Recent()
        self._window_tokens: int | None = None
        self._has_usage_records = False
        self._total: object = None
        self._compacted = False
        self.held: tuple[Report, ...] = ()
        if memory is not None:
            self._is_begun, self._model = memory["isBegun"], memory["model"]
            self._tools, self._window_tokens = Recent(memory["tools"]), memory["windowTokens"]
            self._has_usage_records = memory["hasUsageRecords"]
            self._total, self._compacted = memory["total"], memory["compacted"]
            self.held = tuple(Report(**one) for one in memory["held"])

    def memory(self) -> dict[str, Any]:
        """Return what the constructor takes as `memory`."""
        return {
            "isBegun": self._is_begun,
            "model": self._model,
            "tools": self._tools.to_json(),
            "windowTokens": self._window_tokens,
            "hasUsageRecords": self._has_usage_records,
            "total": self._total,
            "compacted": self._compacted,
            "held": [vars(one) for one in self.held],
        }

    def read(self, entry: JsonObject) -> Iterable[Record]:
        """Return the facts of one line; raise ValueError when it makes no sense."""
        kind = entry.get("type")
        payload = entry.get("payload")
        if not isinstance(payload, dict):
            return ()
        at = parse_time(entry.get("timestamp"))
        if kind == "event_msg" and payload.get("type") == "token_count":
            return self._read_event(payload, at)
        held: tuple[Record, ...] = self.held
        if kind == "compacted":
            # The request that made the summary still saw the old window.
            summary_id = payload.get("compaction_response_id")
            held = tuple(
                _summary_request(one) if one.message_id == summary_id else one for one in self.held
            )
        if kind == "token_usage_record":
            self._has_usage_records = True
            response_id = text_or_none(payload.get("response_id"))
            self.held = tuple(self._report(response_id, payload.get("usage"), at))
            return held
        records = (*held, *self._read(kind, payload, at))
        self.held = ()
        return records

    def _read(self, kind: object, payload: JsonObject, at: float | None) -> Iterable[Record]:
        if kind == "response_item":
            return self._read_item(payload, at)
        if kind == "event_msg":
            return self._read_event(payload, at)
        if kind == "compacted":
            return self._boundary(at)
        if kind == "turn_context":
            self._model = text_or_none(payload.get("model")) or self._model
        elif kind == "session_meta" and not self._is_begun:
            # A forked thread repeats its parent's lines, session_meta among them, after its own.
            self._is_begun = _identity(payload) is not None
            self._model = _instructed_model(payload.get("base_instructions"))
            text = text_of(payload.get("base_instructions"), _TEXT_KEYS)
            # Definitions of tools are not written down.
            return (Standing(((SYSTEM, text),), False, at),) if text else ()
        return ()

    def _read_item(self, item: JsonObject, at: float | None) -> Iterable[Record]:
        kind = item.get("type")
        if kind == "message":
            role, content = item.get("role"), item.get("content")
            if role == "assistant":
                return _content(content, role, at, counted=True)
            blocks = content if isinstance(content, list) else [content]
            usual = "developer" if role == "developer" else "user"
            texts = [one for block in blocks for one in _read_input(block, usual, at)]
            return [*texts, *images_in(content, at)]
        if kind in ("function_call", "custom_tool_call"):
            name = text_or_none(item.get("name")) or "unknown"
            self._tools.add(item.get("call_id"), name)
            call = [name, item.get("arguments"), item.get("input")]
            return _content(call, "assistant", at, counted=True)
        if kind in ("function_call_output", "custom_tool_call_output"):
            tool = self._tools.get(item.get("call_id")) or "unknown"
            output = item.get("output")
            return [*_content(output, f"tool:{tool}", at), *images_in(output, at, tool=tool)]
        if kind == "reasoning":
            reasoning = [item.get("summary"), item.get("content")]
            return _content(reasoning, THINKING, at, counted=True)
        return ()

    def _read_event(self, payload: JsonObject, at: float | None) -> Iterable[Record]:
        kind = payload.get("type")
        if kind == "task_started":
            return self._window(payload, at)
        if kind == "context_compacted":
            return self._boundary(at)
        if kind == "thread_rolled_back":
            return (Rewind(at),)
        if kind == "task_complete":
            error = payload.get("error")
            reason = error.get("codex_error_info") if isinstance(error, dict) else None
            ended = Returned(None, bool(text_or_none(payload.get("last_agent_message"))), at)
            if reason == "usage_limit_exceeded":
                return (LimitReached(at), ended)
            return (Overflow(at), ended) if reason == "context_window_exceeded" else (ended,)
        info = payload.get("info")
        if kind != "token_count" or not isinstance(info, dict):
            return ()
        records: list[Record] = list(self._window(info, at))
        # Written late, and again whenever a rate limit changes: only for versions without records.
        if not self._has_usage_records and info.get("total_token_usage") != self._total:
            before, self._total = self._total, info.get("total_token_usage")
            billed = _difference(before, self._total)
            reports = list(self._report(None, info.get("last_token_usage"), at))
            for report in reports:
                report.billed = billed
            if not reports and billed is not None and any(billed):
                records.append(Billed(self._model, billed, at, is_summary=True))
            records.extend(reports)
        return records

    def _report(self, response_id: str | None, usage: object, at: float | None) -> Iterable[Report]:
        if not isinstance(usage, dict) or not token_count(usage, "input_tokens"):
            # After a compaction the host writes zeros where it has no numbers.
            return ()
        self._compacted = False
        report = Report(
            message_id=response_id,
            model=self._model,
            requested_model=self._model,
            input_tokens=token_count(usage, "input_tokens"),
            cache_read_tokens=token_count(usage, "cached_input_tokens"),
            cache_creation_tokens=token_count(usage, "cache_write_input_tokens"),
            output_tokens=token_count(usage, "output_tokens"),
            at=at,
            thinking_tokens=token_count(usage, "reasoning_output_tokens"),
        )
        report.find_cache(optional_token_count(usage, "total_tokens"))
        return (report,)

    def _window(self, source: JsonObject, at: float | None) -> Iterable[Window]:
        tokens = optional_token_count(source, "model_context_window")
        if not tokens or tokens == self._window_tokens:
            return ()
        self._window_tokens = tokens
        return (Window(tokens, at),)

    def _boundary(self, at: float | None) -> Iterable[Boundary]:
        """Yield one boundary for the two lines about the same compaction."""
        if self._compacted:
            return ()
        self._compacted = True
        return (Boundary(None, None, at),)


def _kinds(usage: object) -> tuple[int, ...] | None:
    """Return the counts of a usage in the order of `TokenUsage`; None = it is none."""
    if not isinstance(usage, dict):
        return None
    new, read, written, output = (
        optional_token_count(usage, name) or 0
        for name in (
            "input_tokens", "cached_input_tokens", "cache_write_input_tokens", "output_tokens",
        )
    )  # fmt: skip
    return max(0, new - read - written), read, written, 0, output


def _difference(before: object, after: object) -> tuple[int, ...] | None:
    """Return what was billed between two totals of a thread; None = they do not say."""
    first, second = _kinds(before), _kinds(after)
    if first is None or second is None:
        return None
    found = tuple(two - one for one, two in zip(first, second, strict=True))
    # A total that is lower has begun anew.
    return None if min(found) < 0 else found


def _summary_request(report: Report) -> Billed:
    cached = report.cache_read_tokens + report.cache_creation_tokens
    new = report.input_tokens - cached if report.cache_in_input else report.input_tokens
    billed = (
        max(0, new), report.cache_read_tokens, report.cache_creation_tokens, 0,
        report.output_tokens,
    )  # fmt: skip
    return Billed(report.model, billed, report.at, is_summary=True)


def _read_input(block: object, usual: str, at: float | None) -> Iterable[Content]:
    """Return what one text of a message without a reply brought."""
    text = text_of(block, _TEXT_KEYS)
    if text.startswith(_SKILLS_TAG):
        return _content(text, SKILLS, at)
    folder, mark, files = text.removeprefix(_MEMORY_HEADING).partition("\n")
    if not mark or not text.startswith(_MEMORY_HEADING):
        by_host = is_host_text(text)
        return [
            Content(said, source, at, by_host=by_host) for said, source in split_prompt(text, usual)
        ]
    # The user's own file comes first, where there is one.
    own, mark, project = files.partition(_PROJECT_MARK)
    if not mark:
        return _content(text, f"{MEMORY}{folder}/{_MEMORY_FILE}", at)
    heading = f"{_MEMORY_HEADING}{folder}\n"
    return [
        *_content(f"{heading}{own}{mark}", f"{MEMORY}{_own_file()}", at),
        *_content(project, f"{MEMORY}{folder}/{_MEMORY_FILE}", at),
    ]


def _own_file() -> str:
    """Return the user's file of instructions: no rollout names its folder."""
    return os.path.join(home_directory(os.environ), _MEMORY_FILE)


def _content(
    value: object, source: str, at: float | None, counted: bool = False
) -> Iterable[Content]:
    text = text_of(value, _TEXT_KEYS)
    return (Content(text, source, at, counted),) if text else ()
