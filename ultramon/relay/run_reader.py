"""Reads the journal and the states of a relay's run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.fleet.item_pool import ItemPool

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.state.record import StateRecord


class RunReader:
    """The journal and the states of a run, as they are now.

    Args:
        backend: The store.
        run: The run.

    Attributes:
        pool: Items and contexts, as far as the journal was read.
    """

    def __init__(self, backend: Backend, run: str) -> None:
        self.pool = ItemPool(1)
        self._backend = backend
        self._run = run
        self._cursor: str | None = None

    def read(self) -> None:
        """Read on in the journal."""
        while (page := self._backend.events(self._cursor)).events:
            for event in page.events:
                if event["run"] == self._run:
                    list(self.pool.read(event, None))
            self._cursor = page.cursor

    def last_closed(self) -> dict[str, Any] | None:
        """Return the event that closed the last context; None for the first."""
        self.read()
        closed = [one.closed for one in self.pool.contexts.values() if one.closed is not None]
        return closed[-1] if closed else None

    def sessions(self) -> list[StateRecord]:
        """Return the states of the contexts."""
        self.read()
        found = (agent.record for agent in self._backend.list_agents(self._run))
        return [one for one in found if one is not None and one.agent_id in self.pool.contexts]

    def tasks(self) -> dict[str, str]:
        """Return the tasks of all contexts by name, each with its last status."""
        known: dict[str, str] = {}
        for record in sorted(self.sessions(), key=lambda one: number_of(one.agent_id)):
            known.update((task["name"], task["status"]) for task in record.tasks or ())
        return known


def number_of(agent_id: str) -> int:
    """Return the number of a context."""
    return int(agent_id.rpartition(".")[2])
