"""What Acme writes down about a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.hosts.port import HookEvent, Transcripts
from ultramon.hosts.transcripts.jsonl import read_lines
from ultramon.hosts.transcripts.records import Record, Report, Window
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class AcmeTranscripts(Transcripts):
    def transcript_path(
        self, event: HookEvent, subagent_id: str | None, session_id: str
    ) -> str | None:
        path = event.transcript_path
        return path if path is None or subagent_id is None else f"{path}.{subagent_id}"

    def looks_like_transcript(self, head: bytes) -> bool:
        return head.startswith(b'{"acme"')

    def read_transcript(self, lines: Iterable[bytes]) -> Iterator[Record]:
        return read_lines(lines, facts, lambda line: b'"input"' not in line)


def facts(entry: dict[str, Any]) -> tuple[Window, Report]:
    at = parse_time(entry["at"])
    report = Report(None, entry["model"], None, entry["input"], 0, 0, entry["output"], at)
    return (Window(entry["window"], at), report)


TRANSCRIPTS = AcmeTranscripts()
