"""A clock that only a test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ultramon.monitor.background import BackgroundSaver

START = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""


class FakeClock:
    """Time that only a test moves; moving it runs the background work of the monitors on it.

    Args:
        start: Wall time to begin with, epoch seconds.

    Attributes:
        saver: Saves and beats for the monitors on this clock; None until there is one.
    """

    def __init__(self, start: float = START) -> None:
        self._start = start
        self._monotonic = 0.0
        self.saver: BackgroundSaver | None = None

    def now(self) -> float:
        """Return epoch seconds."""
        return self._start + self._monotonic

    def monotonic(self) -> float:
        """Return the seconds that `advance` has moved this clock."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass: saves and heartbeats happen in the order and at the times they are due.

        Args:
            seconds: 0 or more; 0 does what is due already.

        Raises:
            ValueError: Negative; only the wall clock can go back, see `jump`.
        """
        if not seconds >= 0:
            raise ValueError(f"time passes forwards only, not by {seconds} s; see jump()")
        until = self._monotonic + seconds
        # Asked anew each time: what was due may have planned the next save.
        while self.saver is not None:
            due = self.saver.next_due()
            if due is None or due > until:
                break
            # What was due before happens now: this clock does not go back.
            self._monotonic = max(due, self._monotonic)
            self.saver.run_due()
        self._monotonic = until

    def jump(self, seconds: float) -> None:
        """Set only the wall clock, forwards or back, as a person or a time server does."""
        self._start += seconds
