"""The times that a store compares: leases, retries and expiries, by a clock that is never set.

A store has a clock of its own. `skew` says how far it is ahead of a machine's wall clock, so that a
step of the wall clock moves nothing that is stored. What another machine or boot has stored may
still lie too far ahead, so that every length counts from the first look at most: see `bounded`.
"""

from __future__ import annotations

NOTICED_SKEW_SECONDS = 1.0
"""Below it two clocks count as one: a measurement takes time itself."""


def skew(store_offset: float, offset: float) -> float:
    """Return how many seconds a store's clock is ahead of a wall clock.

    A time of the wall clock plus the skew is one of the store, whatever clock the caller goes by:
    that of a test, which stands elsewhere, stays as far away as it was.

    Args:
        store_offset: How far the store's clock is ahead of one that is never set.
        offset: The same of the wall clock.

    Returns:
        0.0 where they differ by less than a second.
    """
    seconds = store_offset - offset
    return seconds if abs(seconds) >= NOTICED_SKEW_SECONDS else 0.0


def bounded(until: float, length: float, at: float) -> float:
    """Return when a time that was set for so long is over, for a reader that looks now.

    No clock that counts can have set an end further ahead than its length. The reader stores an
    earlier end, so that the first look decides.

    Args:
        until: The end as it is stored.
        length: How long it was set for, in seconds.
        at: Now, by the clock of the store.
    """
    return min(until, at + length)
