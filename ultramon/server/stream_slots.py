"""Slots of long requests, and one check for changes of the store that all of them share.

They read in threads of their own, so that they never delay a short request.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import anyio
from fastapi import HTTPException

from ultramon.backends.queue import can_listen, listening

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Hashable, Iterator

    from ultramon.backends.base import Backend
    from ultramon.backends.queue import Queue

    Found = TypeVar("Found")

CHECK_SECONDS = 0.05
"""The interval between two checks for changes of the store."""
BEAT_SECONDS = 15.0
MAX_STREAMS = 64
"""Together with the waiting claims fewer than the connections of the server."""
MAX_STREAMS_OF_ONE = 8
MAX_POLLS = 128
MAX_POLLS_OF_ONE = 32
_THREADS = 8


class Slots:
    """A limit on long requests of one kind. Used on the event loop only.

    Args:
        name: For the refusal.
        in_all: The limit for all callers together.
        of_one: The limit per caller.
    """

    def __init__(self, name: str, in_all: int, of_one: int) -> None:
        self._name = name
        self._in_all = in_all
        self._of_one = of_one
        self._taken: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        """Return the number of slots in use."""
        return self._taken.total()

    @contextmanager
    def one(self, caller: Hashable) -> Iterator[None]:
        """Hold a slot within the ``with`` block.

        Raises:
            HTTPException: 429, all slots are in use.
        """
        own = self._taken[caller]
        if own >= self._of_one or len(self) >= self._in_all:
            most = f"{own} of this caller" if own >= self._of_one else f"{self._in_all}"
            raise HTTPException(
                429, f"{most} {self._name} are open; end one first", {"Retry-After": "5"}
            )
        self._taken[caller] += 1
        try:
            yield
        finally:
            self._taken -= Counter([caller])  # a count of 0 goes


class Streams:
    """The state that long requests share. Used on the event loop only.

    Args:
        backend: The store.
        stopping: Set when the server stops.

    Attributes:
        beat_seconds: The interval between two comment lines of a stream.
        open: The slots of streams.
        polls: The slots of waiting claims.
    """

    def __init__(self, backend: Backend, stopping: threading.Event) -> None:
        self._backend = backend
        self._stopping = stopping
        self.beat_seconds = BEAT_SECONDS
        self.open = Slots("streams", MAX_STREAMS, MAX_STREAMS_OF_ONE)
        self.polls = Slots("waiting claims", MAX_POLLS, MAX_POLLS_OF_ONE)
        # Apart from the threads of short requests: a slow store must not leave those without any.
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._checking = asyncio.Lock()
        self._checked_at = 0.0
        self._mark: object = None

    async def read(self, read: Callable[[], Found]) -> tuple[object, Found]:
        """Read in a thread; return a change mark for `wait`, and the result."""

        def marked() -> tuple[object, Found]:
            # Before reading: a change in between makes it differ.
            mark = self._backend.change_mark()
            return mark, read()

        return await anyio.to_thread.run_sync(marked, limiter=self._threads)

    async def wait(
        self, mark: object, seconds: float, arrived: asyncio.Event | None = None
    ) -> None:
        """Wait until something may have been stored, time is over, or the server stops.

        Args:
            mark: From `read`.
            seconds: The longest wait.
            arrived: From `arrivals`; then the store is not checked for changes.
        """
        until = time.monotonic() + seconds
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            if arrived is None:
                # One check serves all streams, however many wait.
                await asyncio.sleep(min(CHECK_SECONDS, left))
                if await self._mark_now() != mark:
                    return
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(arrived.wait(), min(CHECK_SECONDS, left))
                return

    @contextmanager
    def arrivals(self, queue: Queue, recipient: str) -> Iterator[asyncio.Event | None]:
        """Yield an event that is set when a recipient may have a message; None without one."""
        if not can_listen(queue):
            yield None
            return
        arrived, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(arrived.set)

        with listening(queue, recipient, wake):
            yield arrived

    async def _mark_now(self) -> object:
        """Return a mark no older than `CHECK_SECONDS`."""
        async with self._checking:
            now = time.monotonic()
            if now - self._checked_at >= CHECK_SECONDS:
                self._mark = await anyio.to_thread.run_sync(
                    self._backend.change_mark, limiter=self._threads
                )
                self._checked_at = now
        return self._mark
