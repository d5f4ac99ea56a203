"""The dialect of Copilot CLI: what its payloads, its environment and its answers mean.

Standard library only: every hook call loads it. Hooks are installed under the names that Claude
Code has for events, since only then a payload says which event it is of.
"""

from __future__ import annotations

import os

from ultramon.hosts import port
from ultramon.hosts.calls.claude_dialect import KINDS, event_of, read_notification
from ultramon.hosts.calls.payload import checked_text, text_in
from ultramon.hosts.calls.session_environment import CALLER, calling_process
from ultramon.hosts.copilot import configuration
from ultramon.hosts.port import Dialect, ReturnedSubagent
from ultramon.system import compact_json
from ultramon.system.ids import is_agent_id
from ultramon.system.timestamps import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ultramon.hosts.port import HookEvent
    from ultramon.state.stored_plan import TaskReport

_START, _ASKED, _CALL_FAILED = "SubagentStart", "PermissionRequest", "PostToolUseFailure"
_NOTIFICATION = "Notification"
_KINDS = {
    **KINDS,
    _CALL_FAILED: port.TOOL_ENDED,
    _ASKED: port.CALL_ASKED,
    _NOTIFICATION: port.WAITING,
    "SessionEnd": port.SESSION_ENDED,
}
_PROJECT_VARIABLE = "COPILOT_PROJECT_DIR"
_LAUNCH_TOOL = "Agent"
"""Its name in such a payload; in the event file it is ``task``."""
_SQL, _TODOS = "sql", "todos"
_NEW, _FAILED = "new", "error"
_PROMPT_WORDS = ("-p", "--prompt")
_MEASURED = (
    port.TOOL_ENDED,
    port.CALL_ASKED,
    port.WAITING,
    port.SUBAGENT_ENDED,
    port.SESSION_ENDED,
)
_COMPACTED_AT = 0.8
"""Of the prompt limit: 79,050 of 100,000 tokens did not begin a compaction, 80,560 did."""


class CopilotDialect(Dialect):
    """Copilot CLI, learnt from version 1.0.102."""

    names_clear = False
    resident_programs: Mapping[str, tuple[str, str]] = {
        "statusline": ("ultramon.hosts.copilot.status_line", "answers"),
    }

    def read_event(
        self, payload: dict[str, Any], environ: Mapping[str, str], tail: bytes = b""
    ) -> HookEvent:
        """Translate a payload; see `Dialect.read_event`."""
        event = event_of(_completed(payload), _KINDS)
        _find_session(event, payload, environ)
        if event.kind in _MEASURED:
            event.hook_mark = _mark_of(payload)
        is_subagent = event.subagent_id is not None
        if event.kind == port.SESSION_STARTED:
            event.prompt = text_in(payload, "initial_prompt")
            if event.source == _NEW and self.has_prompts(environ):
                # After `/clear`, or the first one of its process, which then continues no other.
                event.source = port.CLEAR
        elif event.kind == port.SUBAGENT_STARTED:
            event.subagent_type = ""  # its prompt comes next, and says more
        elif event.kind == port.PROMPT:
            event.prompt = text_in(payload, "prompt")
            event.subagent_type = ""
        elif event.kind == port.CALL_ASKED:
            event.can_answer, event.can_end = False, True
            event.ends_session = not (is_subagent or self.has_prompts(environ))
        elif event.name == _CALL_FAILED:
            event.can_answer = False  # the host drops the answer
            if payload.get("tool_name") == _LAUNCH_TOOL:
                event.returned = _returned(event, payload, environ)
        elif event.kind == port.TOOL_ENDED and payload.get("tool_name") == _SQL:
            event.tasks = _todos(event, payload)
        elif event.kind == port.SUBAGENT_ENDED:
            event.last_text = text_in(payload, "last_assistant_message")
        elif event.name == _NOTIFICATION:
            read_notification(event, payload)
            if event.waits_for:
                event.subagent_id = _asking(event, environ)
        elif event.kind == port.WAITING:
            event.error = ""
            if is_subagent:
                event.kind = ""  # the event of its end follows
        elif event.kind == port.SESSION_ENDED:
            # The host's reason is the same after the last turn and after a signal in it.
            event.may_cut_turn = event.reason != _FAILED
            if event.reason == _FAILED:
                event.error = _last_error(event.transcript_path)
        return event

    def write_answer(self, event: HookEvent, text: str) -> bytes:
        """Return what to print; the host passes over the member of Claude Code's form."""
        return compact_json.dumps({"additionalContext": text}).encode("ascii")

    def write_end(self, event: HookEvent, reason: str) -> bytes:
        """Return what denies a call and ends the turn with it."""
        answer = {"behavior": "deny", "message": reason, "interrupt": True}
        return compact_json.dumps(answer).encode("ascii")

    def process_id(self, environ: Mapping[str, str]) -> int | None:
        """Return the process that called the hook: its shell has become the hook."""
        return calling_process(environ)

    def project(self, environ: Mapping[str, str]) -> str | None:
        """Return the directory in which the host was started."""
        return environ.get(_PROJECT_VARIABLE) or None

    def has_prompts(self, environ: Mapping[str, str]) -> bool:
        """Return whether the host was started without a prompt of its own."""
        from ultramon.system.processes import command_words

        words = command_words(calling_process(environ))
        return not any(word.partition("=")[0] in _PROMPT_WORDS for word in words)

    def environment_variables(self) -> tuple[str, ...]:
        """Return the variables that a hook reads."""
        return configuration.HOME_VARIABLE, _PROJECT_VARIABLE

    def compaction_limits(
        self,
        environ: Mapping[str, str],
        project: str | None,
        model: str | None,
        window_tokens: int | None,
    ) -> tuple[int | None, int | None]:
        """Return where the host begins to compact: at a share of the limit of a prompt."""
        return None if window_tokens is None else int(window_tokens * _COMPACTED_AT), None


