"""What Acme's hook calls say, and how they are answered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ultramon.hosts import port
from ultramon.hosts.calls.session_environment import calling_process
from ultramon.hosts.port import Dialect, HookEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = {
    "open": port.SESSION_STARTED,
    "ask": port.PROMPT,
    "tool-done": port.TOOL_ENDED,
    "worker-open": port.SUBAGENT_STARTED,
    "worker-close": port.SUBAGENT_ENDED,
    "shrunk": port.COMPACTED,
    "close": port.SESSION_ENDED,
}


class AcmeDialect(Dialect):
    def read_event(
        self, payload: dict[str, Any], environ: Mapping[str, str], tail: bytes = b""
    ) -> HookEvent:
        name = payload.get("event", "")
        session_id, worker = payload.get("conversation", ""), payload.get("worker")
        event = HookEvent(KINDS.get(name, ""), name, session_id, worker)
        event.transcript_path = payload.get("log")
        event.cwd = payload.get("folder")
        event.prompt = payload.get("text", "")
        event.can_answer = name == "tool-done"
        return event

    def write_answer(self, event: HookEvent, text: str) -> bytes:
        return json.dumps({"say": text}).encode()

    def process_id(self, environ: Mapping[str, str]) -> int | None:
        return calling_process(environ)


DIALECT = AcmeDialect()
