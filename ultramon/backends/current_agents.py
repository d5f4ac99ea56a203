"""The agents of a store, judged as of now and kept up to date by reading only what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.backends.base import StoredAgent
from ultramon.backends.toolkit import observe_stored
from ultramon.state.observed import sort_observed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.backends.base import Backend
    from ultramon.state.observed import ObservedAgent, Unreadable
    from ultramon.system.clock import Clock


class CurrentAgents:
    """The agents of a run, from look to look.

    Args:
        backend: Where they are stored.
        run: Only agents of this run; None = of all runs.
        clock: Says when they are judged.
    """

    def __init__(self, backend: Backend, run: str | None, *, clock: Clock) -> None:
        self._backend = backend
        self._run = run
        self._clock = clock
        self._marks: dict[str, Any] = {}
        self._stored: dict[str, StoredAgent] = {}

    def look(self, *, whole: bool) -> tuple[list[ObservedAgent], list[Unreadable]]:
        """Return the readable agents, most urgent first, and the others.

        Args:
            whole: As for `ultramon.state.observed.observe`.

        Raises:
            StateError: The store refused.
        """
        beats = self._refresh()
        # The beat of an agent that has ended judges nothing, and would be looked up.
        agents = (
            agent
            if agent.record is None or not agent.record.active
            else StoredAgent(agent_id, agent.record, beats.get(agent_id))
            for agent_id, agent in self._stored.items()
        )
        return sort_observed(observe_stored(agents, self._clock.now(), whole=whole))

    def _refresh(self) -> Mapping[str, float]:
        """Bring what is known up to date; return the heartbeats."""
        changes = self._backend.changes(self._run, self._marks)
        for agent_id in changes.removed:
            self._stored.pop(agent_id, None)
        self._stored.update((agent.agent_id, agent) for agent in changes.changed)
        return changes.heartbeats
