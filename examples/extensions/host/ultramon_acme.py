"""ultramon for Acme, a client that exists in this example only.

Acme calls a hook with its own words, shows the agent what the hook answers under ``say``, and
writes one JSON line per reply.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from ultramon.hosts.jsonl import read_lines
from ultramon.hosts.port import PROMPT, SESSION_ENDED, SESSION_STARTED, TOOL_ENDED, HookEvent, Host
from ultramon.hosts.records import Report, Window
from ultramon.hosts.setup import FilePlan, chosen_choices
from ultramon.system.findings import OK, WARNING, Finding
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ultramon.hosts.doctor import DoctorContext
    from ultramon.hosts.records import Record
    from ultramon.hosts.setup import SetupRequest

KINDS = {"open": SESSION_STARTED, "ask": PROMPT, "tool-done": TOOL_ENDED, "close": SESSION_ENDED}


class Acme(Host):
    name = "acme"

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

    def looks_like_transcript(self, head: bytes) -> bool:
        return head.startswith(b'{"acme"')

    def read_transcript(self, lines: Iterable[bytes]) -> Iterator[Record]:
        return read_lines(lines, facts, lambda line: b'"input"' not in line)

    def plan_installation(self, request: SetupRequest) -> FilePlan:
        hooks = {"hooks": {name: "ultramon hook acme" for name in KINDS}}
        return FilePlan(
            file=hooks_file(request.cwd),
            after=json.dumps(hooks, indent=2).encode() + b"\n",
            host=self.name,
            state_directory=request.state_directory,
            installed=chosen_choices(self.name, request.state_directory, request.choices),
        )

    def plan_removal(self, request: SetupRequest) -> FilePlan:
        return FilePlan(
            file=hooks_file(request.cwd),
            after=None,
            host=self.name,
            state_directory=request.state_directory,
        )

    def examine(self, context: DoctorContext) -> Iterable[Finding]:
        path = hooks_file(context.cwd)
        if os.path.exists(path):
            yield Finding("acme", OK, f"{path}: hooks of ultramon")
        else:
            yield Finding("acme", WARNING, "no hooks in this project", "ultramon install acme")


def hooks_file(folder: str) -> str:
    return os.path.join(folder, "acme-hooks.json")


def facts(entry: dict[str, Any]) -> tuple[Window, Report]:
    at = parse_time(entry["at"])
    report = Report(
        message_id=None,
        model=entry["model"],
        requested_model=None,
        input_tokens=entry["input"],
        cache_read_tokens=0,
        cache_creation_tokens=0,
        output_tokens=entry["output"],
        at=at,
    )
    return (Window(entry["window"], at), report)


ACME = Acme()
