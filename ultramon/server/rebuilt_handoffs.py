"""The handoffs of agents that vanished: they were rebuilt later and are in the event log only.

An index in memory, so that a look-up need not read the whole log.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ultramon.backends.base import Backend

MAX_AGENTS = 10_000


class RebuiltHandoffs:
    """The last rebuilt handoff of each agent. Thread-safe.

    The first look-up reads the whole event log, later ones the new events. Beyond 10,000 agents the
    one that vanished first is forgotten.

    Args:
        backend: Holds the log.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._cursor: str | None = None
        self._by_agent: dict[str, dict[str, Any]] = {}

    def of(self, agent_id: str) -> dict[str, Any] | None:
        """Return the last rebuilt handoff of an agent.

        Raises:
            StateError: The log cannot be read.
        """
        with self._lock:
            # By the cursor: a page whose rows cannot be read has no events, and is not the last.
            while (page := self._backend.events(self._cursor)).cursor != (self._cursor or "0"):
                for event in page.events:
                    self._remember(event)
                self._cursor = page.cursor
            return self._by_agent.get(agent_id)

    def _remember(self, event: dict[str, Any]) -> None:
        handoff = event.get("handoff")
        if not (isinstance(handoff, dict) and handoff.get("reason") == "lost"):
            return
        # Put last again: beyond the limit the agent goes that vanished first.
        self._by_agent.pop(event["agentId"], None)
        self._by_agent[event["agentId"]] = handoff
        if len(self._by_agent) > MAX_AGENTS:
            del self._by_agent[next(iter(self._by_agent))]
