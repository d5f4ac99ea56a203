"""The readings of an agent over time as lines of text, for terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.pictures.time_axis import TimeAxis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.state.history import HistoryPoint

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_ASCII_EIGHTHS = " ......##"
_RUNG, _ASCII_RUNG = "┄", "-"
_FOOT, _ASCII_FOOT = "─", "_"


def text_timeline(
    points: Sequence[HistoryPoint],
    *,
    width: int,
    height: int = 8,
    lines: Sequence[tuple[int, str]] = (),
    marks: Sequence[tuple[float, str]] = (),
    until: float | None = None,
    ascii_only: bool = False,
) -> list[str]:
    """Draw the tokens in a window over time.

    Args:
        points: Oldest first.
        width: Of the drawing in characters; the words of lines stand to its right.
        height: Of the drawing in lines of text.
        lines: Tokens and words of what is drawn across, such as rungs and the limit. Where two
            fall into one line of text, their words are joined.
        marks: Unix times and texts to write below the drawing, such as handoffs. Epochs after the
            first one are written there anyway, by their numbers, as far as there is room.
        until: Right end, Unix time, where it is later than the last reading; None = that reading.
        ascii_only: Draw with ASCII characters.

    Returns:
        ``height`` lines, the foot, and a line of marks if there is one; nothing without points.
    """
    if not points:
        return []
    axis = TimeAxis(points, until)
    steps = _ASCII_EIGHTHS if ascii_only else _EIGHTHS
    columns = _columns(axis, width)
    top = max(*columns, *(tokens for tokens, _ in lines), 1)
    words: dict[int, list[str]] = {}
    for tokens, text in sorted(lines, reverse=True):
        words.setdefault(_row(tokens, top, height), []).append(text)
    drawn = []
    for row in reversed(range(height)):
        blank = (_ASCII_RUNG if ascii_only else _RUNG) if row in words else " "
        cells = ""
        for tokens in columns:
            eighths = round(tokens * height * 8 / top) - row * 8
            cells += steps[min(eighths, 8)] if eighths > 0 else blank
        drawn.append(f"{cells} {', '.join(words.get(row, ()))}".rstrip())
    drawn.append((_ASCII_FOOT if ascii_only else _FOOT) * width)
    begun = [(axis.times[at], str(points[at].epoch), False) for at in axis.epoch_starts]
    below = _below([*begun, *((at, text, True) for at, text in marks)], axis, width)
    return [*drawn, below] if below else drawn


def _columns(axis: TimeAxis, width: int) -> list[int]:
    """Return the highest count of tokens in each share of the time."""
    columns = [0] * width
    for left, right, tokens in axis.spans(width):
        for column in range(int(left), min(int(right), width - 1) + 1):
            # A span that only begins with this column's right edge belongs to the next one.
            if column < right or left == right:
                columns[column] = max(columns[column], tokens)
    return columns


def _row(tokens: int, top: int, height: int) -> int:
    return min(max(-(-tokens * height // top) - 1, 0), height - 1)


def _below(marks: Sequence[tuple[float, str, bool]], axis: TimeAxis, width: int) -> str:
    """Write texts below their times; one that has to be there moves right where there is no room.

    Args:
        marks: Unix time, text, and whether it has to be there.
        axis: Of the drawing.
        width: Of the drawing.
    """
    line = ""
    for at, text, is_needed in sorted(marks):
        column = min(int(axis.place(at, width)), width - 1)
        free = len(line) + bool(line)
        if column >= free or is_needed:
            line = line.ljust(max(column, free)) + text
    return line
