"""How what is left of a cap is parted among the contexts that run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def share_out(left: int, reserves: Sequence[int], spent: Sequence[int]) -> list[int]:
    """Return what each context may spend, itself and before: alike for all, never more together.

    Args:
        left: What the contexts that run may spend together, what they have spent included.
        reserves: What each of them may spend until now.
        spent: What each has spent.
    """
    if not reserves:
        return []
    free = max(0, left - sum(spent)) // len(reserves)
    wanted = [used + free for used in spent]
    # What one may spend less is there for the others, and no more than that.
    found = [
        max(used, min(now, want)) for now, used, want in zip(reserves, spent, wanted, strict=True)
    ]
    room = left - sum(found)
    for number, want in enumerate(wanted):
        more = min(max(0, want - found[number]), max(0, room))
        found[number] += more
        room -= more
    return found
