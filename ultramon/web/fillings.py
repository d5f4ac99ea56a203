"""The sources of the tokens in a window: as the agent counted them, else from its transcript."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from ultramon.recordings.present_window import present_window
from ultramon.recordings.stored import Stamp, stamp_of
from ultramon.web.pages.agent import Filling

if TYPE_CHECKING:
    from ultramon.state.record import StateRecord

_OWN = "Counted by the agent since the last compaction; estimated."
_READ = (
    "From the transcript, since the last compaction. Measured is what the provider counted, not "
    "recorded what it counted and no text explains."
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
            return Filling(present_window(record, None), _OWN)
        # The path is of that machine; here it may be another file.
        if not isinstance(transcript_path, str) or record.hostname != self._hostname:
            return None
        try:
            # A page is drawn each second, and a transcript may take seconds to read.
            stamp = stamp_of(transcript_path)
            with self._lock:
                known = self._kept.get(transcript_path)
                if known is None or known[0] != stamp:
                    window = present_window(record, transcript_path)
                    filling = Filling(window, _READ) if window.by_source else None
                    known = self._kept[transcript_path] = stamp, filling
                    if len(self._kept) > _MOST_KEPT:
                        del self._kept[next(iter(self._kept))]
                return known[1]
        except (OSError, ValueError):
            return None
