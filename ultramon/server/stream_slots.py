"""What requests that last share: how many there may be, and one look at the store for all of them.

They look in threads of their own, so that they never hold up a request that is quick.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import anyio
from fastapi import HTTPException

from ultramon.backends.queue import can_listen, listening

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from ultramon.backends.base import Backend
    from ultramon.backends.queue import Queue
    from ultramon.server.caller import Caller

    Found = TypeVar("Found")

CHECK_SECONDS = 0.05
"""How often those who wait look whether anything was stored."""
BEAT_SECONDS = 15.0
MAX_STREAMS = 64
"""With the waiting claims fewer than the connections that there may be."""
MAX_STREAMS_OF_ONE = 8
MAX_POLLS = 128
MAX_POLLS_OF_ONE = 32
_THREADS = 8


class Slots:
    """How many requests of one kind may last at a time. Used on the event loop only.

    Args:
        what: What they are, for the refusal.
        in_all: Of all callers.
        of_one: Of one caller.
    """

    def __init__(self, what: str, in_all: int, of_one: int) -> None:
        self._what = what
        self._in_all = in_all
        self._of_one = of_one
        self._taken: dict[Caller, int] = {}

    def __len__(self) -> int:
        """Return how many last now."""
        return sum(self._taken.values())

    @contextmanager
    def one(self, caller: Caller) -> Iterator[None]:
        """Hold a place within the ``with`` block.

        Raises:
            HTTPException: 429, all places are taken.
        """
        own = self._taken.get(caller, 0)
        if own >= self._of_one or len(self) >= self._in_all:
            most = f"{own} of this caller" if own >= self._of_one else f"{self._in_all}"
            raise HTTPException(
                429, f"{most} {self._what} are open; end one first", {"Retry-After": "5"}
            )
        self._taken[caller] = own + 1
        try:
            yield
        finally:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]


class Streams:
    """What requests that last have in common. Used on the event loop only.

    Args:
        beat_seconds: How often a stream says that it lives, and whether its token still is good.

    Attributes:
        open: The streams.
        polls: The claims that wait.
    """

    def __init__(self, beat_seconds: float = BEAT_SECONDS) -> None:
        self.beat_seconds = beat_seconds
        self.open = Slots("streams", MAX_STREAMS, MAX_STREAMS_OF_ONE)
        self.polls = Slots("waiting claims", MAX_POLLS, MAX_POLLS_OF_ONE)
        # Apart from the threads of quick requests: a slow store must not leave those without any.
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._looking = asyncio.Lock()
        self._looked_at = 0.0
        self._mark: object = None

    async def look(self, backend: Backend, read: Callable[[], Found]) -> tuple[object, Found]:
        """Read in a thread; return what was found, and a mark to wait for news with."""

        def marked() -> tuple[object, Found]:
            # Taken before reading: what is stored in between changes it.
            mark = backend.change_mark()
            return mark, read()

        return await anyio.to_thread.run_sync(marked, limiter=self._threads)

    async def wait(
        self,
        backend: Backend,
        mark: object,
        seconds: float,
        stopping: threading.Event,
        heard: asyncio.Event | None = None,
    ) -> None:
        """Wait until something may have been stored, time is over, or the server stops.

        Args:
            backend: The store.
            mark: As `look` returned it.
            seconds: How long at most.
            stopping: Set when the server stops.
            heard: Set by a store that tells; then it is not asked. See `hearing`.
        """
        until = time.monotonic() + seconds
        while not stopping.is_set() and (left := until - time.monotonic()) > 0:
            if heard is None:
                await asyncio.sleep(min(CHECK_SECONDS, left))
                if await self._mark_now(backend) != mark:
                    return
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(heard.wait(), min(CHECK_SECONDS, left))
                return

    @contextmanager
    def hearing(self, queue: Queue, recipient: str) -> Iterator[asyncio.Event | None]:
        """Give an event that is set when a recipient may have a message; None where none is."""
        if not can_listen(queue):
            yield None
            return
        heard, loop = asyncio.Event(), asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(heard.set)

        with listening(queue, recipient, tell):
            yield heard

    async def _mark_now(self, backend: Backend) -> object:
        """Return a mark no older than the time between two looks."""
        async with self._looking:
            now = time.monotonic()
            if now - self._looked_at >= CHECK_SECONDS:
                self._mark = await anyio.to_thread.run_sync(
                    backend.change_mark, limiter=self._threads
                )
                self._looked_at = now
        return self._mark
