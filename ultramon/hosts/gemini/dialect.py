"""The dialect of Google's Gemini CLI: what its payloads, its environment and its answers mean.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

from ultramon.hosts import port
from ultramon.hosts.calls import claude_dialect
from ultramon.hosts.calls.claude_dialect import event_of, write_context
from ultramon.hosts.calls.payload import text_in
from ultramon.hosts.calls.session_environment import calling_process
from ultramon.hosts.gemini import last_reading, reader
from ultramon.hosts.port import Dialect
from ultramon.hosts.transcripts.prompts import without_hook_texts
from ultramon.state.record import ANSWER, PERMISSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ultramon.hosts.gemini.subagent_files import SubagentFile
    from ultramon.hosts.port import HookEvent

# No PreCompress: the host calls it before each request, and the session file shows a compression.
_KINDS = {
    "SessionStart": port.SESSION_STARTED,
    "BeforeAgent": port.PROMPT,
    "AfterTool": port.TOOL_ENDED,
    # Hooked with --enforce only: it costs a process and the whole conversation for each request.
    "BeforeModel": port.TOOLS_ENDED,
    "Notification": port.WAITING,
    "AfterAgent": port.WAITING,
    "SessionEnd": port.SESSION_ENDED,
}
_INVOKE = "invoke_agent"
_ASKS_TOOL = "ToolPermission"


class GeminiDialect(Dialect):
    """Gemini CLI, learnt from version 0.61.0."""

    # The host cuts between prompts: a session of one prompt ran past its threshold unharmed.
    prompts_before_compaction = 2

    def read_event(
        self, payload: dict[str, Any], environ: Mapping[str, str], tail: bytes = b""
    ) -> HookEvent:
        """Translate a payload; see `Dialect.read_event`."""
        event = event_of(payload, _KINDS)
        if event.kind == port.SESSION_ENDED:
            if event.reason != port.CLEAR:
                # The host has one reason for a command, a signal, and the end of a plain run.
                event.may_cut_turn = True
                event.error = _last_error(event.transcript_path, environ)
        elif event.kind == port.PROMPT:
            event.prompt = without_hook_texts(text_in(payload, "prompt"))
            if reader.is_nudge(event.prompt):
                event.kind = ""
        elif event.name == "Notification":
            _read_question(event, payload)
        elif event.kind == port.WAITING:
            event.error = ""
        elif event.kind == port.TOOL_ENDED:
            _read_tool(event, payload)
        elif event.kind == port.TOOLS_ENDED:
            _read_request(event)
        return event

    def write_answer(self, event: HookEvent, text: str) -> bytes:
        """Return what to print; see `Dialect.write_answer`."""
        return write_context(event, text)

    write_end = staticmethod(claude_dialect.write_end)
    write_user_note = staticmethod(claude_dialect.write_user_note)

    def process_id(self, environ: Mapping[str, str]) -> int | None:
        """Return the process that called the hook: its shell has become the hook."""
        return calling_process(environ)

    def project(self, environ: Mapping[str, str]) -> str | None:
        """Return the directory in which the host was started."""
        return environ.get("GEMINI_PROJECT_DIR") or None

    def environment_variables(self) -> tuple[str, ...]:
        """Return the variables that a hook reads."""
        from ultramon.hosts.gemini.configuration import HOME_VARIABLE, TEMPORARY_VARIABLE

        return HOME_VARIABLE, TEMPORARY_VARIABLE, "GEMINI_PROJECT_DIR"

    def compaction_limits(
        self,
        environ: Mapping[str, str],
        project: str | None,
        model: str | None,
        window_tokens: int | None,
    ) -> tuple[int | None, int | None]:
        """Return where the host compresses: at a share of the window."""
        if window_tokens is None:
            return None, None
        from ultramon.hosts.gemini.configuration import compression_ratio

        trigger = int(window_tokens * compression_ratio(environ, project))
        return (trigger if 0 < trigger < window_tokens else None), None


DIALECT = GeminiDialect()


def _last_error(path: str | None, environ: Mapping[str, str]) -> str | None:
    """Return what the last request of a session failed with, or None."""
    if path is None or not last_reading.lacks_reply(path):
        return None
    from ultramon.hosts.gemini.session_end import read_session_end

    try:
        end = read_session_end(path, environ)
    except (OSError, ValueError):
        return None  # a signal has ended it, as far as anything says
    return None if end is None else end.error


def _read_tool(event: HookEvent, payload: dict[str, Any]) -> None:
    """Tell a call of the session from one of its subagents, which the payload does not."""
    tool = payload.get("tool_name")
    if event.transcript_path is not None:
        from ultramon.hosts.gemini.subagent_files import subagents_of_call

        found = subagents_of_call(event.transcript_path, event.session_id)
        if found and tool == _INVOKE:
            from ultramon.hosts.gemini.subagent_results import read_result

            read_result(event, payload, found)
        elif found:
            _read_caller(event, found)
    if tool == "write_todos":
        from ultramon.hosts.calls.listed_plan import read_report

        event.tasks = read_report(payload, "todos", "description", event.subagent_id)


def _read_request(event: HookEvent) -> None:
    """Tell whose tools have all run; a request that follows no tools is no event.

    While a session waits for its tools, it is a subagent of it that asks the model.
    """
    event.can_answer, event.can_end = False, True
    path = event.transcript_path
    last = {} if path is None else last_reading.last_message(path)
    if reader.holds_results(last):
        return
    event.kind = port.NUDGED if reader.is_nudge(last.get("content")) else ""
    if path is not None and reader.waits_for_tools(last):
        from ultramon.hosts.gemini.subagent_files import subagents_of_call

        running = [one for one in subagents_of_call(path, event.session_id) if not one.is_over]
        if len(running) == 1 and running[0].has_run_tools:
            event.kind, event.subagent_id = port.TOOLS_ENDED, running[0].subagent_id


def _read_question(event: HookEvent, payload: dict[str, Any]) -> None:
    """Tell what a person is asked for, and by whom: of several subagents the session asks."""
    if payload.get("notification_type") != _ASKS_TOOL:
        event.kind = ""
        return
    details = payload.get("details")
    is_question = isinstance(details, dict) and details.get("type") == "ask_user"
    event.waits_for = ANSWER if is_question else PERMISSION
    if event.transcript_path is not None:
        from ultramon.hosts.gemini.subagent_files import subagents_of_call

        _read_caller(event, subagents_of_call(event.transcript_path, event.session_id))


def _read_caller(event: HookEvent, found: list[SubagentFile]) -> None:
    running = [one for one in found if not one.is_over]
    callers = [one for one in running if one.is_in_tool]
    if callers and len(running) == 1:
        event.subagent_id, event.subagent_type = callers[0].subagent_id, callers[0].objective
    elif callers:
        event.candidates = tuple(one.subagent_id for one in callers)
        event.can_answer = False
