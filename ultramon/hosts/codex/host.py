"""OpenAI's Codex as a host: so far its transcripts can be read."""

from __future__ import annotations

from ultramon.hosts.codex import transcript
from ultramon.hosts.port import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ultramon.hosts.records import Record, TranscriptIdentity


class Codex(Host):
    """Codex, learnt from version 0.169.0."""

    name = "codex"

    def looks_like_transcript(self, head: bytes) -> bool:
        """Recognise a rollout."""
        return transcript.looks_like_transcript(head)

    def identify(self, lines: Iterable[bytes]) -> TranscriptIdentity | None:
        """Return whose rollout it is."""
        return transcript.identify(lines)

    def read_transcript(self, lines: Iterable[bytes]) -> Iterator[Record]:
        """Yield the facts of a rollout."""
        return transcript.read_transcript(lines)


CODEX = Codex()
