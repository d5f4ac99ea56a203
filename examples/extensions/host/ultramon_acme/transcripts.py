"""What Acme writes down about a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.hosts.port import Transcripts
from ultramon.hosts.transcripts.jsonl import read_lines
from ultramon.hosts.transcripts.records import Report, Window
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ultramon.hosts.transcripts.records import Record


class AcmeTranscripts(Transcripts):
    def looks_like_transcript(self, head: bytes) -> bool:
        return head.startswith(b'{"acme"')

    def read_transcript(self, lines: Iterable[bytes]) -> Iterator[Record]:
        return read_lines(lines, facts, lambda line: b'"input"' not in line)


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


TRANSCRIPTS = AcmeTranscripts()
