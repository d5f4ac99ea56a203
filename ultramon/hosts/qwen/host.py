"""Qwen Code as a host: what its payloads, its environment and its answers mean.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

from ultramon.hosts import claude_dialect, port
from ultramon.hosts.claude_dialect import (
    KINDS,
    event_of,
    read_notification,
    read_prompt,
    write_context,
)
from ultramon.hosts.payload import checked_text, text_in
from ultramon.hosts.port import HookEvent, Host
from ultramon.hosts.qwen import NAME, configuration, last_reading, transcript
from ultramon.hosts.session_environment import calling_process
from ultramon.system.lean_os import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from ultramon.hosts.doctor import DoctorContext
    from ultramon.hosts.jsonl import TranscriptReader
    from ultramon.hosts.records import SessionEnd
    from ultramon.hosts.setup import Plan, SetupRequest
    from ultramon.system.findings import Finding

_KINDS = {
    **KINDS,
    "SessionEnd": port.SESSION_ENDED,
    "PostToolUseFailure": port.TOOL_ENDED,
    "StopFailure": port.WAITING,
    "Notification": port.WAITING,
}
_NOTIFICATION = "Notification"
_MODEL_VARIABLE = "QWEN_CODE_MODEL"
_PROJECT_VARIABLE = "QWEN_PROJECT_DIR"
_RUNNING = "running"
"""Status of a task in the background, without which a run of one prompt goes on."""
_PROMPT_WORDS = ("-p", "--prompt")
_FED = "--input-format"
"""Of a client that another program feeds with prompts."""


class QwenCode(Host):
    """Qwen Code, learnt from versions 0.15.10 and 0.24.4."""

    name = NAME
    own_options = ("resident", "enforce", "enforce_dry_run")

    def read_event(
        self, payload: dict[str, Any], environ: Mapping[str, str], tail: bytes = b""
    ) -> HookEvent:
        """Translate a payload; see `Host.read_event`."""
        event = event_of(payload, _KINDS, tail)
        event.call_id = checked_text(payload, "tool_call_id") or event.call_id
        event.last_text = text_in(payload, "last_assistant_message")
        event.model = event.model or environ.get(_MODEL_VARIABLE) or None
        # The old client drops such an answer, the new one keeps it in its instructions for ever.
        event.can_answer = event.source != port.COMPACT
        if event.name == _NOTIFICATION:
            read_notification(event, payload)
        if _is_of_unnamed_subagent(event, payload, environ):
            event.kind = ""
        elif event.kind == port.PROMPT:
            read_prompt(event, text_in(payload, "prompt"))
            if not (event.prompt or event.returned):
                _read_round(event, payload, environ)
        elif event.kind == port.TOOL_ENDED and payload.get("tool_name") == "todo_write":
            from ultramon.hosts.listed_plan import read_report

            event.tasks = read_report(payload, "todos", "content", event.subagent_id)
        elif event.kind == port.WAITING and event.name != _NOTIFICATION:
            event.error = text_in(payload, "error")
            if event.subagent_id is None and not event.error and _is_last_turn(payload, environ):
                # The client has no event for the end of such a run.
                event.kind, event.reason = port.SESSION_ENDED, "turn completed"
        return event

    def write_answer(self, event: HookEvent, text: str) -> bytes:
        """Return what to print; see `Host.write_answer`."""
        return write_context(event, text)

    write_end = staticmethod(claude_dialect.write_end)
    write_user_note = staticmethod(claude_dialect.write_user_note)

    def process_id(self, environ: Mapping[str, str]) -> int | None:
        """Return the process that called the hook."""
        return calling_process(environ)

    def project(self, environ: Mapping[str, str]) -> str | None:
        """Return the project's directory."""
        return environ.get(_PROJECT_VARIABLE) or None

    def has_prompts(self, environ: Mapping[str, str]) -> bool:
        """Return whether the client was started without a prompt of its own."""
        return not _runs_one_prompt(environ)

    def environment_variables(self) -> tuple[str, ...]:
        """Return the variables that a hook asks for."""
        return (
            configuration.HOME_VARIABLE,
            configuration.RUNTIME_VARIABLE,
            configuration.SESSION_VARIABLE,
            _MODEL_VARIABLE,
            _PROJECT_VARIABLE,
        )

    def compaction_limits(
        self,
        environ: Mapping[str, str],
        project: str | None,
        model: str | None,
        window_tokens: int | None,
    ) -> tuple[int | None, int | None]:
        """Return where the client compacts by itself."""
        return configuration.compaction_tokens(environ, project, window_tokens), None

    def transcript_path(
        self, event: HookEvent, subagent_id: str | None, session_id: str
    ) -> str | None:
        """Return a file: those of subagents lie in a folder beside that of all sessions."""
        path = event.transcript_path
        if path is None or subagent_id is None:
            return path
        return os.path.join(_subagents_folder(path, session_id), f"agent-{subagent_id}.jsonl")

    def subagent_transcripts(self, path: str) -> Iterator[str]:
        """Yield the files of a session's subagents, of those that a newer client has written."""
        from ultramon.hosts.transcript_files import files_below

        session_id, _ = os.path.splitext(os.path.basename(path))
        return files_below(_subagents_folder(os.path.abspath(path), session_id), ".jsonl")

    def read_session_end(self, path: str, environ: Mapping[str, str]) -> SessionEnd | None:
        """Return how a session ended, as its file and the client's record of exits say."""
        from ultramon.hosts.qwen.session_end import read_session_end

        return read_session_end(path, environ)

    read_last_reading = staticmethod(last_reading.read_last_reading)
    read_last_replies = staticmethod(last_reading.read_last_replies)
    looks_like_transcript = staticmethod(transcript.looks_like_transcript)
    identify = staticmethod(transcript.identify)
    read_transcript = staticmethod(transcript.read_transcript)

    def open_reader(self, memory: dict[str, Any] | None = None) -> TranscriptReader:
        """Return a reader of one file."""
        return transcript.LineReader(memory)

    def transcript_files(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None = None
    ) -> Iterator[str]:
        """Yield the files of sessions and subagents in ``QWEN_RUNTIME_DIR``, else ``~/.qwen``."""
        from ultramon.hosts.transcript_files import files_below

        return files_below(configuration.sessions_directory(environ), ".jsonl", on_error)

    def resume_words(self, session_id: str) -> tuple[str, ...]:
        """Return the command that resumes a session."""
        return "qwen", "--resume", session_id

    def plan_installation(self, request: SetupRequest) -> Plan:
        """Plan hooks in the user's settings."""
        from ultramon.hosts.qwen.setup import plan_installation

        return plan_installation(request)

    def plan_removal(self, request: SetupRequest) -> Plan:
        """Plan to take them out again."""
        from ultramon.hosts.qwen.setup import plan_removal

        return plan_removal(request)

    def examine(self, context: DoctorContext) -> Iterable[Finding]:
        """Answer the questions about the hooks and about sessions that never called one."""
        from ultramon.hosts.qwen.doctor import examine

        return examine(self, context)


