"""Detects a worker that is broken: its contexts end alike, and none makes progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.fleet.supervise.pool import is_from_outside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.fleet.journal_event import Closing, Exit
    from ultramon.fleet.supervise.pool import WorkerContext

MAX_ALIKE = 3
"""The number of contexts in a row that end alike after which a worker counts as broken."""
MAX_UNSEEN = 2
"""The number of processes without an agent after which their environment is probably missing."""


class EarlyEnds:
    """The contexts that ended since the last one that made progress.

    An item can have its agents fail alike as well: where anything was ever claimed, the worker is
    broken only if the same end met three items, or came before an item was begun.

    Attributes:
        problem: What is wrong, for people; None = nothing is known to be.
    """

    def __init__(self) -> None:
        self.problem: str | None = None
        self._how: tuple[Any, ...] | None = None
        self._met: list[str | None] = []
        self._unseen: list[str] = []

    def clear(self) -> None:
        """Forget all, after progress or an end in good order."""
        self.problem = self._how = None
        self._met, self._unseen = [], []

    def note_seen(self) -> None:
        """Note an agent that was seen: its process had its environment."""
        self._unseen = []

    def note_unseen(self, agent_id: str) -> str | None:
        """Note a process that has ended and in which no agent was seen; return what to log."""
        self._unseen.append(agent_id)
        if len(self._unseen) < MAX_UNSEEN:
            return None
        self.problem = (
            f"{len(self._unseen)} processes ended and their agents were never seen, "
            f"{self._unseen[-1]} the last: pass env=job.env to the process"
        )
        return self.problem if len(self._unseen) == MAX_UNSEEN else None

    def note(
        self,
        context: WorkerContext,
        closing: Closing,
        exited: Exit,
        last_lines: Sequence[str],
        *,
        has_claims: bool,
    ) -> bool:
        """Note an end without progress; return whether the worker is broken.

        Args:
            context: Which has ended.
            closing: As `ItemPool.closing` returned it.
            exited: How it ended.
            last_lines: What its process wrote to stderr last.
            has_claims: Whether an item of the run was ever claimed.
        """
        end = context.end
        kind = None if end is None else end.kind
        if not closing.died:
            self.clear()
            return False
        if (
            (end is not None and end.is_void)
            or is_refusal(exited)
            or (kind == "agent_lost" and is_from_outside(exited))
        ):
            return False  # says nothing about the worker
        how = kind, closing.reason
        if how != self._how:
            self._how, self._met = how, []
        self._met.append(closing.begun[0] if closing.begun else None)
        is_one_item = has_claims and None not in self._met and len(set(self._met)) < MAX_ALIKE
        if len(self._met) < MAX_ALIKE or is_one_item:
            return False
        alike = f"{len(self._met)} contexts in a row ended alike: {closing.reason}"
        if self._unseen and self.problem:
            alike = f"{alike}; {self.problem}"
        self.problem = "\n".join([alike, *last_lines])
        return True


def is_refusal(exited: Exit) -> bool:
    """Whether a provider refused a request: by the agent's exception, or as its client says."""
    return "statusCode" in exited or {"reason", "error"} <= exited.keys()
