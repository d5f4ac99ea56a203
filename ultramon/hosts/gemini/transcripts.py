"""The transcripts of Gemini CLI: where they are, and what they say.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

import os

from ultramon.hosts.gemini import last_reading, reader
from ultramon.hosts.port import Transcripts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from ultramon.hosts.port import HookEvent
    from ultramon.hosts.transcripts.jsonl import TranscriptReader
    from ultramon.hosts.transcripts.records import SessionEnd, TranscriptIdentity

_FOLDER_MARK = f"{os.sep}chats{os.sep}"


class GeminiTranscripts(Transcripts):
    """Files as version 0.61.0 writes them."""

    def transcript_path(
        self, event: HookEvent, subagent_id: str | None, session_id: str
    ) -> str | None:
        """Return a session file: those of subagents lie in a folder with the session's id."""
        path = event.transcript_path
        if path is None or subagent_id is None:
            return path
        from ultramon.hosts.gemini.subagent_files import SUFFIX, folder_of

        return os.path.join(folder_of(path, session_id), f"{subagent_id}{SUFFIX}")

    def read_session_end(self, path: str, environ: Mapping[str, str]) -> SessionEnd | None:
        """Return what the last request failed with, as the host's report of it says."""
        from ultramon.hosts.gemini.session_end import read_session_end

        return read_session_end(path, environ)

    read_last_reading = staticmethod(last_reading.read_last_reading)
    read_last_replies = staticmethod(last_reading.read_last_replies)
    looks_like_transcript = staticmethod(reader.looks_like_transcript)
    identify = staticmethod(reader.identify)

    def identify_file(self, path: str, lines: Iterable[bytes]) -> TranscriptIdentity | None:
        """Return whose session file it is; the folder of a subagent's names its session."""
        folder, _ = os.path.split(os.path.abspath(path))
        session_id = os.path.basename(folder) if _FOLDER_MARK in folder else None
        return reader.identify(lines, session_id)

    def subagent_transcripts(self, path: str) -> Iterator[str]:
        """Yield the session files of a session's subagents."""
        from ultramon.hosts.gemini.subagent_files import SUFFIX, folder_of
        from ultramon.hosts.transcripts.files import files_below
        from ultramon.hosts.transcripts.jsonl import bounded_lines
        from ultramon.system.ids import is_agent_id

        with open(path, "rb") as stream:
            identity = reader.identify(bounded_lines(stream))
        # A recording may come from anywhere: its id must not lead to another folder.
        if identity is not None and is_agent_id(identity.session_id):
            yield from files_below(folder_of(path, identity.session_id), SUFFIX)

    def open_reader(self, memory: dict[str, Any] | None = None) -> TranscriptReader:
        """Return a reader of one session file."""
        return reader.LineReader(memory)

    def transcript_files(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None = None
    ) -> Iterator[str]:
        """Yield the files of ``tmp/<project>/chats`` in the host's directory.

        Those of older versions too, one JSON object each, which are not read but counted.
        """
        from ultramon.hosts.gemini.configuration import home_directory
        from ultramon.hosts.transcripts.files import transcripts_below

        folder = os.path.join(home_directory(environ), "tmp")
        for path in transcripts_below(folder, on_error):
            if _FOLDER_MARK in path:
                yield path
        for path in transcripts_below(folder, suffix=".json"):
            if _FOLDER_MARK in path and os.path.basename(path).startswith("session-"):
                yield path


TRANSCRIPTS = GeminiTranscripts()
