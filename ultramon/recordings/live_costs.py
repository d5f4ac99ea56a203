"""What agents at work have cost so far: their transcripts are read once, then what is added."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

from ultramon.hosts.registry import host_of_agent
from ultramon.hosts.transcripts.jsonl import open_transcript, read_lines, whole_lines
from ultramon.prices.cost import Cost
from ultramon.recordings.bills import Biller
from ultramon.recordings.summary import Summarizer
from ultramon.recordings.transcript_summary import TranscriptSummary
from ultramon.system.processes import this_machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

    from ultramon.hosts.port import Host
    from ultramon.hosts.transcripts.jsonl import TranscriptReader
    from ultramon.prices.price_list import PriceList
    from ultramon.state.record import StateRecord

BYTES_PER_LOOK = 8 << 20
"""Of all transcripts together, about 0.1 s; what is left is read at the next look."""
MOST_FOLLOWED = 300
"""Transcripts that are kept in mind, or as many as the largest look asked for, where those are
more; the one that was looked at longest ago goes first."""


class LiveCosts:
    """Costs by agent; safe to use from several threads.

    A conversation that began as a copy of another one costs what both did: which replies it has
    copied shows only beside the other.

    Args:
        prices: The prices.
    """

    def __init__(self, prices: PriceList) -> None:
        self._biller = Biller(prices)
        self._hostname = this_machine().hostname
        self._lock = threading.Lock()
        self._most_asked = 0
        self._followed: OrderedDict[str, _Followed] = OrderedDict()

    def of_agents(self, records: Iterable[StateRecord]) -> dict[str, Cost]:
        """Return what agents cost, by id.

        Agents of other machines, those whose host writes no transcript, and those whose transcript
        is not read to its end yet are left out.

        Args:
            records: Whole states.
        """
        with self._lock:
            left, found, asked = BYTES_PER_LOOK, {}, list(records)
            for record in asked:
                if record.host is None or record.hostname != self._hostname:
                    continue
                host, memory = host_of_agent(record)
                path = memory.transcript_path
                if host is None or path is None:
                    continue
                followed = self._follow(host, path, record)
                if followed is None:
                    continue
                left -= followed.read(left, self._biller)
                if followed.cost is not None and not followed.is_behind:
                    found[record.agent_id] = followed.cost
            # Not before: the next look would read the same again, and never come to the rest.
            # A page about one agent must not forget what the one about all has read.
            self._most_asked = max(self._most_asked, len(asked))
            while len(self._followed) > max(MOST_FOLLOWED, self._most_asked):
                self._followed.popitem(last=False)
            return found

    def _follow(self, host: Host, path: str, record: StateRecord) -> _Followed | None:
        followed = self._followed.get(path)
        if followed is None:
            reader = host.transcripts.open_reader()
            if reader is None:
                return None
            summary = TranscriptSummary(host.name, record.session_id or "", model=record.model)
            followed = self._followed[path] = _Followed(path, reader, summary)
        self._followed.move_to_end(path)
        if followed.is_another():
            del self._followed[path]
            return self._follow(host, path, record)
        return followed


class _Stamp(NamedTuple):
    inode: int
    size: int


class _Followed:
    """One transcript, as far as it was read.

    Attributes:
        cost: Of what was read; None = nothing was.
        is_behind: Whether there is more to read.
    """

    def __init__(self, path: str, reader: TranscriptReader, summary: TranscriptSummary) -> None:
        self.cost: Cost | None = None
        self.is_behind = True
        self._path = path
        self._reader = reader
        self._summary = summary
        self._summarizer = Summarizer(summary)
        self._offset = 0
        self._stamp: _Stamp | None = None
        self._now: _Stamp | None = None

    def is_another(self) -> bool:
        """Return whether the file is not the one that was read so far, grown."""
        try:
            found = os.stat(self._path)
        except (OSError, ValueError):
            # What a file cost that is gone stays known.
            self._now = None
            return False
        self._now = _Stamp(found.st_ino, found.st_size)
        before = self._stamp
        return before is not None and (
            before.inode != self._now.inode or self._now.size < before.size
        )

    def read(self, most_bytes: int, biller: Biller) -> int:
        """Read what was added, so many bytes at most and a line more; return how many it were."""
        if self._now is None or self._now == self._stamp or most_bytes <= 0:
            self.is_behind = self.is_behind and self._now != self._stamp
            return 0
        try:
            fd, _ = open_transcript(self._path)
            with open(fd, "rb") as stream:
                stream.seek(self._offset)
                lines = _lines_within(stream, self._offset + most_bytes)
                for record in read_lines(lines, self._reader.read, self._reader.is_ignorable):
                    self._summarizer.feed(record)
                count, self._offset = stream.tell() - self._offset, stream.tell()
        except (OSError, ValueError):
            return 0
        self.is_behind = count >= most_bytes
        if not self.is_behind:
            self._stamp = self._now
        # The last reply waits for corrections; what it cost so far is shown.
        known = TranscriptSummary(self._summary.host, "", usage=deepcopy(self._summary.usage))
        ended = Summarizer(known, deepcopy(self._summarizer.memory()))
        for record in self._reader.held:
            ended.feed(record)
        self.cost = biller.bill(ended.finish().usage, self._summary.model, {}, {}).cost
        return count


def _lines_within(stream: BinaryIO, end: int) -> Iterator[bytes]:
    for line in whole_lines(stream):
        yield line
        if stream.tell() >= end:
            return
