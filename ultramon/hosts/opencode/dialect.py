"""The dialect of opencode: what the events of its plugin mean, and how they are answered.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

import os

from ultramon.hosts import port
from ultramon.hosts.calls.payload import checked_text, text_in
from ultramon.hosts.calls.session_environment import calling_process
from ultramon.hosts.opencode import configuration
from ultramon.hosts.opencode.last_reading import reading_of
from ultramon.hosts.opencode.reader import ABORTED, error_named, result_in
from ultramon.hosts.port import Dialect, HookEvent, ReturnedSubagent
from ultramon.hosts.transcripts.jsonl import optional_token_count
from ultramon.hosts.transcripts.records import OVERFLOW
from ultramon.state.record import ANSWER, PERMISSION
from ultramon.system import compact_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ultramon.hosts.transcripts.jsonl import JsonObject

_KINDS = {
    "created": port.SESSION_STARTED,
    "resumed": port.SESSION_STARTED,
    "prompt": port.PROMPT,
    "request": port.TOOLS_ENDED,
    "tool": port.TOOL_STARTED,
    "todo": port.TOOL_ENDED,
    "returned": port.TOOL_ENDED,
    "compacting": port.COMPACTING,
    "permission": port.WAITING,
    "question": port.WAITING,
    "idle": port.WAITING,
    "dispose": port.SESSION_ENDED,
}
_WAITS_FOR = {"permission": PERMISSION, "question": ANSWER}
_CANCELLED = "Task cancelled"
"""The host's word for a subagent that was aborted; its own session says by what."""
_ONE_PROMPT = "run"
_SUFFIX = " (@"
"""Of a subagent's title: its kind follows."""
_USUAL_OUTPUT_TOKENS = 32_000
_USUAL_RESERVE_TOKENS = 20_000


class OpencodeDialect(Dialect):
    """opencode, learnt from version 1.18.33."""

    ends_turns = True
    keeps_reminders = False

    def read_event(
        self, payload: dict[str, Any], environ: Mapping[str, str], tail: bytes = b""
    ) -> HookEvent:
        """Translate what the plugin has sent; see `Dialect.read_event`."""
        name, session_id = checked_text(payload, "event"), checked_text(payload, "sessionID")
        if name is None or session_id is None:
            raise ValueError("no event of opencode's plugin")
        event = HookEvent(_KINDS.get(name, ""), name, session_id)
        event.subagent_id = checked_text(payload, "subagentID")
        event.subagent_type = text_in(payload, "title").partition(_SUFFIX)[0]
        event.cwd, event.model = checked_text(payload, "cwd"), checked_text(payload, "model")
        event.call_id = checked_text(payload, "callID")
        database = configuration.OPENCODE.database_path(environ)
        if database is not None:
            event.transcript_path = os.path.join(database, session_id)
        event.reading = reading_of(_messages_in(payload))
        event.reading.window_tokens = _limits(environ)[0]
        self._read_kind(event, payload, environ)
        return event

    def _read_kind(
        self, event: HookEvent, payload: dict[str, Any], environ: Mapping[str, str]
    ) -> None:
        is_subagent = event.subagent_id is not None
        error = checked_text(payload, "error")
        if event.kind == port.SESSION_STARTED:
            event.source = port.RESUME if event.name == "resumed" else "startup"
            if is_subagent:
                event.kind = port.SUBAGENT_STARTED
        elif event.kind == port.PROMPT:
            event.prompt = _unquoted(text_in(payload, "prompt"))
        elif event.kind == port.TOOLS_ENDED:
            event.can_end = True
            event.ends_session = not is_subagent and not self.has_prompts(environ)
        elif event.name == "todo":
            from ultramon.hosts.calls.listed_plan import read_report

            asked = {"tool_input": {"todos": payload.get("todos")}}
            event.tasks = read_report(asked, "todos", "content", event.subagent_id)
        elif event.name == "returned":
            event.returned = _returned(payload, error)
        elif event.name in _WAITS_FOR:
            event.waits_for = _WAITS_FOR[event.name]
        elif event.kind == port.COMPACTING:
            event.is_automatic = payload.get("auto") is True
        elif event.kind in (port.WAITING, port.SESSION_ENDED):
            event.error = "" if error in (None, ABORTED) else error_named(error)
            event.may_cut_turn, event.reason = payload.get("isBusy") is True, "exit"
            if is_subagent:
                event.kind = ""  # its launcher is told how it ended

    def write_answer(self, event: HookEvent, text: str) -> bytes:
        """Return what the plugin puts behind the last message, or into the summary's orders."""
        return compact_json.dumps({"text": text}).encode("ascii")

    def write_end(self, event: HookEvent, reason: str) -> bytes:
        """Return what makes the plugin abort the session; the client shows no reason."""
        return compact_json.dumps({"end": reason}).encode("ascii")

    def write_user_note(self, event: HookEvent, text: str) -> bytes:
        """Return what the plugin shows on the terminal."""
        return compact_json.dumps({"note": text}).encode("ascii")

    def process_id(self, environ: Mapping[str, str]) -> int | None:
        """Return the client, in which the plugin runs."""
        return calling_process(environ)

    def has_prompts(self, environ: Mapping[str, str]) -> bool:
        """Return whether the client was started without a prompt of its own."""
        from ultramon.system.processes import command_words

        return _ONE_PROMPT not in command_words(calling_process(environ))[1:]

    def environment_variables(self) -> tuple[str, ...]:
        """Return the variables that the plugin sends."""
        return (
            configuration.DATABASE_VARIABLE,
            configuration.DATA_VARIABLE,
            configuration.CONFIG_VARIABLE,
            configuration.LIMITS_VARIABLE,
        )

    def window_tokens(self, environ: Mapping[str, str], reported_tokens: int | None) -> int | None:
        """Return the window that the client knows of the model."""
        return _limits(environ)[0] or reported_tokens

    def compaction_limits(
        self,
        environ: Mapping[str, str],
        project: str | None,
        model: str | None,
        window_tokens: int | None,
    ) -> tuple[int | None, int | None]:
        """Return where the client compacts: where a reply may not fit any more."""
        return _limits(environ)[1], None


