"""The orchestrator's side: what happens to the agents of a run, delivered to your handlers."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from ultramon import signals
from ultramon.backends.claims import release_abandoned
from ultramon.context.levels import as_ladder
from ultramon.errors import (
    AgentAlreadyRunningError,
    AgentNotFoundError,
    ConfigurationError,
    StateError,
)
from ultramon.fleet.assignments import Assignments, is_end
from ultramon.fleet.child_processes import watch_process
from ultramon.fleet.consumer import RENEW_SECONDS, Consumer, has_news
from ultramon.fleet.events import EVENT_NAMES, FleetEvent, names_of
from ultramon.fleet.failure_detector import FailureDetector
from ultramon.fleet.run_view import RunView
from ultramon.fleet.watch import CHANGE_CHECK_SECONDS, Watch, next_in_thread
from ultramon.monitor.handoff import HandoffRecord
from ultramon.routing import NOTIFY_THRESHOLDS
from ultramon.state.events import HandoffEvent, parse_event
from ultramon.state.liveness import ENDED, LOST, STALE, judge
from ultramon.state.models import AgentState, is_whole, state_of
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.environment import disabled, given_or_named
from ultramon.system.ids import check_agent_id, random_hex
from ultramon.system.processes import this_host
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from os import PathLike

    from ultramon.backends.base import Backend
    from ultramon.fleet.child_processes import Attachable
    from ultramon.state.events import Event
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock

    Handler = TypeVar("Handler", bound=Callable[..., Any])
    Delivery = tuple[FleetEvent, list[Callable[[FleetEvent], Any]]]

_log = logging.getLogger("ultramon.fleet")

KEPT_FAILURES = 100

_SIGNALS = {
    "agent_stale": signals.agent_stale,
    "agent_recovered": signals.agent_recovered,
    "agent_lost": signals.agent_lost,
}


class Fleet:
    """Looks after the agents of one run.

    Events are delivered at least once per consumer name and acknowledged when the handlers return.
    One fleet object holds a consumer name at a time, across processes; others with the same name
    stand by. A handler that raises is logged and listed in `failures`, and stops nobody.

    Args:
        run: Whose agents; None = ``ULTRAMON_RUN``, else ``default``.
        consumer: Name under which events are acknowledged.
        backend: A backend or its URL; None = see `open_backend`.
        poll_interval_seconds: Longest time between two looks while running; at most 10 s count.
        max_generations_without_progress: When so many agents of one chain, one after the other,
            completed nothing, ``no_progress`` is delivered instead of ``handoff_ready``.
        clock: For tests; None = the system's.

    Attributes:
        failures: The last handler errors of this object, oldest first.
    """

    def __init__(
        self,
        run: str | None = None,
        *,
        consumer: str = "main",
        backend: Backend | str | None = None,
        poll_interval_seconds: float = 1.0,
        max_generations_without_progress: int = 3,
        clock: Clock | None = None,
    ) -> None:
        from ultramon.backends.opening import open_backend

        self.run_name = given_or_named(run, "run", "ULTRAMON_RUN") or "default"
        check_agent_id(consumer, "consumer")
        if backend is None or isinstance(backend, str):
            backend = open_backend(backend)
        if not poll_interval_seconds > 0:
            raise ConfigurationError("poll_interval_seconds", poll_interval_seconds, "> 0")
        if max_generations_without_progress < 1:
            raise ConfigurationError(
                "max_generations_without_progress", max_generations_without_progress, ">= 1"
            )
        self.backend = backend
        self.failures: list[tuple[FleetEvent, Exception]] = []
        self._clock = clock or SYSTEM_CLOCK
        self._interval = poll_interval_seconds
        self._handlers: dict[str, list[Callable[[FleetEvent], Any]]] = {}
        self._detector = FailureDetector(
            self.run_name, f"fleet:{consumer}", self._clock, max_generations_without_progress
        )
        self._max_idle = max_generations_without_progress
        self._assignments = Assignments(backend, self.run_name)
        # Of agents that were given work and have no process yet: what was stored of them then.
        self._generations: dict[str, int] = {}
        self._consumer = Consumer(
            backend, f"{self.run_name}/{consumer}", self._clock, self._remember
        )
        self._agents = RunView(backend, self.run_name)
        self._mark: object = None
        self._next_poll_at = 0.0
        self._trouble = ""
        self._stopping = threading.Event()

    def on(self, name: str) -> Callable[[Handler], Handler]:
        """Return a decorator that has a handler called with a `FleetEvent`, sync or async.

        Raises:
            ValueError: There is no such event.
        """
        if name not in EVENT_NAMES:
            raise ValueError(f"no event {name!r}: choose one of {', '.join(EVENT_NAMES)}")

        def connect(handler: Handler) -> Handler:
            self._handlers.setdefault(name, []).append(handler)
            return handler

        return connect

    def assign(self, agent_id: str, work: Iterable[str | PathLike[str]] | HandoffRecord) -> None:
        """Store what an agent is given, before it is started; returns when it is durable.

        Whatever becomes of the agent, what it was given and did not record as done is handed over:
        in its own handoff, or in one that the fleet makes when it dies before its plan is stored,
        or ends in any way without it. The agent need not know of it.

        Given a handoff, an agent that dies before its start leaves that one again. One that was not
        started by this fleet, and does not start within ten minutes, is ``lost``.

        Args:
            agent_id: The agent that will be started next. Given twice, it has both.
            work: Items, named as its plan will name them; or the handoff that it is to continue.

        Raises:
            AgentAlreadyRunningError: It lives: work is given before the start.
            ConfigurationError: An item is no text or path, or all are more than a plan holds.
            StateError: The store refused; nothing is given.
        """
        check_agent_id(agent_id)
        if disabled():
            return
        record, is_over = self._stored(agent_id)
        if record is not None and not is_over:
            raise AgentAlreadyRunningError(agent_id, record.pid or 0, record.hostname, record.run)
        event = self._assignments.event(
            agent_id,
            work,
            0 if record is None else record.generation,
            source=self._detector.source,
            at=self._clock.now(),
        )
        self.backend.append_events([event])
        self._generations[agent_id] = event["generation"]

    def _stored(self, agent_id: str) -> tuple[StateRecord | None, bool]:
        """Return the stored state of an agent, and whether that life has ended or is lost."""
        try:
            agent = self.backend.load(agent_id)
        except (AgentNotFoundError, StateError):
            return None, True
        record = agent.record
        if record is None:
            return None, True
        liveness = judge(record, agent.heartbeat_at, self._clock.now(), this_host())
        return record, liveness.verdict in (ENDED, LOST)

    def attach(self, agent_id: str, process: Attachable) -> None:
        """Know at the next poll when an agent's process ends, and how.

        Without it nobody notices a process that ends before its agent has stored a state.

        Args:
            agent_id: The agent that runs in it. One that never starts is ``lost`` too.
            process: A `subprocess.Popen`, an asyncio process, or a pid.

        Raises:
            TypeError: The process is none of these.
        """
        watched = watch_process(process)
        record, is_over = self._stored(check_agent_id(agent_id))
        before = self._generations.pop(agent_id, None)
        if before is None and record is not None and record.run == self.run_name:
            # A life that is over is not that of this process, unless it was in it.
            before = record.generation - (0 if is_over and record.pid != watched.pid else 1)
        with self._agents.lock:
            self._agents.processes.attach(agent_id, watched, before or 0)

    def env(
        self, agent_id: str, *, notify_parent: bool = False, thresholds: Sequence[float] = ()
    ) -> dict[str, str]:
        """Return the environment for a child process that is to run an agent of this run.

        Where this process runs an agent itself, that one is the parent. `attach` the process: its
        agent is known to the fleet from its first stored state on, not from here. With
        ``notify_parent`` that parent is sent notices about it from its start on, at the usage
        ratios in ``thresholds`` if there are any, else at the rungs of the agent's own ladder.
        """
        rungs = as_ladder(thresholds).rungs if thresholds else ()
        own = os.environ.get("ULTRAMON_AGENT_ID")
        return {
            **os.environ,
            **({"ULTRAMON_PARENT_ID": own} if own else {}),
            "ULTRAMON_NOTIFY": "parent" if own and notify_parent else "",
            NOTIFY_THRESHOLDS: ",".join(str(rung.ratio) for rung in rungs),
            "ULTRAMON_AGENT_ID": check_agent_id(agent_id),
            "ULTRAMON_RUN": self.run_name,
            "ULTRAMON_BACKEND": getattr(self.backend, "whole_url", self.backend.url),
            "ULTRAMON_TOKEN_FILE": "",  # with its parent's token it would act as its parent
        }

    def request_return(self, agent_id: str, deadline_seconds: float = 30.0) -> None:
        """Ask an agent to return: it sees ``should_return`` within a second or so.

        After the deadline without a handoff it is ``expired``; nothing kills it. Nothing happens
        to an agent that has ended.

        Raises:
            AgentNotFoundError: There is no such agent.
            ConfigurationError: The deadline is negative.
            StateError: The store refused.
        """
        if not deadline_seconds >= 0:
            raise ConfigurationError("deadline_seconds", deadline_seconds, ">= 0")
        self._agents.look()
        record = self._agents.records.get(agent_id)
        if record is None:
            raise AgentNotFoundError(agent_id, f"not in run {self.run_name}")
        if not record.active:
            return
        self.backend.put_request(
            agent_id,
            {
                "requestId": random_hex(8),
                "kind": "return",
                "generation": record.generation,
                "epoch": record.epoch,
                "deadlineAt": format_time(self._clock.now() + deadline_seconds),
            },
        )
        self.backend.append_events([self._detector.request_return(record, deadline_seconds)])

    def get_states(self) -> list[AgentState]:
        """Return the readable states of the run, ended agents included."""
        return self._states(lambda record: True)

    def get_stale(self) -> list[AgentState]:
        """Return the agents of the run whose heartbeat is overdue."""
        now, host = self._clock.now(), this_host()

        def is_stale(record: StateRecord) -> bool:
            beat = self._agents.heartbeats.get(record.agent_id)
            return judge(record, beat, now, host).verdict == STALE

        return self._states(is_stale)

    def _states(self, wanted: Callable[[StateRecord], bool]) -> list[AgentState]:
        with self._agents.lock:
            self._agents.look()
            records = [record for record in self._agents.records.values() if wanted(record)]
        return [state for state in map(state_of, records) if state is not None]

    def poll(self) -> list[FleetEvent]:
        """Look once and deliver what happened; return what was delivered.

        Async handlers run to their end; in a running loop use `poll_async`. Empty while another
        fleet holds the consumer name.

        Raises:
            StateError: The store refused; what was not acknowledged is delivered again.
        """
        return list(self.step())

    async def poll_async(self) -> list[FleetEvent]:
        """Do as `poll` does, awaiting async handlers in the running loop."""
        return [event async for event in self.step_async()]

    def step(self, *, acknowledge_all: bool = False) -> Iterator[FleetEvent]:
        """Do as `poll` does, one event at a time; asking for the next acknowledges the last.

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
        """Do as `step` does, awaiting async handlers in the running loop; that never waits."""
        deliveries = self._deliveries(acknowledge_all)
        while (delivery := await next_in_thread(deliveries)) is not None:
            event, handlers = delivery
            for handler in handlers:
                with self._guarded(event):
                    result = handler(event)
                    if inspect.iscoroutine(result):
                        await result
            yield event

    def run(self) -> None:
        """Poll until `stop`, at once when an event comes and at each interval otherwise."""
        for _ in Watch(self, acknowledge_all=False):
            pass

    async def run_async(self) -> None:
        """Poll in the running loop until `stop` or cancellation."""
        async for _ in Watch(self, acknowledge_all=False):
            pass

    def stop(self) -> None:
        """Let `run` and `run_async` end after the present poll, for good. Handlers may call it."""
        self._stopping.set()

    def close(self) -> None:
        """Give the consumer name up, so that another fleet can go on at once."""
        self._consumer.close()

    def watch(self) -> Watch:
        """Return an iterator, sync and async, over what happens until `stop`; handlers run too.

        Asking for the next event acknowledges the last one.
        """
        return Watch(self, acknowledge_all=True)

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def may_rest(self) -> bool:
        """Return whether there is nothing to poll for yet: no event, and the interval runs."""
        return (
            not self.is_stopping
            and self._clock.monotonic() < self._next_poll_at
            and not has_news(self.backend, self._mark)
        )

    def wait(self) -> None:
        """Wait for the next event, the interval, or `stop`."""
        while self.may_rest():
            self._stopping.wait(CHANGE_CHECK_SECONDS)

    def complain(self, error: StateError) -> None:
        """Log that the store refuses, once until it refuses for another reason."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            _log.warning("run %s is not looked after for now: %s", self.run_name, error)

    def _deliveries(self, acknowledge_all: bool) -> Iterator[Delivery]:
        """Yield each event with its handlers; going on acknowledges it."""
        self._mark = None
        self._next_poll_at = self._clock.monotonic() + min(self._interval, RENEW_SECONDS)
        if disabled() or not self._consumer.take_hold():
            return
        self._mark = self.backend.change_mark()
        self._notice()
        while self._consumer.holds():
            payload = self._consumer.read()
            if payload is None:
                break
            handled = False
            for event in self._as_fleet_events(payload):
                handlers = self._handlers.get(event.name, [])
                handled = handled or acknowledge_all or bool(handlers)
                yield event, handlers
            self._consumer.move_on()
            if handled and not self._consumer.acknowledge(self._memory()):
                return
        else:
            # The lease wants to be renewed, and all agents to be looked at, before going on.
            self._next_poll_at = 0.0
        self._consumer.acknowledge(self._memory())
        self._trouble = ""

    def _memory(self) -> dict[str, Any]:
        return {**self._detector.memory, "assignments": self._assignments.memory}

    def _remember(self, memory: dict[str, Any]) -> None:
        self._detector.remember(memory)
        self._assignments.remember(memory.get("assignments", {}))

    def _notice(self) -> None:
        agents = self._agents
        with agents.lock:
            events = self._judge()
            if self._detector.in_doubt:
                events = self._judge()
            unstarted = list(agents.processes.without_agent())
            ended = agents.processes.take_ended()
            events[:0] = agents.waiting_events()
            meant = [agents.records.get(agent_id) for agent_id in {e["agentId"] for e in events}]
            whole = [record for record in meant if record is not None and is_whole(record)]
        # A handoff that is offered again comes before the end of the successor that never began.
        release_abandoned(
            self.backend,
            source=self._detector.source,
            now=self._clock.now(),
            run=self.run_name,
            ended=ended,
        )
        if events:
            self.backend.append_events(events, whole)
        for agent_id in unstarted:
            agents.processes.forget(agent_id)

    def _judge(self) -> list[dict[str, Any]]:
        self._agents.look()
        self._assignments.look_from(self._consumer.cursor)
        return self._detector.look(self._agents, self._assignments)

    def _as_fleet_events(self, payload: dict[str, Any]) -> Iterator[FleetEvent]:
        if payload.get("run") != self.run_name:
            return
        try:
            event = parse_event(payload)
            handoff = None
            if isinstance(event, HandoffEvent):
                handoff = HandoffRecord.model_validate(event.handoff).bind(self.backend)
        except ValidationError as error:
            _log.warning("run %s: an event is skipped, it has no meaning: %s", self.run_name, error)
            return
        names = names_of(event)
        record = self._agents.look_behind(payload) if names else None
        self._assignments.read(payload, self._consumer.cursor)
        if is_end(payload):
            yield from self._end(payload, event, record)
            return
        self._detector.read(payload, record)
        self._emit_verdict(event)
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
                outcome=payload.get("outcome"),
            )
        end = event.ended_with if isinstance(event, HandoffEvent) else None
        if end is not None and self._assignments.is_awaited(end):
            yield from self._deliver_end(end, parse_event(end), record)
            self._assignments.forget(end)

    def _end(
        self, payload: dict[str, Any], event: Event, record: StateRecord | None
    ) -> Iterator[FleetEvent]:
        """Deliver what closes a life, once, behind the handoff of what the agent left."""
        agent_id, generation = event.agent_id, event.generation
        if generation or event.type == "agent_refused":
            self._agents.processes.note_end(agent_id, generation)
        is_second = self._detector.ended_before(payload)
        if event.type == "agent_stopped" and not is_second:
            if self._detector.takes_back_end(payload, self._agents):
                return
        elif event.type == "agent_refused" and record is not None and record.active:
            return  # an agent of that id lives: it was there first
        self._detector.read(payload, record)
        self._emit_verdict(event)
        if not is_second:
            sound = None if record is None or state_of(record) is None else record
            source, now = self._detector.source, self._clock.now()
            rest = self._assignments.rest_of(payload, sound, source, now)
            if rest is None:
                yield from self._deliver_end(payload, event, record)
            else:
                self.backend.append_events([rest], [] if sound is None else [sound])
            self._assignments.forget(payload, is_awaited=rest is not None)
        if event.type == "agent_stopped":
            self._detector.note_end(payload, record)

    def _deliver_end(
        self, payload: dict[str, Any], event: Event, record: StateRecord | None
    ) -> Iterator[FleetEvent]:
        left = self._assignments.handoff_of(payload)
        handoff = None if left is None else HandoffRecord.model_validate(left).bind(self.backend)
        state = None if record is None else state_of(record)
        ended_with = state.exit if state is not None and event.type == "agent_stopped" else None
        for name in names_of(event):
            yield FleetEvent(
                name,
                event,
                event.agent_id,
                state=state,
                handoff=handoff,
                outcome=payload.get("outcome"),
                exit=payload.get("exit") or ended_with,
            )

    def _emit_verdict(self, event: Event) -> None:
        # Whoever noticed it tells: each verdict bears the name of one consumer.
        if event.source == self._detector.source and event.type in _SIGNALS:
            signals.emit(_SIGNALS[event.type], event.agent_id, event)

    def _is_idle(self, handoff: HandoffRecord) -> bool:
        return self._assignments.deaths_before_start(handoff) >= self._max_idle or (
            self._detector.goes_in_circles(handoff, self._agents.records)
        )

    @contextmanager
    def _guarded(self, event: FleetEvent) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a handler must not stop the others
            self.failures.append((event, error))
            del self.failures[:-KEPT_FAILURES]
            _log.exception("handler of %s for agent %s raised", event.name, event.agent_id)
