"""Events of the journal on their way to handlers: judged, named, delivered, acknowledged."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from ultramon import signals
from ultramon.backends.claims import release_abandoned
from ultramon.errors import StateError
from ultramon.fleet.assignments import Assignments, is_end
from ultramon.fleet.consumer import RENEW_SECONDS, Consumer, Item, has_news
from ultramon.fleet.events import FleetEvent, names_of
from ultramon.fleet.failure_detector import FailureDetector
from ultramon.fleet.journal_event import JournalEvent
from ultramon.fleet.run_view import RunView
from ultramon.hosts.gone_sessions import GoneSessions
from ultramon.state.events import HandoffEvent, parse_event
from ultramon.state.models import is_whole, state_of
from ultramon.system.environment import disabled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from ultramon.backends.base import Backend
    from ultramon.handoff import HandoffRecord
    from ultramon.state.events import Event
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock

    Delivery = tuple[FleetEvent, list[Callable[[FleetEvent], Any]]]

_log = logging.getLogger("ultramon.fleet")

CHANGE_CHECK_SECONDS = 0.05
"""How often a running fleet checks for new events between polls."""
KEPT_FAILURES = 100

_SIGNALS = {
    "agent_stale": signals.agent_stale,
    "agent_recovered": signals.agent_recovered,
    "agent_lost": signals.agent_lost,
}


class Deliveries:
    """Delivers the events of one run to handlers, at least once per consumer name.

    Args:
        backend: The store.
        run: The run.
        consumer: Name under which events are acknowledged.
        clock: For leases, verdicts and the interval.
        interval_seconds: Longest time between two polls.
        max_generations_without_progress: As for `Fleet`.

    Attributes:
        handlers: By event name.
        failures: The last handler errors, oldest first.
        agents: The agents of the run at the last poll.
        detector: Judges them.
        assignments: The work they were assigned.
        stopping: Set to end the rounds after the present poll.
    """

    def __init__(
        self,
        backend: Backend,
        run: str,
        consumer: str,
        clock: Clock,
        *,
        interval_seconds: float,
        max_generations_without_progress: int,
    ) -> None:
        self.handlers: dict[str, list[Callable[[FleetEvent], Any]]] = {}
        self.failures: list[tuple[FleetEvent, Exception]] = []
        self.agents = RunView(backend, run)
        self.detector = FailureDetector(
            run, f"fleet:{consumer}", clock, max_generations_without_progress
        )
        self.assignments = Assignments(backend, run)
        self._gone = GoneSessions(backend)
        self.stopping = threading.Event()
        self._backend = backend
        self._run = run
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._max_idle = max_generations_without_progress
        self._consumer = Consumer(backend, f"{run}/{consumer}", clock, self._remember)
        self._mark: object = None
        self._next_poll_at = 0.0
        self._trouble = ""

    def step(self, *, acknowledge_all: bool = False) -> Iterator[FleetEvent]:
        """Poll once, one event at a time; asking for the next acknowledges the last.

        Args:
            acknowledge_all: Acknowledge at once events that have no handler, too.
        """
        for event, handlers in self._deliveries(acknowledge_all):
            for handler in handlers:
                with self._guarded(event):
                    result = handler(event)
                    if inspect.iscoroutine(result):
                        asyncio.run(result)
            yield event

    async def step_async(self, *, acknowledge_all: bool = False) -> AsyncIterator[FleetEvent]:
        """Do as `step`, awaiting async handlers in the running loop; that never waits."""
        deliveries = self._deliveries(acknowledge_all)
        while (delivery := await next_in_thread(deliveries)) is not None:
            event, handlers = delivery
            for handler in handlers:
                with self._guarded(event):
                    result = handler(event)
                    if inspect.iscoroutine(result):
                        await result
            yield event

    @property
    def holder(self) -> str:
        """The name under which this object holds the consumer name."""
        return self._consumer.holder

    def holds_lease(self) -> bool:
        """Return whether this object holds the consumer name for certain."""
        return self._consumer.holds()

    def close(self) -> None:
        """Give the consumer name up."""
        self._consumer.close()

    def may_rest(self) -> bool:
        """Return whether neither an event nor the interval calls for a poll."""
        return (
            not self.stopping.is_set()
            and self._clock.monotonic() < self._next_poll_at
            and not has_news(self._backend, self._mark)
        )

    def wait(self) -> None:
        """Wait for the next event, the interval, or `stop`."""
        while self.may_rest():
            self.stopping.wait(CHANGE_CHECK_SECONDS)

    def log_refusal(self, error: StateError) -> None:
        """Log that the store refuses, once until it refuses for another reason."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            _log.warning("run %s is not watched for now: %s", self._run, error)

    def _deliveries(self, acknowledge_all: bool) -> Iterator[Delivery]:
        """Yield each event with its handlers; asking for the next acknowledges it."""
        self._mark = None
        self._next_poll_at = self._clock.monotonic() + min(self._interval_seconds, RENEW_SECONDS)
        if disabled() or not self._consumer.take_hold():
            return
        # Before anything is read: what is stored during this poll calls for another one.
        self._mark = self._backend.change_mark()
        self._store_verdicts()
        while self._consumer.holds():
            payload = self._consumer.read()
            if payload is None:
                break
            handled = False
            is_own = payload.get("run") == self._run
            for event in self._as_fleet_events(JournalEvent.of(payload)) if is_own else ():
                handlers = self.handlers.get(event.name, [])
                handled = handled or acknowledge_all or bool(handlers)
                yield event, handlers
            self._consumer.move_on()
            # The others are acknowledged with the last one: to read them again does no harm.
            if handled and not self._consumer.acknowledge(self._memory()):
                return
        else:
            # The next poll comes at once: it renews the lease and judges every agent again.
            self._next_poll_at = 0.0
        self._consumer.acknowledge(self._memory())
        self._trouble = ""

    def _memory(self) -> dict[str, Any]:
        return {**self.detector.memory, "assignments": self.assignments.memory}

    def _remember(self, memory: dict[str, Any]) -> None:
        self.detector.remember(memory)
        self.assignments.remember(memory.get("assignments", {}))

    def _store_verdicts(self) -> None:
        agents = self.agents
        with agents.lock:
            events = self._judge()
            # A process is gone: the end of a session may be in its transcript alone, and an agent
            # may have saved after its state was read.
            if self.detector.in_doubt:
                self._gone.end(agents.records[one] for one in self.detector.gone_agents)
                events = self._judge()
            unstarted = list(agents.processes.without_agent())
            ended = agents.processes.take_ended()
            # What agents could not store themselves came before the verdicts on them.
            events[:0] = agents.waiting_events()
            known = [agents.records.get(agent_id) for agent_id in {e["agentId"] for e in events}]
            whole = [record for record in known if record is not None and is_whole(record)]
        # A handoff that is offered again comes before the end of the successor that never began.
        release_abandoned(
            self._backend,
            source=self.detector.source,
            now=self._clock.now(),
            run=self._run,
            ended=ended,
        )
        if events:
            self._backend.append_events(events, whole)
        for agent_id in unstarted:
            agents.processes.forget(agent_id)

    def _judge(self) -> list[dict[str, Any]]:
        self.agents.refresh()
        self.assignments.begin_poll(self._consumer.cursor)
        return self.detector.judge(self.agents, self.assignments)

    def _as_fleet_events(self, payload: JournalEvent) -> Iterator[FleetEvent]:
        try:
            event = parse_event(payload.json)
        except ValidationError as error:
            _log.warning("run %s: an event is skipped, it is not valid: %s", self._run, error)
            return
        handoff = None
        if isinstance(event, HandoffEvent):
            if payload.handoff is None:
                return
            handoff = payload.handoff.bind(self._backend)
        names = names_of(event)
        record = self.agents.state_after(payload) if names else None
        self.assignments.read(payload, self._consumer.cursor)
        if is_end(payload):
            yield from self._end(payload, event, record)
            return
        self.detector.read(payload, record)
        self._emit_verdict(event)
        # In the place of `handoff_ready`: a handler that starts successors stops by itself.
        if handoff is not None and self._is_idle(handoff):
            names = ("no_progress",)
        state = None if record is None else state_of(record)
        for name in names:
            yield FleetEvent(
                name,
                event,
                event.agent_id,
                state=state,
                handoff=handoff,
                handoff_follows=event.type == "agent_expired",
                outcome=payload.outcome,
            )
        ended_with = event.ended_with if isinstance(event, HandoffEvent) else None
        if ended_with is None:
            return
        end = JournalEvent.of(ended_with)
        if self.assignments.is_awaited(end):
            yield from self._deliver_end(end, parse_event(ended_with), record)
            self.assignments.forget(end)

    def _end(
        self, payload: JournalEvent, event: Event, record: StateRecord | None
    ) -> Iterator[FleetEvent]:
        """Deliver the end of a life once, after the handoff of the work it leaves."""
        agent_id, generation = event.agent_id, event.generation
        if generation or event.type == "agent_refused":
            self.agents.processes.note_end(agent_id, generation)
        is_second = self.detector.ended_before(payload)
        if event.type == "agent_stopped" and not is_second:
            if self.detector.takes_back_end(payload, self.agents):
                return
        elif event.type == "agent_refused" and record is not None and record.active:
            return  # the agent that was there first is still active
        self.detector.read(payload, record)
        self._emit_verdict(event)
        if not is_second:
            sound = None if record is None or state_of(record) is None else record
            source, now = self.detector.source, self._clock.now()
            rest = self.assignments.rest_of(payload, sound, source, now)
            if rest is None:
                yield from self._deliver_end(payload, event, record)
            else:
                self._backend.append_events([rest], [] if sound is None else [sound])
            self.assignments.forget(payload, is_awaited=rest is not None)
        if event.type == "agent_stopped":
            self.detector.note_end(payload, record)

    def _deliver_end(
        self, payload: JournalEvent, event: Event, record: StateRecord | None
    ) -> Iterator[FleetEvent]:
        left = self.assignments.handoff_of(payload)
        handoff = None if left is None else left.bind(self._backend)
        state = None if record is None else state_of(record)
        ended_with = state.exit if state is not None and event.type == "agent_stopped" else None
        for name in names_of(event):
            yield FleetEvent(
                name,
                event,
                event.agent_id,
                state=state,
                handoff=handoff,
                outcome=payload.outcome,
                exit=cast("dict[str, Any] | None", payload.exit) or ended_with,
            )

    def _emit_verdict(self, event: Event) -> None:
        # Only the consumer that reached a verdict signals it: the event bears its name.
        if event.source == self.detector.source and event.type in _SIGNALS:
            signals.emit(_SIGNALS[event.type], event.agent_id, event)

    def _is_idle(self, handoff: HandoffRecord) -> bool:
        return self.assignments.deaths_before_start(handoff) >= self._max_idle or (
            self.detector.goes_in_circles(handoff, self.agents.records)
        )

    @contextmanager
    def _guarded(self, event: FleetEvent) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a handler must not stop the others
            # Acknowledged all the same: an event that no handler survives would block the run.
            self.failures.append((event, error))
            del self.failures[:-KEPT_FAILURES]
            _log.exception("handler of %s for agent %s raised", event.name, event.agent_id)


