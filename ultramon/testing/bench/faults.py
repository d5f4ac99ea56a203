"""What the agents of the bench do wrong: drawn by the seed, the same for every orchestrator."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

LIE, DIE, LOOP, FILL, IGNORE, CONFLICT = "lie", "die", "loop", "fill", "ignore", "conflict"
FAULTS = {
    LIE: "says that an item is done, and has written nothing or a stub",
    DIE: "is killed by SIGKILL: in the middle of an item, or behind it and before it says so",
    LOOP: "spends tokens on an item without progress",
    FILL: "with a full window it fails, or is compacted and forgets a part of its list",
    IGNORE: "ignores a request to return",
    CONFLICT: "writes a file that two items share as if it was for one alone",
}
"""What an agent may do, in the order of the draws."""
OF_AN_ATTEMPT = (LIE, DIE, LOOP)
DEFAULT_RATIO = 0.1
CONFLICT_RATIO = 0.3
"""Of the items that share a file. They are few, and only the second one of two can destroy."""
IGNORE_RATIO = 0.25
_TOKENS = (1_500, 5_100)
"""Of an item, in three requests. The client measured in benchmarks/RESULTS.md made 2.3 to 3.0, and
read 3,300 tokens."""


class Attempt(NamedTuple):
    """One attempt at an item."""

    fault: str | None
    """One of `OF_AN_ATTEMPT`; None = the item is done."""
    is_late: bool
    """Of `LIE`: with a stub. Of `DIE`: behind the work."""
    overwrites: bool
    """Whether it drops what others have written into the shared file."""
    tokens: tuple[int, ...]
    """What each of its requests adds to the window."""


class ContextFaults(NamedTuple):
    """What holds for a whole context."""

    ignores: bool
    """Whether it ignores a request to return."""
    fails_when_full: bool
    """Whether it fails with a full window; else it is compacted."""
    forgets: bool
    """Whether that costs it a part of its list."""


def draw_attempt(
    seed: int, item: str, number: int, faults: Collection[str], ratio: float = DEFAULT_RATIO
) -> Attempt:
    """Return what happens in an attempt.

    It depends on nothing else: whoever does the item, when and in which context.

    Args:
        seed: Of the run.
        item: The item.
        number: Of the attempt at this item, from 1.
        faults: Which of `FAULTS` may happen.
        ratio: How probable each of `OF_AN_ATTEMPT` is, 0.0-1.0.
    """
    chance = Random(f"{seed} {item} {number}")
    # Drawn before the filter: without one fault the others stay the same.
    drawn = [name for name in OF_AN_ATTEMPT if chance.random() < ratio]
    found = next((name for name in drawn if name in faults), None)
    is_late, overwrites = chance.random() < 0.5, chance.random() < CONFLICT_RATIO
    total = Random(f"{seed} {item} tokens").randrange(*_TOKENS)
    read, written = total * 6 // 10, total * 3 // 10
    return Attempt(
        found, is_late, overwrites and CONFLICT in faults, (read, written, total - read - written)
    )


def draw_context(seed: int, number: int, faults: Collection[str]) -> ContextFaults:
    """Return what holds for a context.

    Args:
        seed: Of the run.
        number: Of the context, from 1, in the order of their starts.
        faults: Which of `FAULTS` may happen.
    """
    chance = Random(f"{seed} context {number}")
    ignores, fails = chance.random() < IGNORE_RATIO, chance.random() < 0.5
    fills = FILL in faults
    return ContextFaults(ignores and IGNORE in faults, fails and fills, fills)


def kept_in_mind(seed: int, number: int, items: Collection[str]) -> list[str]:
    """Return what is left of a list behind a compaction that forgets: never all of it.

    Args:
        seed: Of the run.
        number: Of the context.
        items: The list.
    """
    chance = Random(f"{seed} compaction {number} {len(items)}")
    kept = [item for item in items if chance.random() < 0.5]
    return kept if len(kept) < len(items) else kept[:-1]
