"""What the routes work with, made once when the server starts."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ultramon.server.rebuilt_handoffs import RebuiltHandoffs
from ultramon.server.stream_slots import Streams
from ultramon.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.server.posted_agents import PostedAgents
    from ultramon.server.rate_limits import TokenBuckets
    from ultramon.system.clock import Clock


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts of a running server.

    Attributes:
        backend: Where agents, messages and credentials are.
        posted: Takes posts into the states of agents.
        admin_token: Who sends it may do everything.
        hook_secret: Who sends it may call the routes under ``/hooks``.
        state_directory: Where the files of this server are.
        agent_buckets: How often one agent may post; what is beyond is answered 429.
        clock: For tests.
        stopping: Set when the server begins to stop: what waits or streams comes to its end.
        streams: What requests that last share.
    """

    backend: Backend
    posted: PostedAgents
    admin_token: str = field(repr=False)
    hook_secret: str = field(repr=False)
    state_directory: str
    agent_buckets: TokenBuckets
    clock: Clock = SYSTEM_CLOCK
    stopping: threading.Event = field(default_factory=threading.Event, repr=False)
    streams: Streams = field(default_factory=Streams, repr=False)

    @cached_property
    def rebuilt(self) -> RebuiltHandoffs:
        """The handoffs of agents that vanished."""
        return RebuiltHandoffs(self.backend)