@dataclass(frozen=True, slots=True)
class Watch:
    """The events of a fleet, one after the other, until the fleet is stopped."""

    deliveries: Deliveries
    acknowledge_all: bool

    def __iter__(self) -> Iterator[FleetEvent]:
        deliveries = self.deliveries
        try:
            while True:
                try:
                    yield from deliveries.step(acknowledge_all=self.acknowledge_all)
                except StateError as error:
                    deliveries.log_refusal(error)
                deliveries.wait()
                if deliveries.stopping.is_set():
                    return
        finally:
            deliveries.close()

    async def __aiter__(self) -> AsyncIterator[FleetEvent]:
        deliveries = self.deliveries
        try:
            while True:
                try:
                    async for event in deliveries.step_async(acknowledge_all=self.acknowledge_all):
                        yield event
                except StateError as error:
                    deliveries.log_refusal(error)
                while deliveries.may_rest():
                    await asyncio.sleep(CHANGE_CHECK_SECONDS)
                if deliveries.stopping.is_set():
                    return
        finally:
            deliveries.close()


async def next_in_thread(items: Iterator[Item]) -> Item | None:
    """Return the next item, None at the end; a cancelled caller waits for the thread."""
    running = asyncio.ensure_future(asyncio.to_thread(next, items, None))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # A generator that runs in a thread cannot be used or closed by another caller.
        await asyncio.wait({running})
        raise
