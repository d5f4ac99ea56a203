"""The dialect of Claude Code: what its payloads, its environment and its answers mean.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

from ultramon.hosts import port
from ultramon.hosts.calls import claude_dialect
from ultramon.hosts.calls.claude_dialect import (
    KINDS,
    event_of,
    read_notification,
    read_prompt,
    write_context,
)
from ultramon.hosts.calls.payload import MAX_FIELD_CHARS, text_in
from ultramon.hosts.claude_code import MOST_VARIABLE, SMALL_VARIABLE, reader
from ultramon.hosts.port import Dialect, HookEvent, LaunchedSubagent, ReturnedSubagent
from ultramon.hosts.transcripts.jsonl import optional_token_count, text_or_none
from ultramon.state.record import PERMISSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


_KINDS = {
    **KINDS,
    "SessionEnd": port.SESSION_ENDED,
    "PostToolUseFailure": port.TOOL_ENDED,
    "StopFailure": port.WAITING,
    "Notification": port.WAITING,
    "PermissionRequest": port.WAITING,
    # Understood, not installed: PostToolUse reports each call already, and older versions lack it.
    "PostToolBatch": port.TOOLS_ENDED,
}
_TASK_TOOLS = ("TaskCreate", "TaskUpdate", "TaskList")
_ASKED = ("clear", "resume", "logout", "prompt_input_exit")
"""Reasons of a ``SessionEnd`` that a person has asked for; after a signal it is ``other``."""
_TERMINAL = "cli"
"""``CLAUDE_CODE_ENTRYPOINT`` on a terminal."""


class ClaudeCodeDialect(Dialect):
    """Anthropic's Claude Code, learnt from version 2.1.330."""

    ends_turns = True
    resident_programs: Mapping[str, tuple[str, str]] = {
        "statusline": ("ultramon.hosts.claude_code.status_line", "answers"),
    }

    def read_event(
        self, payload: dict[str, Any], environ: Mapping[str, str], tail: bytes = b""
    ) -> HookEvent:
        """Translate a payload; see `Dialect.read_event`."""
        event = event_of(payload, _KINDS, tail)
        name = event.name
        event.call_id = event.call_id or _last_of_batch(payload)
        # After a failure the turn continues, whatever the answer to PostToolUseFailure says.
        event.can_end = name == "PostToolUse"
        event.last_text = text_in(payload, "last_assistant_message")
        if event.kind == port.SESSION_STARTED:
            event.tokens = optional_token_count(payload, "context_tokens")
        elif event.kind == port.SESSION_ENDED:
            event.may_cut_turn = event.reason not in _ASKED
        elif event.kind == port.PROMPT:
            read_prompt(event, text_in(payload, "prompt"))
        elif event.kind == port.TOOL_ENDED and payload.get("tool_name") in ("Agent", "Task"):
            event.returned = _returned(event, payload.get("tool_response"))
            event.launched = _launched(payload.get("tool_response"))
        elif name == "PostToolUse" and payload.get("tool_name") in _TASK_TOOLS:
            from ultramon.hosts.claude_code.task_list import read_report

            event.tasks = read_report(payload)
        elif event.kind == port.SUBAGENT_ENDED and not event.subagent_type:
            event.kind = ""  # the host sends one for every compaction too
        elif name in ("Stop", "StopFailure"):
            event.error = text_in(payload, "error")
        elif name == "PermissionRequest":
            event.waits_for = PERMISSION
        elif name == "Notification":
            read_notification(event, payload)
        return event

    def write_answer(self, event: HookEvent, text: str) -> bytes:
        """Return what to print; see `Dialect.write_answer`."""
        if event.kind == port.COMPACTING:
            # PreCompact drops JSON silently; its plain text joins the instructions for the summary.
            return text.encode("utf-8", "replace") + b"\n"
        return write_context(event, text)

    write_end = staticmethod(claude_dialect.write_end)
    write_user_note = staticmethod(claude_dialect.write_user_note)

    def process_id(self, environ: Mapping[str, str]) -> int | None:
        """Return the host's process, which it names for commands."""
        text = environ.get("CLAUDE_PID", "")
        # Bounded, since `int` refuses digits without end.
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None

    def project(self, environ: Mapping[str, str]) -> str | None:
        """Return the project's directory."""
        return environ.get("CLAUDE_PROJECT_DIR") or None

    def has_prompts(self, environ: Mapping[str, str]) -> bool:
        """Return whether the host runs on a terminal."""
        return environ.get("CLAUDE_CODE_ENTRYPOINT") == _TERMINAL

    def environment_variables(self) -> tuple[str, ...]:
        """Return the variables that a hook reads."""
        from ultramon.hosts.claude_code.compaction_trigger import VARIABLES

        return ("CLAUDE_PID", "CLAUDE_PROJECT_DIR", "CLAUDE_CODE_ENTRYPOINT", *VARIABLES)

    def account_directory(self, environ: Mapping[str, str]) -> str:
        """Return ``CLAUDE_CONFIG_DIR``, else ``~/.claude``."""
        from ultramon.hosts.claude_code.compaction_trigger import config_directory

        return config_directory(environ)

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
        """Return where the host compacts or refuses, by its environment and settings."""
        from ultramon.hosts.claude_code.compaction_trigger import compaction_limits

        return compaction_limits(environ, project, model, window_tokens)


DIALECT = ClaudeCodeDialect()


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
        from ultramon.hosts.claude_code.launches import subagent_of_call

        # The host does not name the subagent whose failure is that of the tool.
        failed = subagent_of_call(event.transcript_path, event.call_id)
        return None if failed is None else ReturnedSubagent(failed, True, False)
    result = reader.returned_by_tool(response)
    return None if result is None else ReturnedSubagent(*result, True)
