"""The port of an overview: the most urgent of very many agents, and how many there are.

A backend may have it as its attribute `overview`, as it may have a `queue`: one that sorts and
judges by itself, so that a list of agents need not read them all. Without it they are listed.
`ultramon.testing.OverviewContract` checks each sentence here against an implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ultramon.backends.base import StoredAgent
    from ultramon.system.processes import MachineIdentity


class Page(NamedTuple):
    """The agents of a run as they stood at one moment."""

    agents: Iterator[StoredAgent]
    """In order; read some hundred at a time, as far as the iterator is asked. Each is as it is when
    it is read; one that is deleted meanwhile is left out."""
    counts: Mapping[str, int]
    """How many agents the run has by verdict, ended ones too; a verdict that no agent has is there
    with 0."""
    cursor: str
    """For `Backend.events`: what was stored after that moment lies behind it."""


class Overview(Protocol):
    """Sorts and judges agents in the store."""

    def page(
        self,
        run: str | None,
        *,
        now: float,
        machine: MachineIdentity,
        limit: int | None = None,
        skip: int = 0,
        include_ended: bool = False,
    ) -> Page:
        """Return the most urgent agents of a run.

        The order is: lost agents, then those with the action ``force_return``, with
        ``prepare_handoff``, stale ones, the others, ended ones; within each the higher usage ratio
        first, an unknown one being 0, and of equal ones the lower id. Verdicts are those of
        `ultramon.state.liveness.judge`. A pure read.

        Args:
            run: Only agents of this run; None = of all runs.
            now: Epoch seconds.
            machine: Of the caller, whose processes it can see.
            limit: At most so many agents; None = all.
            skip: Leave out so many in front.
            include_ended: Whether ended agents are among them; they are counted in any case.

        Raises:
            StateWriteError: The store refused, also while agents are read.
        """

    def find_by_prefix(self, prefix: str) -> list[str]:
        """Return the agents whose ids, stored or as `ultramon.state.observed` shows them, begin so.

        Returns:
            The stored ids, sorted; all of them for an empty text.
        """

    def find_by_label(self, label: str) -> list[str]:
        """Return the ids of the agents with exactly this label, sorted."""
