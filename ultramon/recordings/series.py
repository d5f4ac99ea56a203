"""A curve of bounded length."""

from __future__ import annotations

from typing import Any


class Series:
    """A curve of bounded length: when it is full, neighbours merge and the higher one stays.

    Args:
        max_points: The most points, at least 2.

    Attributes:
        points: The highest value of each stretch.
        stride: Values per stretch.
        count: Values taken.
    """

    def __init__(self, max_points: int) -> None:
        self._max_points = max_points
        self.points: list[int] = []
        self.stride = 1
        self.count = 0

    def add(self, tokens: int) -> None:
        """Take one reading."""
        if self.count % self.stride == 0:
            self.points.append(tokens)
        else:
            self.points[-1] = max(self.points[-1], tokens)
        self.count += 1
        if len(self.points) > self._max_points:
            # The last of an odd number has no neighbour.
            pairs = zip(self.points[::2], [*self.points[1::2], 0], strict=False)
            self.points = [max(pair) for pair in pairs]
            self.stride *= 2

    def to_json(self) -> dict[str, Any]:
        """Return what `restore` takes."""
        return {"points": self.points, "stride": self.stride, "count": self.count}

    def restore(self, kept: dict[str, Any]) -> None:
        """Continue a curve that was kept."""
        self.points, self.stride, self.count = list(kept["points"]), kept["stride"], kept["count"]
