"""The level of an agent in words: its name, the share where it begins, and of what.

For every face, so that all say the same. Standard library only: hooks load it.
"""

from __future__ import annotations

from ultramon.context.ladder import Ladder
from ultramon.state.level_share import UNKNOWN, LevelShare, words_of
from ultramon.system.counts import short_tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ultramon.state.models import AgentState
    from ultramon.state.record import StateRecord


def share_of(
    level: str | None, ladder: Mapping[str, Any], limit_tokens: int | None
) -> LevelShare | None:
    """Return where a level of a stored ladder begins; None where that is not known.

    Args:
        level: Its name; None = unknown.
        ladder: As in a state file.
        limit_tokens: The context limit; None = unknown.
    """
    try:
        is_base, rungs = level == ladder["base"], ladder["rungs"]
        at = 0 if is_base else [rung["name"] for rung in rungs].index(level)
        ratio = rungs[at]["ratio"]
        # To build the ladder costs more than all the rest, and a status has many rows.
        if any(rung["tokensLeft"] for rung in rungs):
            resolved = {
                rung.name: rung for rung in Ladder.from_json(ladder).resolve(limit_tokens).rungs
            }
            ratio = resolved[rungs[at]["name"]].nominal_ratio
        return None if ratio is None else LevelShare(float(ratio), is_base=is_base)
    except (LookupError, TypeError, ValueError):
        return None


def level_words(record: StateRecord | AgentState) -> str:
    """Return an agent's level as `words_of` does; ``unknown`` without one."""
    level, limit = record.threshold_status, record.context_limit
    return words_of(level, share_of(level, record.ladder, limit), limit)


def brief_level_words(record: StateRecord | AgentState, *, with_limit: bool = True) -> str:
    """Return an agent's level in few cells: ``critical 75%+ of 167k``; the base by its name alone.

    Args:
        record: The agent's state.
        with_limit: Whether to name the limit, where nothing beside it does.
    """
    level, limit = record.threshold_status, record.context_limit
    share = share_of(level, record.ladder, limit)
    if level is None or share is None or share.is_base:
        return level or UNKNOWN
    of = f" of {short_tokens(limit)}" if with_limit and limit is not None else ""
    return f"{level} {share.percent}%+{of}"
