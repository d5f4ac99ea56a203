"""The event files of Copilot CLI: where they are, and what they say.

Standard library only: every hook call loads it. The transcript of a subagent is named
``<event file>/<its id>``.
"""

from __future__ import annotations

import os

from ultramon.hosts.copilot import configuration, event_file, last_reading, reader
from ultramon.hosts.port import Transcripts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from ultramon.hosts.port import HookEvent
    from ultramon.hosts.transcripts.jsonl import TranscriptReader
    from ultramon.hosts.transcripts.records import SessionEnd
    from ultramon.hosts.transcripts.stored import StoredTranscript


class CopilotTranscripts(Transcripts):
    """Files as version 1.0.102 writes them."""

    def transcript_path(
        self, event: HookEvent, subagent_id: str | None, session_id: str
    ) -> str | None:
        """Return the event file of a session, or the name of a subagent in it."""
        path = event.transcript_path
        return path if path is None or subagent_id is None else os.path.join(path, subagent_id)

    def read_session_end(self, path: str, environ: Mapping[str, str]) -> SessionEnd | None:
        """Return how a session ended, by the last events of its file."""
        return last_reading.read_session_end(path)

    read_last_reading = staticmethod(last_reading.read_last_reading)
    read_last_replies = staticmethod(last_reading.read_last_replies)
    new_requests = staticmethod(last_reading.read_new_requests)
    looks_like_transcript = staticmethod(reader.looks_like_transcript)
    identify = staticmethod(reader.identify)

    def transcripts_in(self, path: str) -> list[str] | None:
        """Return the session of an event file, and its subagents."""
        if not event_file.is_of_host(path):
            return None
        return [path, *(os.path.join(path, one) for one in event_file.subagent_ids(path))]

    def find_stored(self, path: str) -> StoredTranscript | None:
        """Return a subagent of an event file."""
        file, agent_id = event_file.split(path)
        if agent_id is None or not event_file.is_of_host(file):
            return None
        from ultramon.hosts.transcripts.stored import StoredTranscript

        found = os.stat(file)
        lines = event_file.subagent_lines(file, agent_id)
        return StoredTranscript(lines, found.st_size, found.st_mtime_ns // 1_000_000)

    def open_reader(self, memory: dict[str, Any] | None = None) -> TranscriptReader:
        """Return a reader of the events of one agent."""
        return reader.LineReader(memory)

    def transcript_files(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None = None
    ) -> Iterator[str]:
        """Yield the event files in the host's directory, and the subagents in each."""
        from ultramon.hosts.transcripts.files import transcripts_below

        folder = configuration.sessions_directory(environ)
        for path in transcripts_below(folder, on_error):
            if os.path.basename(path) != configuration.EVENTS_NAME:
                continue
            yield path
            try:
                names = event_file.subagent_ids(path)
            except (OSError, ValueError):
                continue  # reading the session itself says what is wrong
            for name in names:
                yield os.path.join(path, name)


TRANSCRIPTS = CopilotTranscripts()
