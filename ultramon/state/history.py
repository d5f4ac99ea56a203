"""The readings of one agent over time, for what draws them."""

from __future__ import annotations

from typing import NamedTuple

from ultramon.state.history_ring import HISTORY_POINTS, LAST_MS, POINT_BYTES, SOURCES

__all__ = ["HISTORY_POINTS", "HistoryPoint", "decode_points"]


class HistoryPoint(NamedTuple):
    """One reading of an agent."""

    at: float
    """Unix time, seconds."""
    used_tokens: int
    """In the window, 0 to 4,294,967,295."""
    source: str
    """``reported``, ``anchored``, ``estimated``, or ``unknown``."""
    epoch: int


def decode_points(points: bytes, shift_seconds: float = 0.0) -> list[HistoryPoint]:
    """Return the readings in a ring, oldest first; none where these are no readings.

    No time is later than the year 9999.

    Args:
        points: As `ultramon.state.history_ring.add_point` returns them.
        shift_seconds: What to add to their times.
    """
    if len(points) % POINT_BYTES or len(points) > HISTORY_POINTS * POINT_BYTES:
        return []
    found = []
    for start in range(0, len(points), POINT_BYTES):
        row = points[start : start + POINT_BYTES]
        number = int.from_bytes(row, "big")
        # Later than any time that is written: these bytes are no readings.
        if number >> 80 > LAST_MS:
            return []
        source = number >> 8 & 0xFF
        found.append(
            HistoryPoint(
                (number >> 80) / 1000 + shift_seconds,
                number >> 48 & 0xFFFF_FFFF,
                SOURCES[source] if source < len(SOURCES) else SOURCES[0],
                number >> 16 & 0xFFFF_FFFF,
            )
        )
    return found
