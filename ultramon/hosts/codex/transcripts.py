"""The transcripts of Codex: where they are, and what they say.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

import os

from ultramon.hosts.codex import last_reading, reader
from ultramon.hosts.port import Transcripts
from ultramon.system.ids import is_agent_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from ultramon.hosts.port import HookEvent
    from ultramon.hosts.transcripts.jsonl import TranscriptReader
    from ultramon.hosts.transcripts.records import SessionEnd, TranscriptIdentity


_THREAD_ID_CHARS = 36
"""A UUID at the end of a rollout's name."""


class CodexTranscripts(Transcripts):
    """Files as version 0.169.0 writes them."""

    def transcript_path(
        self, event: HookEvent, subagent_id: str | None, session_id: str
    ) -> str | None:
        """Return a rollout: each event names that of its own agent."""
        path = event.transcript_path
        if path is None or subagent_id in (None, event.subagent_id):
            return path
        from ultramon.hosts.codex.rollouts import find_rollout

        return find_rollout(path, str(subagent_id))

    def find_transcript(self, environ: Mapping[str, str], agent_id: str) -> str | None:
        """Return the rollout of a thread: the host may name none."""
        from ultramon.hosts.codex.rollouts import find_thread

        return find_thread(environ, agent_id)

    def read_session_end(self, path: str, environ: Mapping[str, str]) -> SessionEnd | None:
        """Return what the last turn failed with; one that ends well ends a session by its hook."""
        reading = last_reading.read_last_reading(path, is_subagent=False)
        if reading.error is None or reading.stopped_at is None:
            return None
        from ultramon.hosts.transcripts.records import SessionEnd

        return SessionEnd(reading.stopped_at, reading.error)

    read_last_reading = staticmethod(last_reading.read_last_reading)
    read_last_replies = staticmethod(last_reading.read_last_replies)
    client_version = staticmethod(last_reading.client_version)
    looks_like_transcript = staticmethod(reader.looks_like_transcript)
    identify = staticmethod(reader.identify)

    def identify_file(self, path: str, lines: Iterable[bytes]) -> TranscriptIdentity | None:
        """Return whose rollout it is; one that lost its first lines is named after its thread."""
        name, suffix = os.path.splitext(os.path.basename(path))
        is_rollout = name.startswith("rollout-") and suffix == ".jsonl"
        thread_id = name[-_THREAD_ID_CHARS:] if is_rollout else ""
        return reader.identify(lines, thread_id if is_agent_id(thread_id) else None)

    def open_reader(self, memory: dict[str, Any] | None = None) -> TranscriptReader:
        """Return a reader of one rollout."""
        return reader.LineReader(memory)

    def transcript_files(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None = None
    ) -> Iterator[str]:
        """Yield the files of sessions, archived ones too, in ``CODEX_HOME``, else ``~/.codex``."""
        from ultramon.hosts.codex.configuration import home_directory
        from ultramon.hosts.transcripts.files import transcripts_below

        for folder in ("sessions", "archived_sessions"):
            path = os.path.join(home_directory(environ), folder)
            yield from transcripts_below(path, on_error)


TRANSCRIPTS = CodexTranscripts()
