"""Events of the journal on their way to a fleet's handlers: what these get, and who reads on."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ultramon.backends.lease_holder import name_holder
from ultramon.errors import StateError
from ultramon.state.events import ThresholdEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from ultramon.backends.base import Backend
    from ultramon.fleet import Fleet
    from ultramon.monitor.handoff import HandoffRecord
    from ultramon.state.events import Event
    from ultramon.state.models import AgentState
    from ultramon.system.clock import Clock

Item = TypeVar("Item")

_log = logging.getLogger("ultramon.fleet")

LEASE_SECONDS = 30.0
"""A fleet that vanished, and cannot be proved to be gone, keeps its consumer name so long."""
RENEW_SECONDS = LEASE_SECONDS / 3
CHANGE_CHECK_SECONDS = 0.05
"""How often a running fleet looks whether an event came, between its polls."""

EVENT_NAMES = (
    "prepare_handoff",
    "force_return",
    "handoff_ready",
    "ended",
    "stale",
    "recovered",
    "lost",
    "started",
    "no_progress",
)
_NAMES = {
    "agent_started": ("started",),
    "agent_stopped": ("ended",),
    "agent_stale": ("stale",),
    "agent_recovered": ("recovered",),
    "agent_lost": ("lost", "ended"),
    "agent_expired": ("ended",),
    "agent_refused": ("ended",),
    "handoff_ready": ("handoff_ready",),
}


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """One thing that happened, as a handler gets it.

    Attributes:
        name: One of `EVENT_NAMES`.
        event: The event as it stands in the journal; ``event.event_id`` is for idempotence.
        agent_id: The agent.
        state: The agent's state when the event is delivered; None when there is none to read.
        handoff: With ``handoff_ready`` and ``no_progress``; `HandoffRecord.claim` it. With ``lost``
            and ``ended``: the last one of that life, which was delivered before; None without one.
        handoff_follows: With ``ended``: whether the agent may still leave a handoff. Only where the
            outcome is ``expired``: the agent runs on, and its life closes with an end of its own.
        outcome: With ``ended`` and ``lost``.
        exit: With ``ended`` and ``lost``: how an attached process ended (``returncode``,
            ``signal``, ``outOfMemory``), or the ``error`` that ended the agent.
    """

    name: str
    event: Event
    agent_id: str
    state: AgentState | None = None
    handoff: HandoffRecord | None = None
    handoff_follows: bool = False
    outcome: str | None = None
    exit: dict[str, Any] | None = None


def names_of(event: Event) -> tuple[str, ...]:
    """Return the names under which an event of the journal is delivered; often none."""
    if isinstance(event, ThresholdEvent):
        told = event.type == "context_threshold_reached" and event.action in EVENT_NAMES
        return (event.action,) if told else ()
    return _NAMES.get(event.type, ())


def has_news(backend: Backend, mark: object) -> bool:
    """Return whether events may have been stored since a change mark; None = no mark was taken.

    While the store refuses there are none: the next poll says what is wrong.
    """
    try:
        return mark is not None and backend.change_mark() != mark
    except StateError:
        return False


class Consumer:
    """A reader of the journal under a name that one reader holds at a time.

    Args:
        backend: Where the journal is.
        name: Cursor and memory belong to it, whoever holds it.
        clock: For the lease.
        remember: Called with the stored memory when the name comes from somebody else.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        clock: Clock,
        remember: Callable[[dict[str, Any]], None],
    ) -> None:
        self._backend = backend
        self._name = name
        self._clock = clock
        self._remember = remember
        self._pid = os.getpid()
        self._holder = name_holder()
        self._held_at: float | None = None
        self._cursor: str | None = None
        self._behind_next: str | None = None
        self._acknowledged: str | None = None

    @property
    def cursor(self) -> str | None:
        """Behind the last event that was moved on from: the next one begins here."""
        return self._cursor

    def holds(self) -> bool:
        """Return whether the name is ours and the lease need not be renewed yet."""
        self._start_anew_after_fork()
        held_at = self._held_at
        return held_at is not None and 0 <= self._clock.now() - held_at < RENEW_SECONDS

    def _start_anew_after_fork(self) -> None:
        # The parent may go on with the name, or end, which must not free what the child holds.
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._holder = name_holder()
            self._held_at = None

    def take_hold(self) -> bool:
        """Become or stay the holder of the name; False while another one's lease runs."""
        if self.holds():
            return True
        now = self._clock.now()
        left = self._backend.subscribe(
            self._name, self._holder, now=now, lease_seconds=LEASE_SECONDS
        )
        if left is None:
            self._held_at = None
            return False
        if self._held_at is None or left.cursor != self._acknowledged:
            self._cursor = self._acknowledged = left.cursor
            self._remember(left.memory)
        self._held_at = now
        return True

    def read(self) -> dict[str, Any] | None:
        """Return the next event, None when there is none yet; the same one until `move_on`."""
        page = self._backend.events(self._cursor, 1)
        self._behind_next = page.cursor
        return page.events[0] if page.events else None

    def move_on(self) -> None:
        """Be done with the event read last."""
        self._cursor = self._behind_next

    def acknowledge(self, memory: dict[str, Any]) -> bool:
        """Store how far was read, with what to remember; False when the name is lost."""
        self._start_anew_after_fork()
        cursor = self._cursor
        if cursor is None or cursor == self._acknowledged:
            return True
        if not self._backend.acknowledge(self._name, self._holder, cursor, memory):
            self._held_at = None
            return False
        self._acknowledged = cursor
        return True

    def close(self) -> None:
        """Give the name up; where the store refuses, the lease runs out by itself."""
        self._start_anew_after_fork()
        if self._held_at is None:
            return
        self._held_at = None
        try:
            self._backend.unsubscribe(self._name, self._holder)
        except StateError as error:
            _log.warning("consumer %s stays taken for a while: %s", self._name, error)


class Watch:
    """What happens in a fleet, one event after the other; ends when the fleet is stopped."""

    def __init__(self, fleet: Fleet, *, acknowledge_all: bool) -> None:
        self._fleet = fleet
        self._acknowledge_all = acknowledge_all

    def __iter__(self) -> Iterator[FleetEvent]:
        fleet = self._fleet
        try:
            while True:
                try:
                    yield from fleet.step(acknowledge_all=self._acknowledge_all)
                except StateError as error:
                    fleet.complain(error)
                fleet.wait()
                if fleet.is_stopping:
                    return
        finally:
            fleet.close()

    async def __aiter__(self) -> AsyncIterator[FleetEvent]:
        fleet = self._fleet
        try:
            while True:
                try:
                    async for event in fleet.step_async(acknowledge_all=self._acknowledge_all):
                        yield event
                except StateError as error:
                    fleet.complain(error)
                while fleet.may_rest():
                    await asyncio.sleep(CHANGE_CHECK_SECONDS)
                if fleet.is_stopping:
                    return
        finally:
            fleet.close()


async def next_in_thread(items: Iterator[Item]) -> Item | None:
    """Return the next item, None at the end; a cancelled caller waits for the thread."""
    running = asyncio.ensure_future(asyncio.to_thread(next, items, None))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