DIALECT = OpencodeDialect()


def _messages_in(payload: JsonObject) -> list[tuple[str, JsonObject]]:
    messages = payload.get("messages")
    return [
        (one["id"], one)
        for one in (messages if isinstance(messages, list) else ())
        if isinstance(one, dict) and isinstance(one.get("id"), str)
    ]


def _limits(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the window and the tokens at which the client compacts; None = not known, or never.

    What it reserves counts only for a model with a limit of its input.
    """
    try:
        limits = compact_json.loads(environ.get(configuration.LIMITS_VARIABLE) or "{}")
    except ValueError:
        return None, None
    if not isinstance(limits, dict):
        return None, None
    window = optional_token_count(limits, "context") or None
    if window is None or limits.get("auto") is False:
        return window, None
    output = optional_token_count(limits, "output") or _USUAL_OUTPUT_TOKENS
    output = min(output, _USUAL_OUTPUT_TOKENS)
    most = optional_token_count(limits, "input")
    if most:
        reserved = optional_token_count(limits, "reserved")
        usable = most - (min(_USUAL_RESERVE_TOKENS, output) if reserved is None else reserved)
    else:
        usable = window - output
    return window, usable if 0 < usable < window else None


def _returned(payload: JsonObject, error: str | None) -> ReturnedSubagent | None:
    child = checked_text(payload, "childID")
    if child is None:
        return None
    has_text = error is None and bool(result_in(text_in(payload, "output")))
    if error == _CANCELLED:
        return ReturnedSubagent(child, False, False, None)
    failed = OVERFLOW if error is not None and _has_overflowed(error) else error
    return ReturnedSubagent(child, has_text, failed is None, failed or "")


def _has_overflowed(text: str) -> bool:
    from ultramon.context.limits import parse_overflow

    return parse_overflow(text) is not None


def _unquoted(prompt: str) -> str:
    """Return a prompt as it was given: the client quotes an argument that holds a space."""
    inner = prompt[1:-1].replace('\\"', "")
    is_quoted = len(prompt) > 2 and prompt[0] == prompt[-1] == '"' and '"' not in inner
    return prompt[1:-1].replace('\\"', '"') if is_quoted else prompt
