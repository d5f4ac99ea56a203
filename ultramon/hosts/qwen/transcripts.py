"""The transcripts of Qwen Code: where they are, and what they say.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

import os

from ultramon.hosts.port import Transcripts
from ultramon.hosts.qwen import configuration, last_reading, reader
from ultramon.hosts.transcripts.tail import last_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from ultramon.hosts.port import HookEvent
    from ultramon.hosts.transcripts.jsonl import TranscriptReader
    from ultramon.hosts.transcripts.records import SessionEnd


class QwenCodeTranscripts(Transcripts):
    """Files as versions 0.15.10 and 0.24.4 write them."""

    def transcript_path(
        self, event: HookEvent, subagent_id: str | None, session_id: str
    ) -> str | None:
        """Return a file: those of subagents lie in a folder beside that of all sessions."""
        path = event.transcript_path
        if path is None or subagent_id is None:
            return path
        return os.path.join(_subagents_folder(path, session_id), f"agent-{subagent_id}.jsonl")

    def subagent_transcripts(self, path: str) -> Iterator[str]:
        """Yield the files of a session's subagents; only newer versions write them."""
        from ultramon.hosts.transcripts.files import files_below

        session_id, _ = os.path.splitext(os.path.basename(path))
        return files_below(_subagents_folder(os.path.abspath(path), session_id), ".jsonl")

    def read_session_end(self, path: str, environ: Mapping[str, str]) -> SessionEnd | None:
        """Return how a session ended, as its file and the host's record of exits say."""
        from ultramon.hosts.qwen.session_end import read_session_end

        return read_session_end(path, environ)

    read_last_reading = staticmethod(last_reading.read_last_reading)
    read_last_replies = staticmethod(last_reading.read_last_replies)
    client_version = staticmethod(last_version)
    looks_like_transcript = staticmethod(reader.looks_like_transcript)
    identify = staticmethod(reader.identify)

    def open_reader(self, memory: dict[str, Any] | None = None) -> TranscriptReader:
        """Return a reader of one file."""
        return reader.LineReader(memory)

    def transcript_files(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None = None
    ) -> Iterator[str]:
        """Yield the files of sessions and subagents in ``QWEN_RUNTIME_DIR``, else ``~/.qwen``."""
        from ultramon.hosts.transcripts.files import transcripts_below

        return transcripts_below(configuration.sessions_directory(environ), on_error)


TRANSCRIPTS = QwenCodeTranscripts()


def _subagents_folder(path: str, session_id: str) -> str:
    """Return where the subagents of a session have their files, by the path of its own."""
    return os.path.join(os.path.dirname(os.path.dirname(path)), "subagents", session_id)
