"""Whether the server can do its work: for load balancers, which then send requests elsewhere."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from ultramon.errors import StateError

if TYPE_CHECKING:
    import threading

    from ultramon.backends.base import Backend
    from ultramon.system.clock import Clock

CACHE_SECONDS = 1.0


class Readiness:
    """Checks the store at most once a second, in one thread: every peer may ask.

    Used on the event loop only.

    Args:
        backend: The store.
        state_directory: Of the server; it must be there and writable.
        stopping: Set when the server begins to stop.
        clock: For tests.
    """

    def __init__(
        self, backend: Backend, state_directory: str, stopping: threading.Event, clock: Clock
    ) -> None:
        self._backend = backend
        self._state_directory = state_directory
        self._stopping = stopping
        self._clock = clock
        self._checking = asyncio.Lock()
        self._problem: str | None = None
        self._fresh_until = float("-inf")

    async def problem(self) -> str | None:
        """Return why the server is not ready, at most a second old; None when it is."""
        if self._stopping.is_set():
            return "the server is stopping"
        # Peers may ask at once: one look at the store answers them all.
        async with self._checking:
            if self._clock.monotonic() >= self._fresh_until:
                self._problem = await run_in_threadpool(self._check)
                self._fresh_until = self._clock.monotonic() + CACHE_SECONDS
            return self._problem

    def _check(self) -> str | None:
        if not os.access(self._state_directory, os.R_OK | os.W_OK | os.X_OK):
            return f"{self._state_directory} is not there, or may not be written"
        try:
            self._backend.events(None, 1)
        except StateError as error:
            return str(error)
        return None
