"""The parts of a running server, made once when it starts."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ultramon.backends.queue import queue_of
from ultramon.errors import AgentNotFoundError
from ultramon.server.rebuilt_handoffs import RebuiltHandoffs
from ultramon.server.stream_slots import Streams
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.ids import check_agent_id

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.backends.queue import Queue
    from ultramon.server.posted_agents import PostedAgents
    from ultramon.server.rate_limits import TokenBuckets
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts of a running server.

    Attributes:
        backend: Holds agents, messages and credentials.
        posted: Writes posted readings into the states of agents.
        admin_token: Allows everything.
        hook_secret: Allows the routes under ``/hooks``.
        state_directory: Holds the files of this server.
        agent_buckets: The rate limit of posts and messages per agent; beyond it the answer is 429.
        clock: For tests.
        stopping: Set when the server begins to stop; long polls and streams end.
        streams: Shared by long requests.
    """

    backend: Backend
    posted: PostedAgents
    admin_token: str = field(repr=False)
    hook_secret: str = field(repr=False)
    state_directory: str
    agent_buckets: TokenBuckets
    clock: Clock = SYSTEM_CLOCK
    stopping: threading.Event = field(default_factory=threading.Event, repr=False)
    streams: Streams = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Make the parts that other parts are made of."""
        object.__setattr__(self, "streams", Streams(self.backend, self.stopping))

    def load(self, agent_id: str) -> StateRecord:
        """Return the state of an agent.

        Raises:
            InvalidAgentIdError: It is no agent id.
            AgentNotFoundError: There is no such agent.
            StateError: Its state cannot be read.
        """
        record = self.backend.load(check_agent_id(agent_id)).record
        if record is None:
            raise AgentNotFoundError(agent_id)
        return record

    def now(self) -> float:
        """Return the time in epoch seconds."""
        return self.clock.now()

    @property
    def queue(self) -> Queue:
        """The messages of the backend."""
        return queue_of(self.backend)

    @cached_property
    def rebuilt(self) -> RebuiltHandoffs:
        """The rebuilt handoffs of agents that vanished."""
        return RebuiltHandoffs(self.backend)
