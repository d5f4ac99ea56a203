"""The parts of a running server, made once when it starts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from fastapi import HTTPException

from ultramon.backends.queue import queue_of
from ultramon.backends.registry import registry_of
from ultramon.metrics.source import MetricsSource
from ultramon.server.posted_agents import PostedAgents
from ultramon.server.rate_limits import TokenBuckets
from ultramon.server.readiness import Readiness
from ultramon.server.rebuilt_handoffs import RebuiltHandoffs
from ultramon.server.stream_slots import Streams
from ultramon.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.system.clock import Clock
    from ultramon.tokens import ServerSecret

READING_THREADS = 16
"""So many readings wait for the disk at once. The pool of the routes costs more for each call."""
SEND_SECONDS = 5.0
"""How long a request waits for a database to take its message. Later the message is kept on this
machine, and is answered without a number."""


class Services:
    """The parts of a running server.

    Args:
        backend: Holds agents, registrations, messages and credentials.
        state_directory: Holds the files of this server.
        admin_token: Allows everything.
        hook_secret: Allows the routes under ``/hooks``.
        metrics_token: Allows ``GET /metrics``.
        clock: For tests.

    Attributes:
        registry: The registrations of the backend.
        queue: The messages of the backend.
        posted: Writes posts into the states of agents.
        threads: Take posted readings: each waits for the disk.
        metrics: The metrics of the store.
        readiness: Whether the store answers.
        rebuilt: The rebuilt handoffs of agents that vanished.
        agent_buckets: For `limit_rate`.
        stopping: Set when the server begins to stop; long polls and streams end.
        streams: Shared by long requests.

    Raises:
        ConfigurationError: The backend keeps no registrations, or no messages.
    """

    def __init__(
        self,
        backend: Backend,
        state_directory: str,
        *,
        admin_token: ServerSecret,
        hook_secret: ServerSecret,
        metrics_token: ServerSecret,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.backend = backend
        self.state_directory = state_directory
        self._admin_token = admin_token
        self._hook_secret = hook_secret
        self._metrics_token = metrics_token
        self.clock = clock
        self.registry = registry_of(backend)
        self.queue = queue_of(backend)
        # A queue on this machine waits for no database.
        if hasattr(self.queue, "patience_seconds"):
            self.queue.patience_seconds = SEND_SECONDS
        self.posted = PostedAgents(backend)
        self.threads = ThreadPoolExecutor(READING_THREADS, "ultramon-readings")
        self.rebuilt = RebuiltHandoffs(backend)
        self.metrics = MetricsSource(backend, clock=clock, state_directory=state_directory)
        self.agent_buckets = TokenBuckets(clock=clock.monotonic)
        self.stopping = threading.Event()
        self.streams = Streams(backend, self.stopping)
        self.readiness = Readiness(backend, state_directory, self.stopping, clock)

    @property
    def admin_token(self) -> str:
        """Allows everything.

        Raises:
            StateError: See `ServerSecret.value`; also for the next two.
        """
        return self._admin_token.value

    @property
    def hook_secret(self) -> str:
        """Allows the routes under ``/hooks``."""
        return self._hook_secret.value

    @property
    def metrics_token(self) -> str:
        """Allows ``GET /metrics``."""
        return self._metrics_token.value

    def limit_rate(self, agent_id: str, problem: str) -> None:
        """Count a post or message of an agent.

        Raises:
            HTTPException: 429, there were too many; says the problem.
        """
        if not self.agent_buckets.take(agent_id):
            raise HTTPException(429, problem, {"Retry-After": "1"})

    def now(self) -> float:
        """Return the time in epoch seconds."""
        return self.clock.now()
