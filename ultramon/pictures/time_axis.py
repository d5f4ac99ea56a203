"""Where readings lie on an axis of time."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ultramon.state.history import HistoryPoint


class TimeAxis:
    """The times of readings, each lasting until the next one.

    A clock that was set back moves nothing to the left: readings keep their order.

    Args:
        points: Oldest first, at least one.
        until: The end, Unix time, if it lies behind the last reading; None = that reading.

    Attributes:
        times: Of the readings, never falling.
        epoch_starts: Numbers of the readings with which another epoch begins.
    """

    def __init__(self, points: Sequence[HistoryPoint], until: float | None = None) -> None:
        self._points = points
        # A clock that was set back must not draw the curve backwards.
        self.times = list(accumulate((point.at for point in points), max))
        self._begin = self.times[0]
        self._seconds = max(self.times[-1], until or 0.0) - self._begin
        self.epoch_starts = [
            number
            for number in range(1, len(points))
            if points[number].epoch != points[number - 1].epoch
        ]

    def place(self, at: float, width: float) -> float:
        """Return where a time lies on an axis so wide; one before or behind it at its end."""
        if not self._seconds:
            return 0.0
        return min(max((at - self._begin) / self._seconds, 0.0), 1.0) * width

    def spans(self, width: float) -> Iterator[tuple[float, float, int]]:
        """Yield of each reading its left and right end on an axis so wide, and its tokens."""
        places = [self.place(at, width) for at in self.times]
        ends = [*places[1:], float(width)]
        for place, end, point in zip(places, ends, self._points, strict=True):
            yield place, end, point.used_tokens
