"""Rate limits by token buckets. Standard library only."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

RATE_PER_SECOND = 50.0
BURST = 200.0
MAX_BUCKETS = 10_000


class TokenBuckets:
    """One bucket per key: it holds ``burst`` tokens and is refilled at a steady rate.

    Thread-safe and bounded: beyond 10,000 keys the least recently used one is forgotten, which
    leaves it a full bucket.

    Args:
        rate_per_second: Tokens added per second.
        burst: Tokens in a full bucket.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        rate_per_second: float = RATE_PER_SECOND,
        burst: float = BURST,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate_per_second
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        # Key to (tokens left, as of when), the least recently used first.
        self._buckets: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        """Return the number of keys with a bucket."""
        return len(self._buckets)

    def take(self, key: str) -> bool:
        """Take one token from the bucket of a key; False, at no cost, when it is empty."""
        with self._lock:
            now = self._clock()
            left, then = self._buckets.pop(key, (self._burst, now))
            left = min(self._burst, left + (now - then) * self._rate)
            allowed = left >= 1.0
            self._buckets[key] = (left - 1.0 if allowed else left, now)
            if len(self._buckets) > MAX_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
            return allowed
