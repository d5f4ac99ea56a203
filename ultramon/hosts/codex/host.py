"""OpenAI's Codex as a host: so far its transcripts can be read."""

from __future__ import annotations

import os

from ultramon.hosts.codex import transcript
from ultramon.hosts.port import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from ultramon.hosts.jsonl import TranscriptReader


class Codex(Host):
    """Codex, learnt from version 0.169.0."""

    name = "codex"

    looks_like_transcript = staticmethod(transcript.looks_like_transcript)
    identify = staticmethod(transcript.identify)
    read_transcript = staticmethod(transcript.read_transcript)

    def open_reader(self, memory: dict[str, Any] | None = None) -> TranscriptReader:
        """Return a reader of one rollout."""
        return transcript.LineReader(memory)

    def transcript_files(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None = None
    ) -> Iterator[str]:
        """Yield the files of ``sessions`` in ``CODEX_HOME``, else in ``~/.codex``."""
        from ultramon.hosts.transcript_files import files_below

        folder = environ.get("CODEX_HOME") or os.path.expanduser("~/.codex")
        return files_below(os.path.join(folder, "sessions"), ".jsonl", on_error)


CODEX = Codex()
