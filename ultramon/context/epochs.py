"""When one filling of a context window ended without anybody saying so."""

from __future__ import annotations

FALL_RATIO = 0.70
"""A report below this share of the last one starts a new epoch: the window was compacted."""


def has_fallen(tokens: int, last_reported_tokens: int) -> bool:
    """Return whether a report lies so far below the last that the window was emptied between."""
    return tokens < FALL_RATIO * last_reported_tokens
