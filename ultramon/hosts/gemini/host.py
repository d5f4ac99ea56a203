"""Google's Gemini CLI as a host: what its payloads, its environment and its answers mean.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

from ultramon.hosts import claude_dialect, port
from ultramon.hosts.claude_dialect import event_of, write_context
from ultramon.hosts.gemini import NAME, last_reading, transcript
from ultramon.hosts.payload import text_in
from ultramon.hosts.port import Host
from ultramon.hosts.session_environment import calling_process
from ultramon.state.record import ANSWER, PERMISSION
from ultramon.system.lean_os import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from ultramon.hosts.doctor import DoctorContext
    from ultramon.hosts.gemini.subagent_files import SubagentFile
    from ultramon.hosts.jsonl import TranscriptReader
    from ultramon.hosts.port import HookEvent
    from ultramon.hosts.records import SessionEnd, TranscriptIdentity
    from ultramon.hosts.setup import Plan, SetupRequest
    from ultramon.system.findings import Finding

_KINDS = {
    "SessionStart": port.SESSION_STARTED,
    "BeforeAgent": port.PROMPT,
    "AfterTool": port.TOOL_ENDED,
    "BeforeModel": port.TOOLS_ENDED,
    "Notification": port.WAITING,
    "AfterAgent": port.WAITING,
    "SessionEnd": port.SESSION_ENDED,
}
_INVOKE = "invoke_agent"
_ASKS_TOOL = "ToolPermission"
_UNANSWERED = "no reply to its last request"
_FOLDER_MARK = f"{os.sep}chats{os.sep}"


class Gemini(Host):
    """Gemini CLI, learnt from version 0.61.0."""

    name = NAME
    own_options = ("resident", "enforce", "enforce_dry_run")
    prompts_before_compaction = 2

    def read_event(
        self, payload: dict[str, Any], environ: Mapping[str, str], tail: bytes = b""
    ) -> HookEvent:
        """Translate a payload; see `Host.read_event`."""
        event = event_of(payload, _KINDS)
        if event.kind == port.SESSION_ENDED:
            path = event.transcript_path
            if event.reason != port.CLEAR and path and last_reading.lacks_reply(path):
                event.error = _UNANSWERED
        elif event.kind == port.PROMPT:
            event.prompt = transcript.without_hook_texts(text_in(payload, "prompt"))
            if transcript.is_nudge(event.prompt):
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
        """Return what to print; see `Host.write_answer`."""
        return write_context(event, text)

    write_end = staticmethod(claude_dialect.write_end)
    write_user_note = staticmethod(claude_dialect.write_user_note)

    def process_id(self, environ: Mapping[str, str]) -> int | None:
        """Return the process that called the hook: its shell has become the hook."""
        return calling_process(environ)

    def project(self, environ: Mapping[str, str]) -> str | None:
        """Return the directory in which the client was started."""
        return environ.get("GEMINI_PROJECT_DIR") or None

    def environment_variables(self) -> tuple[str, ...]:
        """Return the variables that a hook asks for."""
        from ultramon.hosts.gemini.configuration import HOME_VARIABLE, TEMPORARY_VARIABLE

        return HOME_VARIABLE, TEMPORARY_VARIABLE, "GEMINI_PROJECT_DIR"

    def compaction_limits(
        self,
        environ: Mapping[str, str],
        project: str | None,
        model: str | None,
        window_tokens: int | None,
    ) -> tuple[int | None, int | None]:
        """Return where the client compresses: at a share of the window."""
        if window_tokens is None:
            return None, None
        from ultramon.hosts.gemini.configuration import compression_ratio

        trigger = int(window_tokens * compression_ratio(environ, project))
        return (trigger if 0 < trigger < window_tokens else None), None

    def transcript_path(
        self, event: HookEvent, subagent_id: str | None, session_id: str
    ) -> str | None:
        """Return a session file: those of subagents lie in a folder with the session's id."""
        path = event.transcript_path
        if path is None or subagent_id is None:
            return path
        from ultramon.hosts.gemini.subagent_files import SUFFIX, folder_of

        return os.path.join(folder_of(path, session_id), f"{subagent_id}{SUFFIX}")

    def read_session_end(self, path: str, environ: Mapping[str, str]) -> SessionEnd | None:
        """Return what the last request failed with, as the client's report of it says."""
        from ultramon.hosts.gemini.session_end import read_session_end

        return read_session_end(path, environ)

    read_last_reading = staticmethod(last_reading.read_last_reading)
    read_last_replies = staticmethod(last_reading.read_last_replies)
    looks_like_transcript = staticmethod(transcript.looks_like_transcript)
    identify = staticmethod(transcript.identify)
    read_transcript = staticmethod(transcript.read_transcript)

    def identify_file(self, path: str, lines: Iterable[bytes]) -> TranscriptIdentity | None:
        """Return whose session file it is; the folder of a subagent's names its session."""
        folder, _ = os.path.split(os.path.abspath(path))
        session_id = os.path.basename(folder) if _FOLDER_MARK in folder else None
        return transcript.identify(lines, session_id)

    def subagent_transcripts(self, path: str) -> Iterator[str]:
        """Yield the session files of a session's subagents."""
        from ultramon.hosts.gemini.subagent_files import SUFFIX, folder_of
        from ultramon.hosts.jsonl import bounded_lines
        from ultramon.hosts.transcript_files import files_below

        with open(path, "rb") as stream:
            identity = transcript.identify(bounded_lines(stream))
        if identity is not None:
            yield from files_below(folder_of(path, identity.session_id), SUFFIX)

    def open_reader(self, memory: dict[str, Any] | None = None) -> TranscriptReader:
        """Return a reader of one session file."""
        return transcript.LineReader(memory)

    def transcript_files(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None = None
    ) -> Iterator[str]:
        """Yield the files of ``tmp/<project>/chats`` in the client's directory."""
        from ultramon.hosts.gemini.configuration import home_directory
        from ultramon.hosts.transcript_files import files_below

        for path in files_below(os.path.join(home_directory(environ), "tmp"), ".jsonl", on_error):
            if _FOLDER_MARK in path:
                yield path

    def resume_words(self, session_id: str) -> tuple[str, ...]:
        """Return the command that resumes a session."""
        return "gemini", "--resume", session_id

    def plan_installation(self, request: SetupRequest) -> Plan:
        """Plan hooks in the client's ``settings.json``."""
        from ultramon.hosts.gemini.setup import plan_installation

        return plan_installation(request)

    def plan_removal(self, request: SetupRequest) -> Plan:
        """Plan to take them out again."""
        from ultramon.hosts.gemini.setup import plan_removal

        return plan_removal(request)

    def examine(self, context: DoctorContext) -> Iterable[Finding]:
        """Answer the questions about the hooks and about sessions that never called one."""
        from ultramon.hosts.gemini.doctor import examine

        return examine(self, context)


GEMINI = Gemini()


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
        from ultramon.hosts.listed_plan import read_report

        event.tasks = read_report(payload, "todos", "description", event.subagent_id)


def _read_request(event: HookEvent) -> None:
    """Tell whose tools have all run; a request that follows no tools is nobody's event.

    While a session waits for its tools, a subagent of it is who asks the model.
    """
    event.can_answer, event.can_end = False, True
    path = event.transcript_path
    last = {} if path is None else last_reading.last_message(path)
    if transcript.holds_results(last):
        return
    event.kind = port.NUDGED if transcript.is_nudge(last.get("content")) else ""
    if path is not None and transcript.waits_for_tools(last):
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
