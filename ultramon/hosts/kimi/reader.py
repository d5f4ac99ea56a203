"""Reads the wire files of Kimi CLI and Kimi Code as a stream of records.

Standard library only. The format was learnt from recordings of Kimi CLI 1.51.0, whose wire protocol
is 1.10, and of Kimi Code 2.1.0 with protocol 1.5; both number their protocols from 1.0, and a line
of one is none of the other.
"""

from __future__ import annotations

from ultramon.hosts.transcripts.jsonl import (
    Recent,
    decode_object,
    object_in,
    optional_token_count,
    read_lines,
    text_of,
    text_or_none,
    token_count,
)
from ultramon.hosts.transcripts.records import (
    MCP,
    SYSTEM,
    TOOLS,
    Billed,
    Boundary,
    Content,
    Record,
    Report,
    Returned,
    Rewind,
    Standing,
    Window,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ultramon.hosts.transcripts.jsonl import JsonObject

CLI, CODE = "Kimi CLI", "Kimi Code"
_METADATA = "metadata"
_KNOWN = {
    CLI: frozenset(f"1.{number}" for number in range(11)),
    CODE: frozenset(f"1.{number}" for number in range(6)),
}
_AGENT = "Agent"
"""The tool that launches a subagent."""
_RESULT = "[summary]"
_MCP_TOOL = "mcp__"
_TEXT_KEYS = ("text", "think")


def version_of(head: bytes) -> tuple[str, str] | None:
    """Return which client writes a file that begins so, and its protocol; None = neither.

    Args:
        head: The first bytes; the first line is enough.
    """
    try:
        entry = decode_object(head.partition(b"\n")[0])
    except ValueError:
        return None
    version = text_or_none(entry.get("protocol_version"))
    if entry.get("type") != _METADATA or version is None:
        return None
    return CODE if "created_at" in entry else CLI, version


def check_version(head: bytes) -> str | None:
    """Return the client that writes a file; None = none of these.

    Raises:
        ValueError: It writes a protocol that is not known.
    """
    found = version_of(head)
    if found is None:
        return None
    client, version = found
    if version not in _KNOWN[client]:
        raise ValueError(f"format {version} of {client} is not known: nothing was read")
    return client


def read_transcript(lines: Iterable[bytes]) -> Iterator[Record]:
    """Yield the facts of one agent's file in the order of its replies.

    Never raises, whatever the bytes; what cannot be read is a `Broken`. A Report comes before the
    Content of its reply.

    Args:
        lines: The lines of one file.
    """
    rest = iter(lines)
    first = next(rest, b"")
    found = version_of(first)
    reader: _StepReader = _CodeReader() if found and found[0] == CODE else _CliReader()
    yield from read_lines(_with_first(first, rest), reader.read, _is_of_subagent)
    yield from reader.flush()


def _with_first(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _is_of_subagent(line: bytes) -> bool:
    """Tell whether a line repeats what a subagent's own file says."""
    return b'"SubagentEvent"' in line[:200] and b'"agent_id": "' in line[:400]


class _StepReader:
    """The texts of one step wait for the count of its reply, wherever that stands in it."""

    def __init__(self) -> None:
        self._waiting: list[Content] = []
        self._is_counted = False
        self._tools = Recent()

    def read(self, entry: JsonObject) -> Iterable[Record]:
        """Return the facts of one line; raise ValueError when it makes no sense."""
        raise NotImplementedError

    def flush(self) -> list[Content]:
        """Return the texts of a step that has ended, or was cut before its count."""
        waiting, self._waiting, self._is_counted = self._waiting, [], False
        return waiting

    def _count(self, report: Report) -> list[Record]:
        waiting, self._waiting, self._is_counted = self._waiting, [], True
        for one in waiting:
            one.counted = one.source == "assistant"
        return [report, *waiting]

    def _text(self, text: str, source: str, at: float | None, **more: object) -> list[Record]:
        if not text:
            return []
        is_counted = self._is_counted and source == "assistant"
        found = Content(text, source, at, counted=is_counted, **more)  # type: ignore[arg-type]
        if self._is_counted:
            return [found]
        self._waiting.append(found)
        return []

    def _call(
        self, call_id: object, name: object, arguments: object, at: float | None
    ) -> list[Record]:
        tool = text_or_none(name) or "unknown"
        file = ""
        asked = arguments
        if isinstance(arguments, str):
            try:
                asked = decode_object(arguments.encode("utf-8", "surrogatepass"))
            except ValueError:
                asked = {}
        if isinstance(asked, dict):
            file = text_or_none(asked.get("path")) or text_or_none(asked.get("file_path")) or ""
        self._tools.add(call_id, f"{tool} {file}")
        return self._text(text_of([tool, arguments], None), "assistant", at)

    def _result(self, call_id: object, output: object, at: float | None) -> list[Record]:
        tool, _, file = (self._tools.get(call_id) or "unknown").partition(" ")
        text = text_of(output, _TEXT_KEYS)
        found = self._text(text, f"tool:{tool}", at, file=file or None)
        if tool == _AGENT and (agent_id := _launched(text)) is not None:
            found.append(Returned(agent_id, bool(text.partition(_RESULT)[2].strip()), at))
        return found


def _launched(result: str) -> str | None:
    """Return the subagent that a result names in its first line."""
    name, _, agent_id = result.partition("\n")[0].partition(": ")
    return agent_id.strip() or None if name == "agent_id" else None


def _report(
    usage: JsonObject, names: tuple[str, str, str, str], message_id: str | None,
    model: str | None, at: float | None,
) -> Report | None:  # fmt: skip
    other, read, created, output = (token_count(usage, name) for name in names)
    report = Report(message_id, model, model, other, read, created, output, at)
    return report if report.tokens else None


class _CliReader(_StepReader):
    _NAMES = ("input_other", "input_cache_read", "input_cache_creation", "output")

    def __init__(self) -> None:
        super().__init__()
        self._window: int | None = None
        self._has_ended_compaction = False

    def read(self, entry: JsonObject) -> Iterable[Record]:
        message = object_in(entry, "message")
        kind, data = message.get("type"), object_in(message, "payload")
        time = entry.get("timestamp")
        at = float(time) if isinstance(time, int | float) else None
        is_after_compaction, self._has_ended_compaction = self._has_ended_compaction, False
        if kind in ("TurnBegin", "SteerInput"):
            return [*self.flush(), *self._now(data.get("user_input"), at)]
        if kind in ("StepBegin", "StepInterrupted", "TurnEnd", "CompactionBegin"):
            return self.flush()
        if kind == "CompactionEnd":
            self._has_ended_compaction = True
            return [*self.flush(), Boundary(None, None, at)]
        if kind == "ContentPart":
            return self._text(text_of(data, _TEXT_KEYS), "assistant", at)
        if kind == "ToolCall":
            asked = object_in(data, "function")
            return self._call(data.get("id"), asked.get("name"), asked.get("arguments"), at)
        if kind == "ToolResult":
            returned = object_in(data, "return_value")
            return self._result(data.get("tool_call_id"), returned.get("output"), at)
        if kind == "StatusUpdate":
            return self._read_status(data, at, is_after_compaction=is_after_compaction)
        if kind == "SubagentEvent":
            return self._read_nested(object_in(data, "event"), at)
        return ()

    def _now(self, typed: object, at: float | None) -> list[Record]:
        text = text_of(typed, _TEXT_KEYS)
        return [Content(text, "user", at)] if text else []

    def _read_status(
        self, data: JsonObject, at: float | None, *, is_after_compaction: bool
    ) -> list[Record]:
        found: list[Record] = []
        window = optional_token_count(data, "max_context_tokens")
        if window and window != self._window:
            self._window = window
            found.append(Window(window, at))
        usage = object_in(data, "token_usage")
        if usage:
            name = text_or_none(data.get("message_id"))
            report = _report(usage, self._NAMES, name, None, at)
            return found if report is None else [*found, *self._count(report)]
        if data.get("context_tokens") == 0 and not is_after_compaction:
            found.append(Rewind(at))  # a person has emptied the conversation
        return found

    def _read_nested(self, event: JsonObject, at: float | None) -> list[Record]:
        """Read what a subagent cost that has no file of its own, as in older versions."""
        usage = object_in(object_in(event, "payload"), "token_usage")
        report = _report(usage, self._NAMES, None, None, at) if usage else None
        return [] if report is None else [Billed(None, report.billed_tokens, at)]


class _CodeReader(_StepReader):
    _NAMES = ("inputOther", "inputCacheRead", "inputCacheCreation", "output")

    def __init__(self) -> None:
        super().__init__()
        self._step: str | None = None
        self._model: str | None = None
        self._trigger: str | None = None
        self._system = ""
        self._definitions: list[tuple[str, str]] = []

    def read(self, entry: JsonObject) -> Iterable[Record]:
        kind, time = entry.get("type"), entry.get("time")
        at = time / 1000 if isinstance(time, int | float) else None
        if kind == "context.append_loop_event":
            return self._read_step(object_in(entry, "event"), at)
        if kind == "context.append_message":
            return [*self.flush(), *self._read_message(object_in(entry, "message"), at)]
        if kind == "llm.request":
            self._model = text_or_none(entry.get("model")) or self._model
        elif kind == "usage.record":
            return self._read_usage(entry, at)
        elif kind == "full_compaction.begin":
            self._trigger = "manual" if entry.get("source") == "manual" else "auto"
        elif kind == "full_compaction.cancel":
            self._trigger = None
        elif kind == "context.apply_compaction":
            trigger, self._trigger = self._trigger, None
            after = optional_token_count(entry, "tokensAfter")
            text = text_of(entry, ("contextSummary",)) or text_of(entry, ("summary",))
            summary = [Content(text, "summary", at)] if text else []
            return [*self.flush(), Boundary(trigger, after, at), *summary]
        elif kind in ("context.clear", "context.undo"):
            return [*self.flush(), Rewind(at)]
        elif kind == "profile.bind":
            self._system = text_of(entry, ("systemPrompt",))
            return self._standing(at)
        elif kind == "llm.tools_snapshot":
            tools = entry.get("tools")
            self._definitions = list(map(_definition, tools if isinstance(tools, list) else ()))
            return self._standing(at)
        return ()

    def _standing(self, at: float | None) -> list[Record]:
        parts = [(SYSTEM, self._system)] if self._system else []
        parts += self._definitions
        return [Standing(tuple(parts), bool(self._definitions), at)] if parts else []

    def _read_step(self, event: JsonObject, at: float | None) -> list[Record]:
        kind = event.get("type")
        if kind == "step.begin":
            self._step = text_or_none(event.get("uuid"))
            return [*self.flush()]
        if kind == "content.part":
            return self._text(text_of(event.get("part"), _TEXT_KEYS), "assistant", at)
        if kind == "tool.call":
            return self._call(event.get("toolCallId"), event.get("name"), event.get("args"), at)
        if kind == "tool.result":
            result = object_in(event, "result")
            return self._result(event.get("toolCallId"), result.get("output"), at)
        return []

    def _read_message(self, message: JsonObject, at: float | None) -> list[Record]:
        text, role = text_of(message.get("content"), _TEXT_KEYS), message.get("role")
        if not text:
            return []
        origin = object_in(message, "origin").get("kind")
        source = {"assistant": "assistant", "tool": "tool:unknown"}.get(str(role), "user")
        return [Content(text, source, at, by_host=origin not in (None, "user"))]

    def _read_usage(self, entry: JsonObject, at: float | None) -> list[Record]:
        # The name beside the count is the user's own for a model; the request has the maker's.
        model = self._model or text_or_none(entry.get("model"))
        report = _report(object_in(entry, "usage"), self._NAMES, self._step, model, at)
        if report is None:
            return []
        if entry.get("usageScope") == "turn":
            return self._count(report)
        is_summary = self._trigger is not None
        return [Billed(model, report.billed_tokens, at, is_summary=is_summary)]


def _definition(tool: object) -> tuple[str, str]:
    name = tool.get("name") if isinstance(tool, dict) else None
    server = ""
    if isinstance(name, str) and name.startswith(_MCP_TOOL):
        server = name.removeprefix(_MCP_TOOL).partition("__")[0]
    return f"{MCP}{server}" if server else TOOLS, text_of(tool, None)
