"""Reads the events of one Copilot agent as a stream of records.

Standard library only: hooks import it. The format was learnt from recordings of version 1.0.102. A
session and its subagents share one file; every event of a subagent names it.
"""

from __future__ import annotations

from ultramon.hosts.transcripts.images import images_in
from ultramon.hosts.transcripts.jsonl import (
    Recent,
    TranscriptReader,
    has_line,
    head_objects,
    object_in,
    optional_token_count,
    text_of,
    text_or_none,
    token_count,
)
from ultramon.hosts.transcripts.prompts import is_ultramons
from ultramon.hosts.transcripts.records import (
    HOOKS,
    MEMORY,
    OVERFLOW,
    SYSTEM,
    THINKING,
    ULTRAMON,
    Billed,
    Boundary,
    Content,
    Image,
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
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from ultramon.hosts.transcripts.jsonl import JsonObject

START, USAGE, COMPACTED, ERROR = (
    "session.start", "session.usage_record", "session.compaction_complete", "session.error",
)  # fmt: skip
REPLY, LAUNCHED = "assistant.message", "subagent.started"
_ASSET = "session.binary_asset"
_CONVERSATION, _SUMMARY = "conversation-", "conversation-compaction"
_TOO_MANY_REQUESTS = 429
_REMINDER, _REMINDER_END = "<system_reminder>\n", "\n</system_reminder>"
_FROM_HOOK, _BEFORE_IT = "Additional guidance from postToolUse hooks:\n", '\n\nTool "'
_OF_HOOKS = (b'{"type":"hook.', b'{"type": "hook.')
_FROM_AGENT = "agent-"
"""Source of a prompt that one agent has written for another."""
_TIME = "attachment:time"
_INSTRUCTED, _INSTRUCTED_END = "<custom_instruction>", "</custom_instruction>"
_INSTRUCTIONS = f"{MEMORY}custom instructions"
"""All such files together: their names are not written down."""


def looks_like_transcript(head: bytes) -> bool:
    """Tell whether a file that begins with `head` is an event file of this host."""
    return has_line(head, _is_event)


def _is_event(entry: JsonObject) -> bool:
    kind = entry.get("type")
    return (
        isinstance(kind, str)
        and "." in kind
        and isinstance(entry.get("data"), dict)
        and "parentId" in entry
        and isinstance(entry.get("timestamp"), str)
    )


def agent_of(entry: JsonObject) -> str | None:
    """Return the subagent whose event this is; None = the session's."""
    return text_or_none(entry.get("agentId"))


def identify(lines: Iterable[bytes]) -> TranscriptIdentity | None:
    """Return whose events these are; the first one says it. None = it does not."""
    identity: TranscriptIdentity | None = None
    for entry in head_objects(lines):
        kind, data = entry.get("type"), object_in(entry, "data")
        if identity is None:
            session_id = text_or_none(data.get("sessionId"))
            if kind != START or session_id is None:
                return None
            identity = TranscriptIdentity(
                session_id,
                agent_of(entry),
                project=text_or_none(object_in(data, "context").get("cwd")),
                began_at=parse_time(data.get("startTime")),
            )
        elif agent_of(entry) == identity.agent_id:
            if kind == LAUNCHED:
                identity.began_at = parse_time(entry.get("timestamp"))
            elif kind == USAGE:
                identity.model = text_or_none(object_in(data, "usage").get("model"))
                break
    return identity


def request_of(entry: JsonObject) -> Report | Billed | None:
    """Return what the request behind an event cost; None for other events.

    Raises:
        ValueError: The event reports impossible token counts.
    """
    kind, data, at = entry.get("type"), object_in(entry, "data"), parse_time(entry.get("timestamp"))
    if kind == COMPACTED:
        used = object_in(data, "compactionTokensUsed")
        return _billed(used, at, is_summary=True) if used else None
    usage = object_in(data, "usage")
    if kind != USAGE or not usage:
        return None
    purpose = text_or_none(usage.get("interactionType")) or _CONVERSATION
    if purpose == _SUMMARY or not purpose.startswith(_CONVERSATION):
        return _billed(usage, at, is_summary=purpose == _SUMMARY)
    report = _report(usage, at)
    # Of a call some providers state an id that another call of the session had already.
    report.message_id = text_or_none(entry.get("id"))
    return report if report.tokens else None


def _report(usage: JsonObject, at: float | None) -> Report:
    model = text_or_none(usage.get("model"))
    report = Report(
        message_id=None,
        model=model,
        requested_model=model,
        input_tokens=token_count(usage, "inputTokens"),
        cache_read_tokens=token_count(usage, "cacheReadTokens"),
        cache_creation_tokens=token_count(usage, "cacheWriteTokens"),
        output_tokens=token_count(usage, "outputTokens"),
        at=at,
        thinking_tokens=optional_token_count(usage, "reasoningTokens") or None,
    )
    report.find_cache(None)
    return report


def _billed(usage: JsonObject, at: float | None, *, is_summary: bool) -> Billed:
    report = _report(usage, at)
    return Billed(report.model, report.billed_tokens, at, is_summary=is_summary)


def call_of(entry: JsonObject) -> str | None:
    """Return the request that an event of usage, or a reply, belongs to."""
    data = object_in(entry, "data")
    return text_or_none(object_in(data, "usage").get("apiCallId") or data.get("apiCallId"))


def window_of(entry: JsonObject) -> int | None:
    """Return the most tokens that a request may have, as the event of one says."""
    return optional_token_count(object_in(object_in(entry, "data"), "usage"), "maxPromptTokens")


def is_compaction(entry: JsonObject) -> bool:
    """Tell the event from which on a window is a new one: a summary may also be given up."""
    return entry.get("type") == COMPACTED and object_in(entry, "data").get("success") is True


def error_of(entry: JsonObject) -> str | None:
    """Return what a request failed with, `OVERFLOW` or the host's words; None = it did not."""
    data = object_in(entry, "data")
    message = text_or_none(data.get("message"))
    if entry.get("type") != ERROR or message is None:
        return None
    from ultramon.context.limits import parse_overflow

    return message if parse_overflow(message) is None else OVERFLOW


class LineReader(TranscriptReader):
    """What must be remembered from event to event of one agent.

    A Report comes before the Content of its reply; its input includes the cached tokens.

    Args:
        memory: Of a reader of the lines before.
    """

    def __init__(self, memory: dict[str, Any] | None = None) -> None:
        self._agent: str | None = None
        self._counted: str | None = None
        self._window: int | None = None
        self._calls, self._children = Recent(), Recent()
        self._assets = Recent()
        """Of images, their beginnings, in which most have their size."""
        if memory is not None:
            self._agent, self._counted = memory["agent"], memory["counted"]
            self._window = memory["window"]
            self._calls, self._children = Recent(memory["calls"]), Recent(memory["children"])
            self._assets = Recent(memory["assets"])

    def memory(self) -> dict[str, Any]:
        """Return what the constructor takes as `memory`."""
        return {
            "agent": self._agent,
            "counted": self._counted,
            "window": self._window,
            "calls": self._calls.to_json(),
            "children": self._children.to_json(),
            "assets": self._assets.to_json(),
        }

    # What hooks are called with stands in the file as well, with every result of a tool.
    is_ignorable = staticmethod(lambda line: line.startswith(_OF_HOOKS))

    def read(self, entry: JsonObject) -> Iterable[Record]:
        """Return the facts of one line; raise ValueError when it makes no sense."""
        kind, agent = entry.get("type"), agent_of(entry)
        if kind == START:
            self._agent = agent
        elif kind == LAUNCHED and agent is not None:
            self._children.add(object_in(entry, "data").get("toolCallId"), agent)
        elif kind == _ASSET:
            data = object_in(entry, "data")
            self._assets.add(data.get("assetId"), text_or_none(data.get("data")) or "")
        act = _ACTS.get(kind) if isinstance(kind, str) else None
        if act is None or agent != self._agent:
            return ()
        return act(self, entry, object_in(entry, "data"), parse_time(entry.get("timestamp")))

    def _read_usage(self, entry: JsonObject, data: JsonObject, at: float | None) -> list[Record]:
        found: list[Record] = []
        window = window_of(entry)
        if window and window != self._window:
            self._window = window
            found.append(Window(window, at))
        request = request_of(entry)
        if request is not None:
            found.append(request)
        if isinstance(request, Report):
            self._counted = call_of(entry)
        return found

    def _read_reply(
        self, entry: JsonObject, data: JsonObject, at: float | None
    ) -> Iterator[Content]:
        call_id = call_of(entry)
        is_counted = call_id is not None and call_id == self._counted
        thinking = text_of(data, ("reasoningText",))
        if thinking or (is_counted and text_or_none(data.get("reasoningOpaque"))):
            yield Content(thinking, THINKING, at, counted=is_counted)
        texts = [text_of(data, ("content",))]
        requests = data.get("toolRequests")
        for one in requests if isinstance(requests, list) else ():
            if isinstance(one, dict):
                name = text_or_none(one.get("name")) or "unknown"
                path = text_or_none(object_in(one, "arguments").get("path")) or ""
                self._calls.add(one.get("toolCallId"), f"{name}\n{path}")
                texts.append(text_of([name, one.get("arguments")], None))
        for text in filter(None, texts):
            yield Content(text, "assistant", at, counted=is_counted)

    def _read_result(
        self, entry: JsonObject, data: JsonObject, at: float | None
    ) -> Iterator[Record]:
        call_id, is_success = data.get("toolCallId"), data.get("success") is True
        name, _, path = (self._calls.get(call_id) or "unknown\n").partition("\n")
        text = text_of(object_in(data, "result").get("content"), ("text",))
        text = text or text_of(data.get("error"), ("message",))
        text, found, said = text.rpartition(_FROM_HOOK) if _FROM_HOOK in text else (text, "", "")
        text = text.rpartition(_BEFORE_IT)[0] if found else text
        child = self._children.get(call_id)
        if child is not None:
            yield Returned(child, is_success and bool(text.strip()), at)
        if text:
            yield Content(text, f"tool:{name}", at, file=path or None)
        images = object_in(data, "result").get("binaryResultsForLlm")
        yield from self._images(images, at, path or None, name)
        if said:
            yield Content(said, ULTRAMON if is_ultramons(said) else HOOKS, at)

    def _images(
        self, found: object, at: float | None, file: str | None = None, tool: str | None = None
    ) -> Iterator[Image]:
        """Yield the images of a list, whose bytes stand in an event of their own."""
        for one in found if isinstance(found, list) else ():
            if isinstance(one, dict):
                whole = {"data": self._assets.get(one.get("assetId")), **one}
                yield from images_in(whole, at, file, tool)

    def _read_prompt(
        self, entry: JsonObject, data: JsonObject, at: float | None
    ) -> Iterator[Content | Image]:
        yield from self._images(data.get("attachments"), at)
        text, source = text_of(data.get("content"), ("text",)), text_or_none(data.get("source"))
        if text:
            by_host = source is not None and not source.startswith(_FROM_AGENT)
            yield Content(text, "user", at, by_host=by_host)
        # Around it the host puts the time, and what hooks say.
        around = text_of(data.get("transformedContent"), ("text",)).replace(text, "", 1)
        around, _, said = around.partition(_REMINDER)
        for one, kind in ((around.strip(), _TIME), (said.partition(_REMINDER_END)[0], HOOKS)):
            if one:
                yield Content(one, ULTRAMON if is_ultramons(one) else kind, at)

    def _read_system(self, entry: JsonObject, data: JsonObject, at: float | None) -> list[Record]:
        text = text_of(data.get("content"), ("text",))
        first, *rest = text.split(_INSTRUCTED)
        pieces = [one.partition(_INSTRUCTED_END) for one in rest]
        own = first + "".join(after for _, _, after in pieces)
        files = "".join(inner for inner, _, _ in pieces)
        parts = [one for one in ((SYSTEM, own), (_INSTRUCTIONS, files)) if one[1].strip()]
        # Definitions of tools are not written down.
        return [Standing(tuple(parts), False, at)] if parts else []

    def _read_summary(self, entry: JsonObject, data: JsonObject, at: float | None) -> list[Record]:
        request = request_of(entry)
        found: list[Record] = [] if request is None else [request]
        if is_compaction(entry):
            trigger = "manual" if data.get("trigger") == "manual" else "auto"
            # The tokens that it states are its own estimates, far from what the provider counts.
            found.append(Boundary(trigger, None, at))
            if text := text_of(data.get("summaryContent"), ("text",)):
                found.append(Content(text, "summary", at))
        return found

    def _read_error(self, entry: JsonObject, data: JsonObject, at: float | None) -> list[Record]:
        if error_of(entry) == OVERFLOW:
            return [Overflow(at)]
        return [LimitReached(at)] if data.get("statusCode") == _TOO_MANY_REQUESTS else []

    def _read_rewind(self, entry: JsonObject, data: JsonObject, at: float | None) -> list[Record]:
        return [Rewind(at)]


_ACTS: dict[str, Callable[[LineReader, JsonObject, JsonObject, float | None], Iterable[Record]]] = {
    USAGE: LineReader._read_usage,
    REPLY: LineReader._read_reply,
    "tool.execution_complete": LineReader._read_result,
    "user.message": LineReader._read_prompt,
    "system.message": LineReader._read_system,
    COMPACTED: LineReader._read_summary,
    ERROR: LineReader._read_error,
    "session.snapshot_rewind": LineReader._read_rewind,
}
