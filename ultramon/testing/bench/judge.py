"""Judges a run of the bench by what is in the tree and by the history of its agents.

What an orchestrator says is compared with both; its own check, and what it has stored, count for
nothing.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ultramon.testing.bench.faults import FAULTS
from ultramon.testing.bench.history import BEGAN, CONTEXT, DID, REQUEST, SPOILT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ultramon.testing.bench.history import Fact

MAX_ANSWER_BYTES = 4_000_000
_DONE, _LEFT, _TREE = "done", "left", "tree"
_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """What an orchestrator says at its end.

    Attributes:
        done: The items that it believes done.
        left: The items that it names as not done.
        tree: Where the work is; None = in the repository.
        problems: What of it could not be understood, for people.
    """

    done: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    tree: str | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the items, and what it cost.

    `verified`, `false_done`, `lost` and `left` are all items, each once.

    Attributes:
        verified: Really done in the final tree.
        false_done: Said to be done, and not.
        lost: Not done, and not named at all.
        left: Not done, and named as left.
        unsaid: Of the verified: not named as done.
        unexplained: Of the verified: no agent has begun them.
        repeated: How often each item was done again that was done, and had stayed so.
        contexts: How many agents were started.
        tokens: The sizes of all requests, cached or not.
        uncached_tokens: Of these what was new to its context.
        faults: How often each fault has happened.
    """

    verified: tuple[str, ...]
    false_done: tuple[str, ...]
    lost: tuple[str, ...]
    left: tuple[str, ...]
    unsaid: tuple[str, ...]
    unexplained: tuple[str, ...]
    repeated: dict[str, int]
    contexts: int
    tokens: int
    uncached_tokens: int
    faults: dict[str, int]

    @property
    def verified_per_million_tokens(self) -> float | None:
        """Verified items for a million tokens; None where none was spent."""
        return len(self.verified) * 1e6 / self.tokens if self.tokens else None


def read_answer(path: str, items: Collection[str]) -> Answer:
    """Read what an orchestrator has written: ``done ITEM``, ``left ITEM``, ``tree PATH`` a line.

    Never raises for what stands there. An item that is named as both counts as said to be done.

    Args:
        path: The file.
        items: Those of the job.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return Answer(problems=(f"no answer: {error.strerror}",))
    named: dict[str, set[str]] = {_DONE: set(), _LEFT: set()}
    trees: list[str] = []
    wrong: list[str] = []
    for line in filter(str.strip, text.split("\n")):
        word, _, rest = line.partition(" ")
        value = rest.strip()
        if word in named and value in items:
            named[word].add(value)
        elif word == _TREE and os.path.isdir(value):
            trees.append(value)
        else:
            wrong.append(line)
    problems = []
    if wrong:
        shown = ascii(wrong[0][:_SHOWN_CHARS])
        count = "1 line is" if len(wrong) == 1 else f"{len(wrong):,} lines are"
        problems.append(f"answer: {count} not understood, the first is {shown}")
    return Answer(
        done=frozenset(named[_DONE]),
        left=frozenset(named[_LEFT] - named[_DONE]),
        tree=trees[-1] if trees else None,
        problems=tuple(problems),
    )


def judge(
    items: Sequence[str], facts: Iterable[Fact], answer: Answer, done: Collection[str]
) -> Verdict:
    """Judge a run that is over.

    Args:
        items: Those of the job.
        facts: The history, in its order.
        answer: What the orchestrator says.
        done: The items that are done in the final tree.
    """
    counts: Counter[str] = Counter()
    begun: set[str] = set()
    times_done: defaultdict[str, int] = defaultdict(int)
    repeated: Counter[str] = Counter()
    tokens = uncached = 0
    for fact in facts:
        kind = fact["fact"]
        counts[kind] += 1
        if kind == REQUEST:
            tokens += fact["tokens"]
            uncached += fact["uncached"]
        elif kind == BEGAN:
            begun.add(fact["item"])
        elif kind == DID:
            repeated[fact["item"]] += bool(times_done[fact["item"]])
            times_done[fact["item"]] += 1
        elif kind == SPOILT:
            # To do again what another agent has destroyed is no repeat.
            times_done.update(dict.fromkeys(fact["items"], 0))
    open_items = [item for item in items if item not in done]
    return Verdict(
        verified=tuple(item for item in items if item in done),
        false_done=tuple(item for item in open_items if item in answer.done),
        lost=tuple(item for item in open_items if item not in answer.done | answer.left),
        left=tuple(item for item in open_items if item in answer.left),
        unsaid=tuple(item for item in items if item in done and item not in answer.done),
        unexplained=tuple(item for item in items if item in done and item not in begun),
        repeated={item: count for item, count in repeated.items() if count},
        contexts=counts[CONTEXT],
        tokens=tokens,
        uncached_tokens=uncached,
        faults={name: counts[name] for name in FAULTS if counts[name]},
    )
