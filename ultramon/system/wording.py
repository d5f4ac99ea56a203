"""How numbers, times and texts of agents are written for people, in every face."""

from __future__ import annotations

from ultramon.system.terminal_text import sanitize
from ultramon.system.timestamps import format_time

MAX_FIELD_CHARS = 200
"""A label or task name is cut here before its width is measured."""


def field(text: str | None) -> str:
    """Return one value of a state for a table or a line; empty for None."""
    return "" if text is None else sanitize(text, max_chars=MAX_FIELD_CHARS)


def tokens(count: int | None) -> str:
    """Write a token count; ``?`` when unknown."""
    return "?" if count is None else f"{count:,}"


def percent(ratio: float | None) -> str:
    """Write a ratio as a percentage with one decimal; ``?`` when unknown."""
    return "?" if ratio is None else f"{ratio * 100:.1f} %"


def moment(epoch_seconds: float) -> str:
    """Write a time in UTC to the second, e.g. ``2026-11-21 20:28:51Z``."""
    return f"{format_time(epoch_seconds)[:-5]}Z".replace("T", " ")


def age(seconds: float | None) -> str:
    """Write an age in its largest unit, e.g. ``3 min``; empty for None."""
    if seconds is None:
        return ""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def byte_size(count_bytes: int) -> str:
    """Write a number of bytes in its largest unit, of 1,000 each: ``950 B``, ``1.2 GB``."""
    amount = float(count_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1_000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_000
    return f"{amount:.1f} TB"


def plural(count: int, noun: str) -> str:
    """Write a count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
