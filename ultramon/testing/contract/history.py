"""Conformance of backends: the readings of an agent over time."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from ultramon.errors import FencedError
from ultramon.state.history import HISTORY_POINTS, HistoryPoint
from ultramon.testing.clock import START
from ultramon.testing.contract.states import prune, start, write
from ultramon.testing.samples import make_record

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.state.record import StateRecord
    from ultramon.testing.contract.store import Reopen

MINUTE = 60.0


def _read(backend: Backend, before: StateRecord, number: int, epoch: int = 1) -> StateRecord:
    at = START + number * MINUTE
    return write(
        backend,
        before,
        measured_at=at,
        estimated_tokens=1_000 * number,
        tokens_source="reported",
        epoch=epoch,
    )


def _point(number: int, epoch: int = 1) -> HistoryPoint:
    return HistoryPoint(START + number * MINUTE, 1_000 * number, "reported", epoch)


class HistoryContract:
    """Which readings are kept beside a state."""

    def test_each_new_reading_is_a_point(self, backend: Backend) -> None:
        """A save with a new reading adds it, a save without one adds nothing; also at a start."""
        record = start(backend, measured_at=START, estimated_tokens=0, tokens_source="reported")
        for number in (1, 2):
            record = _read(backend, record, number)
            record = _read(backend, record, number)
        _read(backend, record, 0, epoch=2)
        assert backend.history("scout-1") == [_point(0), _point(1), _point(2), _point(0, epoch=2)]

    def test_what_was_not_read_is_no_point(self, backend: Backend) -> None:
        """Neither a state without a reading nor a share without tokens is a point."""
        record = start(backend)
        assert backend.history("scout-1") == []
        write(backend, record, measured_at=START, context_limit=None, usage_ratio=0.5)
        assert backend.history("scout-1") == []
        assert backend.history("nobody") == backend.history("../scout-1") == []

    def test_every_epoch_stays_visible(self, backend: Backend) -> None:
        """Of hundreds of readings at most 64 stay, oldest first, with the ends of each epoch."""
        record = start(backend)
        for number in range(150):
            record = _read(backend, record, number, epoch=1 + number // 50)
        points = backend.history("scout-1")
        assert points == sorted(points)
        assert HISTORY_POINTS // 2 < len(points) <= HISTORY_POINTS
        ends = [_point(number, 1 + number // 50) for number in (0, 49, 50, 99, 100, 149)]
        assert [point for point in points if point in ends] == ends
        gaps = [later.at - point.at for point, later in itertools.pairwise(points)]
        assert max(gaps) <= 12 * MINUTE

    def test_a_fenced_writer_adds_nothing(self, backend: Backend) -> None:
        """The next owner continues the history, and the former one adds nothing to it."""
        former = _read(backend, start(backend), 1)
        record = start(backend, takeover=True)
        late = make_record("scout-1", former.generation, seq=9, measured_at=START)
        with pytest.raises(FencedError):
            backend.record(late, [], durable=False)
        _read(backend, record, 2)
        assert backend.history("scout-1") == [_point(1), _point(2)]

    def test_pruning_takes_the_history(self, backend: Backend) -> None:
        """An agent that gets the id of a pruned one begins a history of its own."""
        record = _read(backend, start(backend), 1)
        write(backend, record, active=False, outcome="completed")
        assert prune(backend, START + 1) == ["scout-1"]
        assert backend.history("scout-1") == []
        _read(backend, start(backend), 2)
        assert backend.history("scout-1") == [_point(2)]

    def test_another_process_reads_the_same(self, backend: Backend, reopen: Reopen) -> None:
        """A durable store gives the history to every process."""
        if reopen is None:
            pytest.skip("this store ends with its process")
        _read(backend, _read(backend, start(backend), 1), 2)
        assert reopen(backend).history("scout-1") == [_point(1), _point(2)]
