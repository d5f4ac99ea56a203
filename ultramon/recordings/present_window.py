"""What fills an agent's window now: as the agent counted it, else by its transcript."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.recordings.packed import open_recording
from ultramon.recordings.stored import stamp_of
from ultramon.recordings.summary import Summarizer
from ultramon.recordings.transcript_summary import TranscriptSummary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.hosts.port import Host
    from ultramon.state.record import StateRecord

_MAX_TRANSCRIPT_BYTES = 64 << 20
"""A person waits for it."""


def present_window(
    record: StateRecord, host: Host | None, transcript_path: str | None
) -> Mapping[str, float]:
    """Return estimated tokens by source, empty where nothing is known.

    Args:
        record: The agent's state.
        host: Its host; None = it has none here.
        transcript_path: On this machine, or None.

    Raises:
        OSError: The transcript cannot be read.
        ValueError: It is no transcript.
    """
    if record.by_source or host is None or transcript_path is None:
        return record.by_source or {}
    stamp = stamp_of(transcript_path, follow_links=True)
    if stamp is None or stamp[1] > _MAX_TRANSCRIPT_BYTES:
        return {}
    summary = TranscriptSummary(host=host.name, session_id=record.session_id, model=record.model)
    summarizer = Summarizer(summary)
    with open_recording(transcript_path) as file:
        for entry in host.transcripts.read_transcript(file):
            summarizer.feed(entry)
    return summarizer.present_window()
