"""The share of the context limit where a level begins, as events and notices carry it, in words.

``critical`` alone is 75, 85 or 90 %, by the ladder. Standard library only: hooks load it.
"""

from __future__ import annotations

from ultramon.system.counts import short_tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

UNKNOWN = "unknown"


class LevelShare:
    """Where a level begins; of the base level, where it ends.

    Attributes:
        ratio: Usage ratio, as people are shown it.
        is_base: Whether the level lies below all rungs.
    """

    __slots__ = ("is_base", "ratio")

    def __init__(self, ratio: float, *, is_base: bool) -> None:
        self.ratio = ratio
        self.is_base = is_base

    @property
    def percent(self) -> str:
        """The share in percent, with a decimal where it has one."""
        return f"{round(self.ratio * 100, 1):g}"


def share_words(share: LevelShare, limit_tokens: int | None) -> str:
    """Return ``75 % of 167k and more``, or of the base level ``below 65 % of 167k``."""
    of = "" if limit_tokens is None else f" of {short_tokens(limit_tokens)}"
    percent = f"{share.percent} %{of}"
    return f"below {percent}" if share.is_base else f"{percent} and more"


def words_of(level: str | None, share: LevelShare | None, limit_tokens: int | None) -> str:
    """Return ``critical, 75 % of 167k and more``; the bare name where its share is not known."""
    if level is None or share is None:
        return level or UNKNOWN
    return f"{level}, {share_words(share, limit_tokens)}"


def share_sentence(level: str, share: LevelShare | None, limit_tokens: int | None) -> str:
    """Return ``critical is 75 % of 167k and more``; empty for the base level and where unknown."""
    if share is None or share.is_base:
        return ""
    return f"{level} is {share_words(share, limit_tokens)}"


def share_facts(share: LevelShare | None) -> dict[str, float]:
    """Return a share as events and notices have it: ``levelFrom``; of the base ``levelBelow``."""
    if share is None:
        return {}
    return {"levelBelow" if share.is_base else "levelFrom": round(share.ratio, 6)}


def share_in(facts: Mapping[str, Any]) -> LevelShare | None:
    """Return the share that an event or a notice names; None where it names none."""
    for name, is_base in (("levelFrom", False), ("levelBelow", True)):
        ratio: Any = facts.get(name)
        if type(ratio) in (int, float) and 0 < ratio <= 1:
            return LevelShare(float(ratio), is_base=is_base)
    return None
