"""What one transcript spent, by quarters of an hour: periods of any time zone add up from them."""

from __future__ import annotations

from typing import Any

from ultramon.recordings.usage import UsageSums, is_possible
from ultramon.system.timestamps import format_time, parse_time

QUARTER_SECONDS = 900
"""Every time zone in use is a whole number of quarters of an hour from UTC, so that each of its
days begins with one."""
_DAY_CHARS = len("2026-11-20")
_QUARTER_CHARS = len("2026-11-20T18:15")


class SpendingSums(UsageSums):
    """The requests that are `SPENT`, where ``day`` of a part is `quarter_of` its time.

    Of more than `MOST` rows the older half is kept by days of UTC.
    """

    MOST = 2_000

    def _make_room(self) -> None:
        rows = sorted(self._rows, key=lambda row: str(row[1]))
        half = len(rows) // 2
        self._merge([*map(_at_noon, rows[:half]), *rows[half:]])


def quarter_of(at: float | None) -> str:
    """Return the quarter of an hour of a time: ``2026-11-20T18:15`` in UTC.

    Empty for None and a time that cannot be. The texts sort as the times do.
    """
    if not is_possible(at):
        return ""
    return format_time(at // QUARTER_SECONDS * QUARTER_SECONDS)[:_QUARTER_CHARS]


def quarter_time(quarter: str) -> float | None:
    """Return when a quarter of an hour begins, epoch seconds; None for an unknown one."""
    return parse_time(f"{quarter}:00Z")


def _at_noon(row: list[Any]) -> list[Any]:
    kind, quarter, *rest = row
    return [kind, quarter and f"{quarter[:_DAY_CHARS]}T12:00", *rest]
