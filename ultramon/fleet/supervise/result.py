"""What a supervisor reports: events on the way, and the result at the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from ultramon.errors import UltramonError
from ultramon.state.plan import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class ItemCounts:
    """How many items of a run are in each status.

    Attributes:
        assigned: All items; the others add up to it.
        verified: `verify` confirmed them.
        claimed: An agent says that they are done; not verified.
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
            ``rejected``, ``set_aside``, ``handed_over``, ``ended``, ``rechecking`` and
            ``reopened`` (see ``recheck`` and ``recheck_at_end``) or ``stopping``.
        agent_id: The context; None with the last three.
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
            ``max_contexts``, ``max_restarts``, ``broken_worker``, ``blocked`` (see ``may_take``),
            ``stopped`` (by `Fleet.stop`) or ``disabled``.
        failure: What is wrong with the worker where contexts end early, with the last lines of
            its stderr if `Job.popen` started it; None = nothing is known to be.
        done_earlier: How many items were verified when this call began, or claimed where there is
            no `verify`, and were left as they were.
        done_earlier_at: When the last of them was; None without any.
        begun_again: Items that were in work when their context ended without handing over: killed,
            crashed, lost, or with an end that the store did not take; and were begun again.
        unverified: Items that `verify`, where it was given, has not confirmed; empty unless it
            stopped early.
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
    failure: str | None = None
    done_earlier: int = 0
    done_earlier_at: datetime | None = None
    begun_again: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every item is verified, or claimed where there is no `verify`."""
        return not (self.stopped or self.left or self.set_aside or self.lost or self.unverified)

    def raise_for_failure(self) -> Self:
        """Return the result if it is `ok`, so that a program fails which does not look at it.

        Raises:
            RunUnfinishedError: It is not; the error names the items that are set aside, left or
                lost.
        """
        if not self.ok:
            raise RunUnfinishedError(self)
        return self

    @property
    def killed(self) -> int:
        """How many contexts were killed."""
        return sum(context.is_killed for context in self.contexts)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        at = None if self.done_earlier_at is None else self.done_earlier_at.isoformat()
        return {**asdict(self), "done_earlier_at": at, "ok": self.ok, "killed": self.killed}

    def describe_earlier(self) -> str:
        """Return how many items an earlier call had done, and when; empty for none."""
        if self.done_earlier_at is None:
            return ""
        at = f"{self.done_earlier_at.astimezone(UTC):%Y-%m-%d %H:%MZ}"
        return f"{self.done_earlier:,} by an earlier call, the last {at}"

    def __str__(self) -> str:
        counts = self.counts
        done = {"verified": counts.verified, "claimed": counts.claimed}
        (first, number), *others = [pair for pair in done.items() if pair[1]] or [("claimed", 0)]
        parts = [f"{number} of {counts.assigned} {first}"]
        if self.done_earlier:
            parts[0] += f" ({self.describe_earlier()})"
        parts += [f"{number} {name}" for name, number in others]
        parts += [
            "1 context" if len(self.contexts) == 1 else f"{len(self.contexts)} contexts",
            f"{self.killed} killed",
            f"{len(self.begun_again)} begun again",
        ]
        if self.set_aside:
            parts.append(f"{len(self.set_aside)} set aside")
        if self.left:
            parts.append(f"{len(self.left)} left")
        parts.append(f"{len(self.lost)} lost")
        if self.stopped:
            parts.append(f"stopped: {self.stopped}")
        return ", ".join(parts) + (f": {self.failure}" if self.stopped and self.failure else "")


def untouched(run: str, items: Iterable[object]) -> SupervisorResult:
    """Return the result of a call that does nothing, because ultramon is disabled."""
    left = tuple(dict.fromkeys(map(name_of, items)))
    counts = ItemCounts(len(left), 0, 0, 0, len(left))
    return SupervisorResult(run, counts, (), (), {}, left, (), {}, "disabled")


class RunUnfinishedError(UltramonError, RuntimeError):
    """A supervised run has ended, and not every item of it is done.

    Raised: By ``SupervisorResult.raise_for_failure``.

    Cure: Read ``result``; the same call continues the run, without what is done.

    Attributes:
        run: The run.
        result: What has become of it.
    """

    _SHOWN_ITEMS = 20

    def __init__(self, result: SupervisorResult) -> None:
        self.run = result.run
        self.result = result
        lines = [f"run {result.run} is not done: {result}"]
        lines += self._listed(
            "set aside", [f"{name}: {why}" for name, why in result.set_aside.items()]
        )
        lines += self._listed("left", result.left)
        lines += self._listed("lost", result.lost)
        lines += self._listed("not verified", result.unverified)
        super().__init__("\n  ".join(lines))

    @classmethod
    def _listed(cls, what: str, names: Sequence[str]) -> list[str]:
        lines = [f"{what}: {ascii(name)[1:-1]}" for name in names[: cls._SHOWN_ITEMS]]
        if len(names) > cls._SHOWN_ITEMS:
            lines.append(f"{what}: {len(names) - cls._SHOWN_ITEMS:,} more")
        return lines
