"""The dialect of Qwen Code: what its payloads, its environment and its answers mean.

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
from ultramon.hosts.calls.payload import checked_text, text_in
from ultramon.hosts.calls.session_environment import calling_process
from ultramon.hosts.port import Dialect, HookEvent
from ultramon.hosts.qwen import configuration, last_reading

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
}
_NOTIFICATION = "Notification"
_MODEL_VARIABLE = "QWEN_CODE_MODEL"
_PROJECT_VARIABLE = "QWEN_PROJECT_DIR"
_RUNNING = "running"
"""Status of a task in the background, without which a run of one prompt continues."""
_PROMPT_WORDS = ("-p", "--prompt")
_FED = "--input-format"
"""Of a process that another program feeds with prompts."""


class QwenCodeDialect(Dialect):
    """Qwen Code, learnt from versions 0.15.10 and 0.24.4."""

    ends_turns = True

    def read_event(
        self, payload: dict[str, Any], environ: Mapping[str, str], tail: bytes = b""
    ) -> HookEvent:
        """Translate a payload; see `Dialect.read_event`."""
        event = event_of(payload, _KINDS, tail)
        event.call_id = checked_text(payload, "tool_call_id") or event.call_id
        event.last_text = text_in(payload, "last_assistant_message")
        event.model = event.model or environ.get(_MODEL_VARIABLE) or None
        # Version 0.15 drops such an answer; 0.24 keeps it in its instructions for ever.
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
            from ultramon.hosts.calls.listed_plan import read_report

            event.tasks = read_report(payload, "todos", "content", event.subagent_id)
        elif event.kind == port.WAITING and event.name != _NOTIFICATION:
            event.error = text_in(payload, "error")
            if event.subagent_id is None and not event.error and _is_last_turn(payload, environ):
                # The host has no event for the end of such a run.
                event.kind, event.reason = port.SESSION_ENDED, "turn completed"
        elif event.kind == port.SESSION_ENDED:
            # The host's reason is the same after a command and after a signal.
            event.may_cut_turn = event.reason != port.CLEAR
        return event

    def write_answer(self, event: HookEvent, text: str) -> bytes:
        """Return what to print; see `Dialect.write_answer`."""
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
        """Return whether the host was started without a prompt of its own."""
        return not _runs_one_prompt(environ)

    def environment_variables(self) -> tuple[str, ...]:
        """Return the variables that a hook reads."""
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
        """Return where the host compacts by itself."""
        return configuration.compaction_tokens(environ, project, window_tokens), None


DIALECT = QwenCodeDialect()


def _is_of_unnamed_subagent(
    event: HookEvent, payload: dict[str, Any], environ: Mapping[str, str]
) -> bool:
    """Tell that an event may be a subagent's although it names the session only.

    Version 0.15 does not say who compacts, whose tool has run, and for whose a person is asked;
    no agent must read the answer to what another one did.
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
    """Tell a round of tools, which the host reports as an empty prompt, from its own texts.

    The next request to the model is the only thing that an answer can prevent.
    """
    if text_in(payload, "prompt").strip():
        event.kind = ""
        return
    event.kind, event.can_answer, event.can_end = port.TOOLS_ENDED, False, True
    event.ends_session = _runs_one_prompt(environ)


def _is_last_turn(payload: dict[str, Any], environ: Mapping[str, str]) -> bool:
    """Tell the end of a run of one prompt from that of a turn that a person continues."""
    tasks = payload.get("background_tasks")
    waits = isinstance(tasks, list) and any(
        isinstance(task, dict) and task.get("status") == _RUNNING for task in tasks
    )
    return not waits and _runs_one_prompt(environ)


def _runs_one_prompt(environ: Mapping[str, str]) -> bool:
    """Tell whether the host was started with a prompt to answer, and with no more to come."""
    from ultramon.system.processes import command_words

    # No event says how the host was started; its command line does.
    words = command_words(calling_process(environ))
    is_fed = any(word.startswith(_FED) for word in words)
    return not is_fed and any(word.partition("=")[0] in _PROMPT_WORDS for word in words)
