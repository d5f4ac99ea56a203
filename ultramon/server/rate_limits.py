"""How often somebody may ask, and whose connection keeps its place. Standard library only."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Scope

RATE_PER_SECOND = 50.0
BURST = 200.0
MAX_BUCKETS = 10_000
MAX_UNPROVEN_REQUESTS = 10
"""How many requests in a row one connection may make without a valid token."""
STANDING = "ultramon_standing"
"""Where the state of a request holds the `Standing` of its connection."""


class TokenBuckets:
    """One bucket per key: it holds ``burst`` takes and fills again at a steady rate.

    Thread-safe, and bounded: of more than 10,000 keys the one that asked longest ago is
    forgotten, which leaves it a full bucket.

    Args:
        rate_per_second: How many takes flow back in a second.
        burst: How many takes a full bucket holds.
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
        # Key to (takes left, as of when); a dict keeps the order in which they asked last.
        self._buckets: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        """Return how many keys are remembered."""
        return len(self._buckets)

    def take(self, key: str) -> bool:
        """Take once.

        Args:
            key: Whose bucket.

        Returns:
            False when the bucket is empty: too often. A refused take costs nothing.
        """
        with self._lock:
            now = self._clock()
            left, then = self._buckets.pop(key, (self._burst, now))
            left = min(self._burst, left + (now - then) * self._rate)
            allowed = left >= 1.0
            self._buckets[key] = (left - 1.0 if allowed else left, now)
            if len(self._buckets) > MAX_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
            return allowed


class Standing:
    """What the requests of one connection have proved.

    Attributes:
        is_known: Whether one of them had a valid token: the connection keeps its place.
        unproven: How many came since the last one that had.
    """

    __slots__ = ("is_known", "unproven")

    def __init__(self) -> None:
        self.is_known = False
        self.unproven = 0

    def count(self) -> None:
        """Count a request, before anything is known of it."""
        self.unproven += 1

    def prove(self) -> None:
        """Note that the present request has a valid token. From any thread."""
        self.is_known, self.unproven = True, 0

    @property
    def is_spent(self) -> bool:
        """Whether the present request is the last one that is answered."""
        return self.unproven >= MAX_UNPROVEN_REQUESTS


def standing_of(scope: Scope) -> Standing:
    """Return the standing of a request's connection; one of its own where nothing keeps any."""
    # The application may also be served by something else.
    standing: Standing = scope.setdefault("state", {}).setdefault(STANDING, Standing())
    return standing
