"""An agent's readings as `ultramon explain` draws them, with rungs, epochs and handoff."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from ultramon.cli.output import moment, plural, takes_unicode
from ultramon.pictures.text_timeline import text_timeline
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.context.explanation import Explanation
    from ultramon.state.history import HistoryPoint

_LINES = 6
_LEAST_CHARS, _MOST_CHARS = 20, 100
_WORDS_CHARS = 20
"""Kept free beside the drawing for the names of rungs; the widest are cut by no terminal."""


def draw_history(history: Sequence[HistoryPoint], explanation: Explanation) -> str:
    """Draw the readings of an agent; empty without one."""
    if not history:
        return ""
    state = explanation.state
    lines = [(rung.tokens, rung.name) for rung in explanation.rungs]
    if state.context_limit is not None:
        lines.append((state.context_limit, "limit"))
    handed_off_at = parse_time((state.handoff or {}).get("createdAt"))
    width = shutil.get_terminal_size().columns - _WORDS_CHARS
    drawn = text_timeline(
        history,
        width=min(max(width, _LEAST_CHARS), _MOST_CHARS),
        height=_LINES,
        lines=lines,
        marks=[] if handed_off_at is None else [(handed_off_at, "handoff")],
        ascii_only=not takes_unicode(sys.stdout),
    )
    first, last = history[0], history[-1]
    epochs = f"epoch {first.epoch}"
    if last.epoch != first.epoch:
        epochs = f"epochs {first.epoch} to {last.epoch}"
    heading = f"history   {plural(len(history), 'reading')} since {moment(first.at)}, {epochs}"
    return "\n".join(["", heading, *(f"  {line}" for line in drawn), ""])
