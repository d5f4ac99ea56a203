"""Claude Code as a host: what its payloads, its environment and its answers mean.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

from ultramon.hosts import claude_dialect, port
from ultramon.hosts.claude_code import MOST_VARIABLE, NAME, SMALL_VARIABLE
from ultramon.hosts.claude_code.transcripts import last_reading, reader
from ultramon.hosts.claude_dialect import (
    KINDS,
    event_of,
    read_notification,
    read_prompt,
    write_context,
)
from ultramon.hosts.jsonl import optional_token_count, text_or_none
from ultramon.hosts.payload import MAX_FIELD_CHARS, text_in
from ultramon.hosts.port import HookEvent, Host, LaunchedSubagent, ReturnedSubagent
from ultramon.state.record import PERMISSION
from ultramon.system.lean_os import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from ultramon.hosts.doctor import DoctorContext
    from ultramon.hosts.jsonl import TranscriptReader
    from ultramon.hosts.setup import Plan, SetupRequest
    from ultramon.system.findings import Finding

_KINDS = {
    **KINDS,
    "SessionEnd": port.SESSION_ENDED,
    "PostToolUseFailure": port.TOOL_ENDED,
    "StopFailure": port.WAITING,
    "Notification": port.WAITING,
    "PermissionRequest": port.WAITING,
    "PostToolBatch": port.TOOLS_ENDED,
}
_TASK_TOOLS = ("TaskCreate", "TaskUpdate", "TaskList")
_TERMINAL = "cli"
"""``CLAUDE_CODE_ENTRYPOINT`` on a terminal."""


class ClaudeCode(Host):
    """Anthropic's Claude Code, learnt from version 2.1.330."""

    name = NAME
    own_options = (
        "plugin", "status_line", "via", "url", "secret_in", "resident",
        "enforce", "enforce_dry_run",
    )  # fmt: skip
    resident_programs: Mapping[str, tuple[str, str]] = {
        "statusline": ("ultramon.hosts.claude_code.status_line_answers", "StatusLineAnswers"),
    }

    def read_event(
        self, payload: dict[str, Any], environ: Mapping[str, str], tail: bytes = b""
    ) -> HookEvent:
        """Translate a payload; see `Host.read_event`."""
        event = event_of(payload, _KINDS, tail)
        name = event.name
        event.call_id = event.call_id or _last_of_batch(payload)
        # The client goes on after a failure, whatever the answer to PostToolUseFailure says.
        event.can_end = name == "PostToolUse"
        event.last_text = text_in(payload, "last_assistant_message")
        if event.kind == port.SESSION_STARTED:
            event.tokens = optional_token_count(payload, "context_tokens")
        elif event.kind == port.PROMPT:
            read_prompt(event, text_in(payload, "prompt"))
        elif event.kind == port.TOOL_ENDED and payload.get("tool_name") in ("Agent", "Task"):
            event.returned = _returned(event, payload.get("tool_response"))
            event.launched = _launched(payload.get("tool_response"))
        elif name == "PostToolUse" and payload.get("tool_name") in _TASK_TOOLS:
            from ultramon.hosts.claude_code.task_list import read_report

            event.tasks = read_report(payload)
        elif event.kind == port.SUBAGENT_ENDED and not event.subagent_type:
            event.kind = ""  # the client sends one for every compaction too
        elif name in ("Stop", "StopFailure"):
            event.error = text_in(payload, "error")
        elif name == "PermissionRequest":
            event.waits_for = PERMISSION
        elif name == "Notification":
            read_notification(event, payload)
        return event

    def write_answer(self, event: HookEvent, text: str) -> bytes:
        """Return what to print; see `Host.write_answer`."""
        if event.kind == port.COMPACTING:
            return text.encode("utf-8", "replace") + b"\n"
        return write_context(event, text)

    write_end = staticmethod(claude_dialect.write_end)
    write_user_note = staticmethod(claude_dialect.write_user_note)

    def process_id(self, environ: Mapping[str, str]) -> int | None:
        """Return the client's process, which it names for commands but not for requests."""
        text = environ.get("CLAUDE_PID", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None

    def project(self, environ: Mapping[str, str]) -> str | None:
        """Return the project's directory."""
        return environ.get("CLAUDE_PROJECT_DIR") or None

    def has_prompts(self, environ: Mapping[str, str]) -> bool:
        """Return whether the client runs on a terminal."""
        return environ.get("CLAUDE_CODE_ENTRYPOINT") == _TERMINAL

    def environment_variables(self) -> tuple[str, ...]:
        """Return the variables that a hook asks for."""
        from ultramon.hosts.claude_code.compaction_trigger import VARIABLES

        return ("CLAUDE_PID", "CLAUDE_PROJECT_DIR", "CLAUDE_CODE_ENTRYPOINT", *VARIABLES)

    def window_tokens(self, environ: Mapping[str, str], reported_tokens: int | None) -> int | None:
        """Return the window that a status line reported, or less where the environment says so."""
        # Most environments say nothing, and every hook call asks.
        if SMALL_VARIABLE not in environ and MOST_VARIABLE not in environ:
            return reported_tokens
        from ultramon.hosts.claude_code.compaction_trigger import host_window_tokens

        return host_window_tokens(environ, reported_tokens)

    def compaction_limits(
        self,
        environ: Mapping[str, str],
        project: str | None,
        model: str | None,
        window_tokens: int | None,
    ) -> tuple[int | None, int | None]:
        """Return where the client compacts or refuses, by its environment and settings."""
        from ultramon.hosts.claude_code.compaction_trigger import compaction_limits

        return compaction_limits(environ, project, model, window_tokens)

    def transcript_path(
        self, event: HookEvent, subagent_id: str | None, session_id: str
    ) -> str | None:
        """Return a transcript: those of subagents lie in a folder beside that of the session."""
        path = event.transcript_path
        if path is None or subagent_id is None:
            return path
        folder = path.removesuffix(".jsonl")
        if session_id != event.session_id:
            folder = os.path.join(os.path.dirname(path), session_id)
        return os.path.join(folder, "subagents", f"agent-{subagent_id}.jsonl")

    def subagent_transcripts(self, path: str) -> Iterator[str]:
        """Yield the transcripts in the folder that is named after the session's."""
        from ultramon.hosts.transcript_files import files_below

        return files_below(os.path.join(os.path.splitext(path)[0], "subagents"), ".jsonl")

    read_last_reading = staticmethod(last_reading.read_last_reading)
    read_last_replies = staticmethod(last_reading.read_last_replies)
    read_token_budget = staticmethod(last_reading.read_token_budget)
    looks_like_transcript = staticmethod(reader.looks_like_transcript)
    identify = staticmethod(reader.identify)
    read_transcript = staticmethod(reader.read_transcript)

    def open_reader(self, memory: dict[str, Any] | None = None) -> TranscriptReader:
        """Return a reader whose first line says whether it is a subagent's own file."""
        return reader.LineReader(None, memory)

    def transcript_files(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None = None
    ) -> Iterator[str]:
        """Yield the files of ``projects`` in ``CLAUDE_CONFIG_DIR``, else in ``~/.claude``."""
        from ultramon.hosts.transcript_files import files_below

        folder = environ.get("CLAUDE_CONFIG_DIR") or os.path.expanduser("~/.claude")
        return files_below(os.path.join(folder, "projects"), ".jsonl", on_error)

    def resume_words(self, session_id: str) -> tuple[str, ...]:
        """Return the command that resumes a session."""
        return "claude", "--resume", session_id

    def plan_installation(self, request: SetupRequest) -> Plan:
        """Plan hooks and a status line in a layer of the client's settings, or a plugin."""
        from ultramon.hosts.claude_code.setup.requests import plan_installation

        return plan_installation(request)

    def plan_removal(self, request: SetupRequest) -> Plan:
        """Plan to take them out again."""
        from ultramon.hosts.claude_code.setup.requests import plan_removal

        return plan_removal(request)

    def examine(self, context: DoctorContext) -> Iterable[Finding]:
        """Answer the questions about settings, launchers, requests and transcripts."""
        from ultramon.hosts.claude_code.doctor.settings_checks import examine

        return examine(context)


CLAUDE_CODE = ClaudeCode()


def _last_of_batch(payload: dict[str, Any]) -> str | None:
    calls = payload.get("tool_calls")
    last = calls[-1] if isinstance(calls, list) and calls else None
    call_id = last.get("tool_use_id") if isinstance(last, dict) else None
    return call_id if isinstance(call_id, str) and len(call_id) <= MAX_FIELD_CHARS else None


def _launched(response: object) -> LaunchedSubagent | None:
    if not isinstance(response, dict) or not isinstance(response.get("agentId"), str):
        return None
    model, task = response.get("resolvedModel"), response.get("description")
    return LaunchedSubagent(response["agentId"], text_or_none(model), text_or_none(task))


def _returned(event: HookEvent, response: object) -> ReturnedSubagent | None:
    if event.name == "PostToolUseFailure" and event.transcript_path and event.call_id:
        from ultramon.hosts.claude_code.transcripts.launches import subagent_of_call

        # The client does not name the subagent whose failure is that of the tool.
        failed = subagent_of_call(event.transcript_path, event.call_id)
        return None if failed is None else ReturnedSubagent(failed, True, False)
    result = reader.returned_by_tool(response)
    return None if result is None else ReturnedSubagent(*result, True)
