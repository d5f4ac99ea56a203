"""Detects vanished agents and abandoned claims in runs without an orchestrator."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ultramon.backends.claims import release_abandoned
from ultramon.errors import AgentNotFoundError, StateCorruptError, StateError
from ultramon.fleet.fleet import Fleet

if TYPE_CHECKING:
    from ultramon.server.services import Services

_log = logging.getLogger("ultramon.server")

CONSUMER = "server"
CHECK_SECONDS = 5.0
_JOIN_SECONDS = 5.0


class LostAgents(threading.Thread):
    """Checks pending claims and the runs with registered agents every few seconds.

    A verdict is stored once, by the first observer, so that fleets elsewhere are not disturbed.

    Args:
        services: The parts of the server; `stopping` ends it.
    """

    def __init__(self, services: Services) -> None:
        super().__init__(name="ultramon-lost-agents", daemon=True)
        self._services = services
        self._fleets: dict[str, Fleet] = {}
        self._runs_of: dict[str, str] = {}

    def run(self) -> None:
        """Check until the server stops; a store that refuses is asked again."""
        while not self._services.stopping.wait(CHECK_SECONDS):
            try:
                self.check()
            except StateError as error:
                _log.warning("vanished agents are not detected for now: %s", error)

    def close(self) -> None:
        """Wait for the end of the thread, after `Services.stopping` was set."""
        self.join(_JOIN_SECONDS)
        for fleet in self._fleets.values():
            fleet.close()

    def check(self) -> None:
        """Check once.

        Raises:
            StateError: The store refused.
        """
        backend, clock = self._services.backend, self._services.clock
        runs = self._runs()
        for run in self._fleets.keys() - runs:
            self._fleets.pop(run).close()
        for run in sorted(runs):
            if run not in self._fleets:
                # The server exports all runs itself.
                self._fleets[run] = Fleet(
                    run, consumer=CONSUMER, backend=backend, otel=False, clock=clock
                )
            # Where no fleet runs, no other process would notice the death of an agent.
            self._fleets[run].poll()
        # In every run: a claim over HTTP may be of an agent that no fleet watches.
        release_abandoned(backend, source=f"fleet:{CONSUMER}", now=clock.now())

    def _runs(self) -> set[str]:
        """Return the runs with registered agents."""
        backend, known = self._services.backend, self._runs_of
        registered = {one.agent_id for one in self._services.registry.registrations()}
        for agent_id in known.keys() - registered:
            del known[agent_id]
        for agent_id in registered - known.keys():
            try:
                record = backend.load(agent_id).record
            except (AgentNotFoundError, StateCorruptError):
                continue  # deleted or unreadable: no verdict is possible
            if record is not None:
                known[agent_id] = record.run
        return set(known.values())
