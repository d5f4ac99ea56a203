"""The sources of the tokens in a window: as the agent counted them, else from its transcript."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError
from ultramon.recordings.index import Summarized, TranscriptIndex, index_path
from ultramon.recordings.stored import Stamp, stamp_of
from ultramon.web.pages.agent import Filling

if TYPE_CHECKING:
    from ultramon.state.record import StateRecord

_OWN = "Counted by the agent since the last compaction; estimated."
_READ = (
    "Estimated from the transcript, over all epochs. Not recorded is what the provider counted and "
    "no text explains."
)
_MOST_KEPT = 100


class FillingReader:
    """Reads transcripts of this machine; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[Stamp | None, Filling | None]] = {}
        self._hostname = socket.gethostname()

    def of(self, record: StateRecord, transcript_path: object) -> Filling | None:
        """Return what filled an agent's window; None where nothing is known.

        Args:
            record: The agent's state.
            transcript_path: Of its transcript, as its host keeps it; None = there is none.
        """
        if record.by_source:
            return Filling(record.by_source, {}, _OWN)
        # The path is of that machine; here it may be another file.
        if not isinstance(transcript_path, str) or record.hostname != self._hostname:
            return None
        try:
            # A page is drawn each second, and a transcript may take seconds to read.
            stamp = stamp_of(transcript_path, follow_links=True)
        except (OSError, ValueError):
            return None
        with self._lock:
            known = self._kept.get(transcript_path)
            if known is None or known[0] != stamp:
                known = self._kept[transcript_path] = stamp, _summarize(transcript_path)
                if len(self._kept) > _MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
            return known[1]


def _summarize(path: str) -> Filling | None:
    try:
        place: str | None = index_path()
    except ConfigurationError:
        # Without a home directory there is no index, and the whole transcript is read.
        place = None
    with TranscriptIndex(place) as index:
        for one in index.summarize([path]):
            if isinstance(one, Summarized):
                summary = one.summary
                return Filling(summary.tokens_by_source, summary.tokens_by_file, _READ)
    return None
