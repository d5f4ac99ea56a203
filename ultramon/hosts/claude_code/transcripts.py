"""The transcripts of Claude Code: where they are, and what they say.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

import os

from ultramon.hosts.claude_code import last_reading, reader
from ultramon.hosts.port import Transcripts
from ultramon.hosts.transcripts.tail import last_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from ultramon.hosts.port import HookEvent
    from ultramon.hosts.transcripts.jsonl import TranscriptReader


class ClaudeCodeTranscripts(Transcripts):
    """Files as version 2.1.330 writes them."""

    names_skills = True

    def transcript_path(
        self, event: HookEvent, subagent_id: str | None, session_id: str
    ) -> str | None:
        """Return a transcript: those of subagents lie in a folder beside that of the session."""
        path = event.transcript_path
        if path is None or subagent_id is None:
            return path
        folder = path.removesuffix(".jsonl")
        if session_id != event.session_id:
            folder = os.path.join(os.path.dirname(path), session_id)
        return os.path.join(folder, "subagents", f"agent-{subagent_id}.jsonl")

    def subagent_transcripts(self, path: str) -> Iterator[str]:
        """Yield the transcripts in the folder that is named after the session's."""
        from ultramon.hosts.transcripts.files import files_below

        return files_below(os.path.join(os.path.splitext(path)[0], "subagents"), ".jsonl")

    read_last_reading = staticmethod(last_reading.read_last_reading)
    read_last_replies = staticmethod(last_reading.read_last_replies)
    read_token_budget = staticmethod(last_reading.read_token_budget)
    client_version = staticmethod(last_version)
    looks_like_transcript = staticmethod(reader.looks_like_transcript)
    identify = staticmethod(reader.identify)
    read_transcript = staticmethod(reader.read_transcript)

    def open_reader(self, memory: dict[str, Any] | None = None) -> TranscriptReader:
        """Return a reader whose first line says whether it is a subagent's own file."""
        return reader.LineReader(None, memory)

    def transcript_files(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None = None
    ) -> Iterator[str]:
        """Yield the files of ``projects`` in ``CLAUDE_CONFIG_DIR``.

        Without it, of those in ``~/.claude`` and in ``~/.config/claude``, where versions of the
        summer of 2025 wrote them.
        """
        from ultramon.hosts.transcripts.files import transcripts_below

        named = environ.get("CLAUDE_CONFIG_DIR")
        config = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        folders = [named] if named else [os.path.expanduser("~/.claude"), f"{config}/claude"]
        seen: set[str] = set()
        for folder in folders:
            place = os.path.join(folder, "projects")
            if (real := os.path.realpath(place)) not in seen:
                seen.add(real)
                yield from transcripts_below(place, on_error)


TRANSCRIPTS = ClaudeCodeTranscripts()
