"""What a supervisor tells: events on the way, and the result at the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ultramon.state.plan import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class ItemCounts:
    """How many items of a run are in each status.

    Attributes:
        assigned: All items; the others add up to it.
        verified: `verify` confirmed them.
        claimed: An agent says that they are done, and nobody verified it.
        set_aside: Given up, with a reason.
        left: Not done yet.
    """

    assigned: int
    verified: int
    claimed: int
    set_aside: int
    left: int


@dataclass(frozen=True, slots=True)
class SupervisorEvent:
    """One step of a supervised run, for ``on_event``.

    Attributes:
        name: ``started``, ``restarted`` (after a context that died), ``claimed``, ``verified``,
            ``rejected``, ``set_aside``, ``handed_over``, ``ended`` or ``stopping``.
        agent_id: The context; None with ``stopping``.
        items: The items that it is about.
        reason: Why, where there is a reason.
        counts: All items of the run after this step.
    """

    name: str
    agent_id: str | None
    items: tuple[str, ...]
    reason: str | None
    counts: ItemCounts


@dataclass(frozen=True, slots=True)
class ContextResult:
    """One context of a supervised run.

    Attributes:
        agent_id: Its agent.
        items: How many items it was assigned.
        finished: How many of them were its last work on them, claimed or verified.
        reason: How it ended, e.g. ``returned`` or ``lost (SIGKILL)``; None = not closed yet.
        is_killed: Whether a signal ended it, or it vanished.
    """

    agent_id: str
    items: int
    finished: int
    reason: str | None
    is_killed: bool


@dataclass(frozen=True, slots=True)
class SupervisorResult:
    """The outcome of a supervised run so far, all calls included.

    Attributes:
        run: The run.
        counts: The items by status.
        contexts: Every context, in the order of their start.
        repeated: Items that were in work when their context was killed, and were begun again.
        set_aside: Items given up, with the reason.
        left: Items to be done by the next call; empty unless it stopped early.
        lost: Items counted as done that no record shows as done. Not empty is a bug.
        verify_errors: Items for which `verify` raised, with the last error.
        stopped: None, or why it stopped early: ``interrupted``, ``cancelled``, ``deadline``,
            ``max_contexts``, ``max_restarts``, ``stopped`` (by `Fleet.stop`) or ``disabled``.
    """

    run: str
    counts: ItemCounts
    contexts: tuple[ContextResult, ...]
    repeated: tuple[str, ...]
    set_aside: dict[str, str]
    left: tuple[str, ...]
    lost: tuple[str, ...]
    verify_errors: dict[str, str]
    stopped: str | None

    @property
    def ok(self) -> bool:
        """Whether every item is verified, or claimed where nobody verifies."""
        return not (self.stopped or self.left or self.set_aside or self.lost)

    @property
    def killed(self) -> int:
        """How many contexts were killed."""
        return sum(context.is_killed for context in self.contexts)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {**asdict(self), "ok": self.ok, "killed": self.killed}

    def __str__(self) -> str:
        counts = self.counts
        done = {"verified": counts.verified, "claimed": counts.claimed}
        (first, number), *others = [pair for pair in done.items() if pair[1]] or [("claimed", 0)]
        parts = [f"{number} of {counts.assigned} {first}"]
        parts += [f"{number} {name}" for name, number in others]
        parts += [
            "1 context" if len(self.contexts) == 1 else f"{len(self.contexts)} contexts",
            f"{self.killed} killed",
            f"{len(self.repeated)} repeated",
        ]
        if self.set_aside:
            parts.append(f"{len(self.set_aside)} set aside")
        if self.left:
            parts.append(f"{len(self.left)} left")
        parts.append(f"{len(self.lost)} lost")
        if self.stopped:
            parts.append(f"stopped: {self.stopped}")
        return ", ".join(parts)


def untouched(run: str, items: Iterable[object]) -> SupervisorResult:
    """Return the result of a call that does nothing, because ultramon is disabled."""
    left = tuple(dict.fromkeys(map(name_of, items)))
    counts = ItemCounts(len(left), 0, 0, 0, len(left))
    return SupervisorResult(run, counts, (), (), {}, left, (), {}, "disabled")
