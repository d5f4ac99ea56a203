"""Draws a timeline as an area of blocks, with lines for the rungs and marks at compactions."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from rich.text import Text

from ultramon.cli.output import action_style, short_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.recordings.timeline import RungLine, Timeline

    Part = tuple[str, str]

_HEIGHT = 12
_AXIS_WIDTH = 7
_LABEL_WIDTH = 16
_LABELS_FROM_WIDTH = 70
_MIN_COLUMNS = 8
_MAX_COLUMNS = 120
_MARK_LABEL = " compaction"
_STEPS = 8
_MARKED_SHARE = 0.25


_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "    ::::#"
_TO_ASCII = str.maketrans("┄┊▼│┤└─", "-:v|++-")


def plot(timeline: Timeline, width: int, *, ascii_only: bool) -> list[Text]:
    """Return the lines of a chart of tokens over the recording; none where there is no room.

    Args:
        timeline: What to draw.
        width: Cells that a line may take.
        ascii_only: Draw with ``#``, ``-`` and ``|``.
    """
    label_width = _LABEL_WIDTH if width >= _LABELS_FROM_WIDTH and timeline.rungs else 0
    columns = min(width - _AXIS_WIDTH - 2 - label_width, _MAX_COLUMNS)
    if columns < _MIN_COLUMNS or not timeline.points:
        return []
    chart = _Chart(timeline, columns, _ASCII_BLOCKS if ascii_only else _BLOCKS)
    glyphs = _TO_ASCII if ascii_only else {}
    return [
        Text.assemble(*((text.translate(glyphs), style) for text, style in line))
        for line in chart.lines(label_width)
    ]


class _Chart:
    """Draws lines as parts, each a text and its style."""

    def __init__(self, timeline: Timeline, columns: int, blocks: str) -> None:
        self._timeline = timeline
        self._columns = columns
        self._blocks = blocks
        # Room above the limit: a window filled to the brim must not look cut off.
        self._top = max(timeline.context_limit or 0, timeline.peak_tokens, *timeline.points, 1)
        self._heights = [
            round(tokens / self._top * _HEIGHT * _STEPS) for tokens in self._stretched()
        ]
        compacted = {self._column(event.position) for event in timeline.compactions}
        # Marks in every other column are a pattern, not a message.
        self._compacted = compacted if len(compacted) <= columns * _MARKED_SHARE else set()
        self._rung_rows = {self._row(rung.tokens): rung for rung in timeline.rungs}

    def _stretched(self) -> Iterator[int]:
        points, count = self._timeline.points, len(self._timeline.points)
        for column in range(self._columns):
            first = column * count // self._columns
            last = max(first + 1, (column + 1) * count // self._columns)
            # The peak of a column: a mean would hide a window that was full for one reading.
            yield max(points[first:last])

    def _column(self, position: int) -> int:
        point = position // self._timeline.readings_per_point
        # The first column that shows this point, as `_stretched` deals them out.
        column = -(-point * self._columns // len(self._timeline.points))
        return min(column, self._columns - 1)

    def _row(self, tokens: int) -> int:
        """Return the row, from the bottom, whose cells hold a token count."""
        return min(int(tokens / self._top * _HEIGHT), _HEIGHT - 1)

    def _style(self, row: int) -> str:
        reached = [rung for rung in self._timeline.rungs if row >= self._row(rung.tokens)]
        return action_style(reached[-1].action if reached else "none")

    def lines(self, label_width: int) -> Iterator[list[Part]]:
        if self._compacted:
            yield [(self._marks(label_width), "cyan")]
        for row in reversed(range(_HEIGHT)):
            yield self._line(row, label_width)
        yield [(f"{0:>{_AXIS_WIDTH - 1}} └{'─' * self._columns}", "dim")]

    def _marks(self, label_width: int) -> str:
        marks = ("▼" if column in self._compacted else " " for column in range(self._columns))
        line = "".join(marks).rstrip()
        if len(line) + len(_MARK_LABEL) <= self._columns + label_width:
            line += _MARK_LABEL
        return " " * (_AXIS_WIDTH + 1) + line

    def _line(self, row: int, label_width: int) -> list[Part]:
        rung = self._rung_rows.get(row)
        shown = rung.tokens if rung else self._top if row == _HEIGHT - 1 else None
        axis = "│" if shown is None else f"{short_tokens(shown)} ┤"
        line = [(f"{axis:>{_AXIS_WIDTH + 1}}", "dim")]
        cells = [self._cell(column, row, rung) for column in range(self._columns)]
        for style, run in groupby(cells, key=itemgetter(1)):
            line.append(("".join(glyph for glyph, _ in run), style))
        if label_width and rung is not None:
            label = f" {rung.name} {rung.usage_ratio:.0%}"
            line.append((label[:label_width], action_style(rung.action)))
        return line

    def _cell(self, column: int, row: int, rung: RungLine | None) -> Part:
        step = min(max(self._heights[column] - row * _STEPS, 0), _STEPS)
        glyph = self._blocks[step]
        if glyph != " ":
            return glyph, self._style(row)
        if rung is not None:
            return "┄", f"dim {action_style(rung.action)}"
        if column in self._compacted:
            return "┊", "dim cyan"
        return " ", ""
