"""The turns before one rung, as a state stores them and as every face says them.

Standard library only: hooks say it in their notes.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Runway:
    """The number of turns that still end below a rung, as a range.

    Attributes:
        turns: The middle: as many sessions had more turns left as had fewer.
        low: Sooner only in one of fourteen cases.
        high: Later only in one of eight; None where sessions do not bear an upper end out.
    """

    __slots__ = ("high", "low", "turns")

    def __init__(self, turns: int, low: int, high: int | None) -> None:
        self.turns = turns
        self.low = low
        self.high = high

    @classmethod
    def of(cls, stored: dict[str, Any] | None) -> Runway | None:
        """Return what a stored forecast says of one rung; None where it says nothing.

        Args:
            stored: ``turns``, ``turnsLow`` and ``turnsHigh``. A state of an earlier version has
                ``turns`` alone, and is shown as it was then.
        """
        turns = None if stored is None else stored.get("turns")
        if stored is None or not isinstance(turns, int):
            return None
        low, high = stored.get("turnsLow"), stored.get("turnsHigh")
        # A state of an earlier version has the middle alone.
        if not isinstance(low, int):
            return cls(turns, turns, turns)
        return cls(turns, low, high if isinstance(high, int) else None)

    @property
    def is_next(self) -> bool:
        """Whether all that can be said is that the next turn may reach the rung."""
        return self.low == 0 and (self.turns == 0 or not self.high)

    def __str__(self) -> str:
        """Return a few characters for a cell or a status line: ``4-12 turns``, ``4+ turns``."""
        if self.is_next:
            return "next turn"
        if self.high is None:
            return f"{self.low:,}+ turns"
        if self.low == self.high:
            return _turns(f"{self.low:,}", self.low)
        return f"{self.low:,}-{self.high:,} turns"

    @property
    def words(self) -> str:
        """The range for a sentence: ``4 to 12 turns``, ``at least 4 turns``."""
        if self.is_next:
            return "next turn"
        if self.high is None:
            return _turns(f"at least {self.low:,}", self.low)
        if self.low == self.high:
            return _turns(f"{self.low:,}", self.low)
        return f"{self.low:,} to {self.high:,} turns"

    def before(self, rung: str) -> str:
        """Return the range with the rung's name: ``~4-12 turns to critical``."""
        if self.is_next:
            return f"next turn: {rung}"
        return f"{self} to {rung}" if self.high is None else f"~{self} to {rung}"

    def sentence(self, rung: str) -> str:
        """Return a sentence about the turns before a rung.

        Args:
            rung: Where it lies, for people, e.g. ``85 %``.
        """
        if self.is_next:
            return f"At the recent pace the next turn may reach {rung}."
        about = "" if self.high is None else "about "
        verb = "remains" if self.words.endswith(" turn") else "remain"
        return f"At the recent pace {about}{self.words} {verb} before {rung}."


def _turns(count: str, number: int) -> str:
    return f"{count} turn" if number == 1 else f"{count} turns"
