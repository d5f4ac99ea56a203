"""OpenAI's Codex as a host: what its payloads, its environment and its answers mean.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

from ultramon.hosts import port
from ultramon.hosts.claude_dialect import KINDS, event_of, write_context
from ultramon.hosts.codex import NAME, last_reading, transcript
from ultramon.hosts.payload import checked_text, text_in
from ultramon.hosts.port import HookEvent, Host
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

_KINDS = {**KINDS, "SessionEnd": port.SESSION_ENDED}
_PLAIN_TYPE = "default"
"""Of a subagent without a role, which names nothing."""
_HOME_VARIABLE = "CODEX_HOME"


class Codex(Host):
    """Codex, learnt from version 0.169.0."""

    name = NAME
    own_options = ("resident",)

    def read_event(
        self, payload: dict[str, Any], environ: Mapping[str, str], tail: bytes = b""
    ) -> HookEvent:
        """Translate a payload; see `Host.read_event`."""
        event = event_of(payload, _KINDS, tail)
        event.subagent_type = event.subagent_type.removeprefix(_PLAIN_TYPE)
        if event.kind == port.PROMPT:
            event.prompt = text_in(payload, "prompt")
        elif event.kind == port.SUBAGENT_ENDED:
            # The client names the parent's rollout with this event, and with no other one.
            event.transcript_path = checked_text(payload, "agent_transcript_path")
        elif event.kind == port.WAITING:
            _read_stop(event)
        elif event.kind == port.SESSION_ENDED:
            event.error = _last_error(event.transcript_path)
        elif event.kind == port.TOOL_ENDED and payload.get("tool_name") == "update_plan":
            from ultramon.hosts.listed_plan import read_report

            event.tasks = read_report(payload, "plan", "step", event.subagent_id)
        return event

    def write_answer(self, event: HookEvent, text: str) -> bytes:
        """Return what to print; nothing before a compaction: its instructions are the client's."""
        return b"" if event.kind == port.COMPACTING else write_context(event, text)

    def process_id(self, environ: Mapping[str, str]) -> int | None:
        """Return the process that called the hook."""
        return calling_process(environ)

    def environment_variables(self) -> tuple[str, ...]:
        """Return the variable that moves the client's directory."""
        return (_HOME_VARIABLE,)

    def compaction_limits(
        self,
        environ: Mapping[str, str],
        project: str | None,
        model: str | None,
        window_tokens: int | None,
    ) -> tuple[int | None, int | None]:
        """Return where the client compacts, if its configuration says so."""
        from ultramon.hosts.codex.configuration import compaction_tokens

        return compaction_tokens(environ), None

    def transcript_path(
        self, event: HookEvent, subagent_id: str | None, session_id: str
    ) -> str | None:
        """Return a rollout: each event names that of its own agent."""
        path = event.transcript_path
        if path is None or subagent_id in (None, event.subagent_id):
            return path
        from ultramon.hosts.codex.rollouts import find_rollout

        return find_rollout(path, str(subagent_id))

    def read_session_end(self, path: str, environ: Mapping[str, str]) -> SessionEnd | None:
        """Return what the last turn failed with; one that ends well ends a session by its hook."""
        reading = last_reading.read_last_reading(path, is_subagent=False)
        if reading.error is None or reading.stopped_at is None:
            return None
        from ultramon.hosts.records import SessionEnd

        return SessionEnd(reading.stopped_at, reading.error)

    read_last_reading = staticmethod(last_reading.read_last_reading)
    read_last_replies = staticmethod(last_reading.read_last_replies)
    looks_like_transcript = staticmethod(transcript.looks_like_transcript)
    identify = staticmethod(transcript.identify)
    read_transcript = staticmethod(transcript.read_transcript)

    def open_reader(self, memory: dict[str, Any] | None = None) -> TranscriptReader:
        """Return a reader of one rollout."""
        return transcript.LineReader(memory)

    def transcript_files(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None = None
    ) -> Iterator[str]:
        """Yield the files of sessions, archived ones too, in ``CODEX_HOME``, else ``~/.codex``."""
        from ultramon.hosts.codex.configuration import home_directory
        from ultramon.hosts.transcript_files import files_below

        for folder in ("sessions", "archived_sessions"):
            path = os.path.join(home_directory(environ), folder)
            yield from files_below(path, ".jsonl", on_error)

    def resume_words(self, session_id: str) -> tuple[str, ...]:
        """Return the command that resumes a session."""
        return "codex", "resume", session_id

    def plan_installation(self, request: SetupRequest) -> Plan:
        """Plan hooks in the client's ``hooks.json``."""
        from ultramon.hosts.codex.setup import plan_installation

        return plan_installation(request)

    def plan_removal(self, request: SetupRequest) -> Plan:
        """Plan to take them out again."""
        from ultramon.hosts.codex.setup import plan_removal

        return plan_removal(request)

    def examine(self, context: DoctorContext) -> Iterable[Finding]:
        """Answer the questions about the hooks and about sessions that never called one."""
        from ultramon.hosts.codex.doctor import examine

        return examine(self, context)


CODEX = Codex()


def _read_stop(event: HookEvent) -> None:
    """Tell the end of a turn, after which a person goes on, from that of ``codex exec``."""
    event.error = ""
    is_main = event.subagent_id is None and event.transcript_path is not None
    if is_main and last_reading.is_last_turn(str(event.transcript_path)):
        # Its SessionEnd follows, where the client has that event and its hook is trusted.
        event.kind, event.reason = port.SESSION_ENDED, "turn completed"


def _last_error(path: str | None) -> str | None:
    """Return what the last turn of a session failed with, or None."""
    if path is None:
        return None
    try:
        return last_reading.read_last_reading(path, is_subagent=False).error
    except (OSError, ValueError):
        return None  # the handling of the event says why
