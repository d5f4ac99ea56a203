"""Reads the journal and the states of a relay's run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.errors import AgentNotFoundError, StateError
from ultramon.fleet.supervise.run_log import RunLog

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.fleet.journal_event import Closing
    from ultramon.fleet.supervise.pool import ItemPool
    from ultramon.state.record import StateRecord


class RunReader:
    """The journal and the states of a run, as they are now.

    Args:
        backend: The store.
        run: The run.
    """

    def __init__(self, backend: Backend, run: str) -> None:
        self._backend = backend
        self._run = run
        self._log = RunLog(backend, run, 1)

    @property
    def pool(self) -> ItemPool:
        """Items and contexts, as far as the journal was read."""
        return self._log.pool

    def read(self) -> None:
        """Read what is new in the journal."""
        self._log.read()

    def last_closed(self) -> tuple[str, Closing] | None:
        """Return the last context that is closed, and how; None for the first."""
        self.read()
        found = (self.closed(agent_id) for agent_id in reversed(self.pool.contexts))
        return next(filter(None, found), None)

    def closed(self, agent_id: str) -> tuple[str, Closing] | None:
        """Return a context that is closed, and how, as far as the journal was read; else None."""
        context = self.pool.contexts.get(agent_id)
        return None if context is None or context.closed is None else (agent_id, context.closed)

    def state(self, agent_id: str) -> StateRecord | None:
        """Return the state of a context; None where there is none that can be read."""
        try:
            return self._backend.load(agent_id).record
        except (AgentNotFoundError, StateError):
            return None

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