DIALECT = CopilotDialect()


def _completed(payload: dict[str, Any]) -> dict[str, Any]:
    """Return a payload with the members that three events have under the host's own names only."""
    if "session_id" in payload:
        return payload
    return {
        "hook_event_name": _ASKED if "hookName" in payload else _START,
        "session_id": payload.get("sessionId"),
        "transcript_path": payload.get("transcriptPath"),
        **payload,
    }


def _mark_of(payload: dict[str, Any]) -> str | None:
    """Return the milliseconds of a hook call, by which the event file names it too."""
    stamp = payload.get("timestamp")
    if isinstance(stamp, str):
        at = parse_time(stamp)
        stamp = None if at is None else round(at * 1000)
    return str(stamp) if type(stamp) is int else None


def _find_session(event: HookEvent, payload: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Tell the session and its event file: most events of a subagent name its launcher instead."""
    folder = configuration.sessions_directory(environ)
    if event.transcript_path is not None:
        event.session_id = os.path.basename(os.path.dirname(event.transcript_path))
        return
    if event.subagent_id is not None:
        named = checked_text(payload, "parent_agent_id") or event.session_id
        # The launcher of a launcher is no session; the one that this process holds is.
        is_session = is_agent_id(named) and os.path.isdir(os.path.join(folder, named))
        event.session_id = named if is_session else _session_of(calling_process(environ), folder)
    name = event.session_id
    if is_agent_id(name):
        event.transcript_path = os.path.join(folder, name, configuration.EVENTS_NAME)


def _session_of(pid: int, folder: str) -> str:
    """Return the session that a process has open; raise ValueError when it has none."""
    try:
        names = os.listdir(folder)
    except OSError:
        names = []
    for name in names:
        if os.path.lexists(os.path.join(folder, name, f"inuse.{pid}.lock")):
            return name
    raise ValueError(f"the client {pid} has no session open")


def _todos(event: HookEvent, payload: dict[str, Any]) -> TaskReport | None:
    asked = payload.get("tool_input")
    query = asked.get("query") if isinstance(asked, dict) else None
    # Agents keep tables of their own in the same database.
    if event.transcript_path is None or not isinstance(query, str) or _TODOS not in query.lower():
        return None
    from ultramon.hosts.copilot.todos import read_todos

    return read_todos(event.transcript_path)


def _returned(
    event: HookEvent, payload: dict[str, Any], environ: Mapping[str, str]
) -> ReturnedSubagent | None:
    """Return the subagent that has failed: one that succeeded has had an event of its own."""
    error = checked_text(payload, "error")
    if error is None or event.transcript_path is None:
        return None
    _leave_to_process(environ)
    from ultramon.hosts.copilot.last_reading import await_mark, find_failed

    asked = payload.get("tool_input")
    try:
        await_mark(event.transcript_path, event.hook_mark)
        found = find_failed(event.transcript_path, event.subagent_id, asked)
    except (OSError, ValueError):
        return None
    return None if found is None else ReturnedSubagent(found, False, False, error)


def _asking(event: HookEvent, environ: Mapping[str, str]) -> str | None:
    """Return the subagent for which a person is asked; None = the session, or it is not known."""
    _leave_to_process(environ)
    from ultramon.hosts.copilot.last_reading import await_mark, find_asking

    try:
        await_mark(event.transcript_path or "", event.hook_mark)
        return find_asking(event.transcript_path or "")
    except (OSError, ValueError):
        return None


def _leave_to_process(environ: Mapping[str, str]) -> None:
    """Refuse a call in a resident, of which a forwarder awaits the first word for 0.25 s only."""
    if CALLER in environ:
        raise ValueError("waits for the event file, so a process of its own handles it")


def _last_error(path: str | None) -> str:
    """Return what the last request of a session failed with, by its event file."""
    from ultramon.hosts.copilot.last_reading import read_last_reading

    try:
        error = None if path is None else read_last_reading(path, is_subagent=False).error
    except (OSError, ValueError):
        error = None
    return error or "request failed"
