"""The clock: wall time for stamps, monotonic time for intervals."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The contract of a clock. `ultramon.testing.FakeClock` is the other one."""

    def now(self) -> float:
        """Return epoch seconds, UTC. May jump."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""


class SystemClock:
    """The clock of the operating system."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


SYSTEM_CLOCK = SystemClock()
