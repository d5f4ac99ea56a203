"""What Acme's hook calls say, and how they are answered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ultramon.hosts.port import (
    PROMPT,
    SESSION_ENDED,
    SESSION_STARTED,
    TOOL_ENDED,
    Dialect,
    HookEvent,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = {"open": SESSION_STARTED, "ask": PROMPT, "tool-done": TOOL_ENDED, "close": SESSION_ENDED}


class AcmeDialect(Dialect):
    def read_event(
        self, payload: dict[str, Any], environ: Mapping[str, str], tail: bytes = b""
    ) -> HookEvent:
        name = payload.get("event", "")
        event = HookEvent(KINDS.get(name, ""), name, payload.get("conversation", ""))
        event.transcript_path = payload.get("log")
        event.cwd = payload.get("folder")
        event.prompt = payload.get("text", "")
        event.can_answer = name == "tool-done"
        return event

    def write_answer(self, event: HookEvent, text: str) -> bytes:
        return json.dumps({"say": text}).encode()


DIALECT = AcmeDialect()
