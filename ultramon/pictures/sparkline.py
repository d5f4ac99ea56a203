"""The readings of an agent in one line of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.state.history import HistoryPoint

_STEPS = "▁▂▃▄▅▆▇█"
_ASCII_STEPS = "_.:-=+*#"


def sparkline(
    points: Sequence[HistoryPoint],
    *,
    limit_tokens: int | None,
    width: int,
    ascii_only: bool = False,
) -> str:
    """Draw how full a context window was, one reading a character.

    Args:
        points: Oldest first; of more than fit, each character shows the highest of its share.
        limit_tokens: The context limit, drawn at full height, as is what lies above it. None, or
            not above 0 = unknown: then the highest reading is.
        width: Characters, 1 and more.
        ascii_only: Draw with ASCII characters.

    Returns:
        Exactly ``width`` characters, the newest reading at the right end; blanks without readings.
    """
    steps = _ASCII_STEPS if ascii_only else _STEPS
    tokens = [point.used_tokens for point in points]
    columns = min(width, len(tokens))
    top = limit_tokens if limit_tokens and limit_tokens > 0 else max(tokens, default=0) or 1
    line = ""
    for column in range(columns):
        share = tokens[len(tokens) * column // columns : len(tokens) * (column + 1) // columns]
        # The highest of its share: a mean would hide a window that was full for one reading.
        line += steps[max(0, min(max(share) * len(steps) // top, len(steps) - 1))]
    return line.rjust(width)
