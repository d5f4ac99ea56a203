"""The latest events of the journal, each as the few facts that pages draw."""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.state.event_words import event_words
from ultramon.system.timestamps import parse_time
from ultramon.system.wording import field

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend

MAX_EVENTS = 50_000
"""So many are kept; of older ones pages show nothing, and say so."""
PAGE_EVENTS = 500


class PastEvent(NamedTuple):
    """One event."""

    at: float
    """Epoch seconds."""
    kind: str
    agent_id: str
    run: str
    generation: int
    epoch: int
    level: str | None
    tokens: int | None
    """In the window; before the compaction where the event is one."""
    tokens_after: int | None
    """With a compaction, where it is known."""
    was_killed: bool
    """With the end of a context."""
    words: str


class EventReader:
    """Reads on in the journal; safe to use from several threads.

    Args:
        backend: The store.

    Attributes:
        dropped: How many older events are not kept.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._cursor: str | None = None
        # Read once, for pages by agent and by run: no store has a query for either.
        self._events: deque[PastEvent] = deque(maxlen=MAX_EVENTS)
        self.dropped = 0

    def latest(self, is_wanted: Callable[[PastEvent], bool], limit: int) -> list[PastEvent]:
        """Return the latest events that are wanted, the latest first.

        Raises:
            StateError: The store refused.
        """
        with self._lock:
            self._read_on()
            return list(islice(filter(is_wanted, reversed(self._events)), limit))

    def _read_on(self) -> None:
        while (page := self._backend.events(self._cursor, PAGE_EVENTS)).events:
            for event in page.events:
                # A full deque drops its oldest event without a sign, and pages say that older ones
                # are missing.
                self.dropped += len(self._events) == MAX_EVENTS
                self._events.append(_read(event))
            self._cursor = page.cursor


def _read(event: dict[str, Any]) -> PastEvent:
    handoff = event.get("handoff")
    # A compaction has two counts, before and after; a handoff has its own in the record.
    tokens = event.get("tokens", event.get("tokensBefore"))
    if tokens is None and isinstance(handoff, dict):
        tokens = handoff.get("tokens")
    level = event.get("level")
    return PastEvent(
        parse_time(event.get("occurredAt")) or 0.0,
        field(str(event.get("type"))),
        str(event.get("agentId")),
        str(event.get("run")),
        _whole(event.get("generation")) or 0,
        _whole(event.get("epoch")) or 1,
        None if level is None else field(str(level)),
        _whole(tokens),
        _whole(event.get("tokensAfter")),
        event.get("killed") is True,
        event_words(event),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
