"""What fills an agent's window now: as the agent counted it, else by its transcript."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.context.tracker import REPLY
from ultramon.errors import ConfigurationError
from ultramon.recordings.index import TranscriptIndex, index_path
from ultramon.recordings.transcript_summary import FilledWindow

if TYPE_CHECKING:
    from ultramon.state.record import StateRecord

NOT_KNOWN = FilledWindow({}, {}, {})
_MAX_TRANSCRIPT_BYTES = 64 << 20
"""A person waits for it."""


def present_window(record: StateRecord, transcript_path: str | None) -> FilledWindow:
    """Return what fills the window, nothing where nothing is known.

    What was read of a transcript is kept, as a report keeps it: of one that has grown only the new
    lines are read.

    Args:
        record: The agent's state.
        transcript_path: On this machine, or None.

    Raises:
        OSError: The transcript cannot be read.
        ValueError: It is no transcript.
    """
    if record.by_source:
        replies = record.by_source.get(REPLY)
        measured = {} if replies is None else {REPLY: float(replies)}
        return FilledWindow(record.by_source, measured, {})
    if transcript_path is None:
        return NOT_KNOWN
    try:
        place: str | None = index_path()
    except ConfigurationError:
        # Without a home directory there is no index, and the whole transcript is read.
        place = None
    with TranscriptIndex(place, of_few=True) as index:
        return index.present_window(transcript_path, _MAX_TRANSCRIPT_BYTES) or NOT_KNOWN
