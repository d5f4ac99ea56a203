"""OpenAI's Codex as a host: so far its transcripts can be read."""

from __future__ import annotations

from ultramon.hosts.codex import transcript
from ultramon.hosts.port import Host


class Codex(Host):
    """Codex, learnt from version 0.169.0."""

    name = "codex"

    looks_like_transcript = staticmethod(transcript.looks_like_transcript)
    identify = staticmethod(transcript.identify)
    read_transcript = staticmethod(transcript.read_transcript)


CODEX = Codex()
