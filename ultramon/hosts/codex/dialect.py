"""The dialect of OpenAI's Codex: what its payloads, its environment and its answers mean.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

from ultramon.hosts import port
from ultramon.hosts.calls.claude_dialect import KINDS, event_of, write_context
from ultramon.hosts.calls.payload import checked_text, text_in
from ultramon.hosts.calls.session_environment import calling_process
from ultramon.hosts.codex import last_reading
from ultramon.hosts.port import Dialect, HookEvent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


_KINDS = {**KINDS, "SessionEnd": port.SESSION_ENDED}
_PLAIN_TYPE = "default"
"""Of a subagent without a role, which names nothing."""
_HOME_VARIABLE = "CODEX_HOME"


class CodexDialect(Dialect):
    """Codex, learnt from version 0.169.0."""

    def read_event(
        self, payload: dict[str, Any], environ: Mapping[str, str], tail: bytes = b""
    ) -> HookEvent:
        """Translate a payload; see `Dialect.read_event`."""
        event = event_of(payload, _KINDS, tail)
        event.subagent_type = event.subagent_type.removeprefix(_PLAIN_TYPE)
        if event.kind == port.PROMPT:
            event.prompt = text_in(payload, "prompt")
        elif event.kind == port.SUBAGENT_ENDED:
            # The host names the parent's rollout with this event, and with no other one.
            event.transcript_path = checked_text(payload, "agent_transcript_path")
        elif event.kind == port.WAITING:
            _read_stop(event)
        elif event.kind == port.SESSION_ENDED:
            path = event.transcript_path
            event.error = _last_error(path)
            # On a terminal a person may have ended the turn before.
            event.may_cut_turn = path is not None and last_reading.is_last_turn(path)
        elif event.kind == port.TOOL_ENDED and payload.get("tool_name") == "update_plan":
            from ultramon.hosts.calls.listed_plan import read_report

            event.tasks = read_report(payload, "plan", "step", event.subagent_id)
        return event

    def write_answer(self, event: HookEvent, text: str) -> bytes:
        """Return what to print; nothing before a compaction: its instructions are the host's."""
        return b"" if event.kind == port.COMPACTING else write_context(event, text)

    def process_id(self, environ: Mapping[str, str]) -> int | None:
        """Return the process that called the hook."""
        return calling_process(environ)

    def environment_variables(self) -> tuple[str, ...]:
        """Return the variable that moves the host's directory."""
        return (_HOME_VARIABLE,)

    def account_directory(self, environ: Mapping[str, str]) -> str:
        """Return ``CODEX_HOME``, else ``~/.codex``."""
        from ultramon.hosts.codex.configuration import home_directory

        return home_directory(environ)

    def compaction_limits(
        self,
        environ: Mapping[str, str],
        project: str | None,
        model: str | None,
        window_tokens: int | None,
    ) -> tuple[int | None, int | None]:
        """Return where the host compacts, if its configuration says so."""
        from ultramon.hosts.codex.configuration import compaction_tokens

        return compaction_tokens(environ), None


DIALECT = CodexDialect()


def _read_stop(event: HookEvent) -> None:
    """Tell the end of a turn that a person continues from that of ``codex exec``."""
    event.error = ""
    is_main = event.subagent_id is None and event.transcript_path is not None
    if is_main and last_reading.is_last_turn(str(event.transcript_path)):
        # Its SessionEnd follows, where the host has that event and its hook is trusted.
        event.kind, event.reason = port.SESSION_ENDED, "turn completed"


def _last_error(path: str | None) -> str | None:
    """Return what the last turn of a session failed with, or None."""
    if path is None:
        return None
    try:
        return last_reading.read_last_reading(path, is_subagent=False).error
    except (OSError, ValueError):
        return None  # the handling of the event says why