QWEN = QwenCode()


def _subagents_folder(path: str, session_id: str) -> str:
    """Return where the subagents of a session have their files, by the path of its own."""
    return os.path.join(os.path.dirname(os.path.dirname(path)), "subagents", session_id)


def _is_of_unnamed_subagent(
    event: HookEvent, payload: dict[str, Any], environ: Mapping[str, str]
) -> bool:
    """Tell that an event may be a subagent's although it names the session only.

    Version 0.15 does not say who compacts, whose tool has run, and for whose a person is asked;
    nobody must read the answer to what another one did.
    """
    if configuration.SESSION_VARIABLE in environ or event.subagent_id is not None:
        return False
    is_tool = event.kind == port.TOOL_ENDED or event.waits_for != ""
    if is_tool and payload.get("tool_name") == last_reading.LAUNCH_TOOL:
        return False
    compacts = event.kind in (port.COMPACTING, port.COMPACTED) or event.source == port.COMPACT
    path = event.transcript_path
    return (is_tool or compacts) and path is not None and last_reading.may_run_subagent(path)


def _read_round(event: HookEvent, payload: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Tell a round of tools, which the client reports as an empty prompt, from its own texts.

    The next request to the model is the only thing that an answer can prevent.
    """
    if text_in(payload, "prompt").strip():
        event.kind = ""
        return
    event.kind, event.can_answer, event.can_end = port.TOOLS_ENDED, False, True
    event.ends_session = _runs_one_prompt(environ)


def _is_last_turn(payload: dict[str, Any], environ: Mapping[str, str]) -> bool:
    """Tell the end of a run of one prompt from that of a turn after which a person goes on."""
    tasks = payload.get("background_tasks")
    waits = isinstance(tasks, list) and any(
        isinstance(task, dict) and task.get("status") == _RUNNING for task in tasks
    )
    return not waits and _runs_one_prompt(environ)


def _runs_one_prompt(environ: Mapping[str, str]) -> bool:
    """Tell whether the client was started with a prompt to answer, and with no more to come."""
    from ultramon.system.processes import command_words

    words = command_words(calling_process(environ))
    is_fed = any(word.startswith(_FED) for word in words)
    return not is_fed and any(word.partition("=")[0] in _PROMPT_WORDS for word in words)
