"""The orchestrator's side: one run's agents, and their events delivered to handlers."""

from __future__ import annotations

import asyncio
import inspect
import os
import weakref
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from ultramon.backends.toolkit import has_ended
from ultramon.context.levels import as_ladder
from ultramon.errors import (
    AgentAlreadyRunningError,
    AgentNotFoundError,
    ConfigurationError,
    StateError,
)
from ultramon.fleet.child_processes import watch_process
from ultramon.fleet.deliveries import Deliveries, Watch
from ultramon.fleet.events import EVENT_NAMES, FleetEvent
from ultramon.handoff import SUPERVISED, HandoffRecord
from ultramon.routing import NOTIFY_THRESHOLDS
from ultramon.state.liveness import STALE, judge
from ultramon.state.models import AgentState, state_of
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.environment import disabled, given_or_named, is_on
from ultramon.system.ids import check_agent_id, random_hex
from ultramon.system.processes import this_machine
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from os import PathLike

    from ultramon.backends.base import Backend
    from ultramon.fleet.child_processes import Attachable
    from ultramon.fleet.supervise.jobs import Job
    from ultramon.fleet.supervise.options import SupervisorOptions
    from ultramon.fleet.supervise.result import SupervisorResult
    from ultramon.fleet.supervise.supervisor import Supervisor
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock

    Handler = TypeVar("Handler", bound=Callable[..., Any])


class Fleet:
    """Watches the agents of one run.

    Events are delivered at least once per consumer name and acknowledged when the handlers return.
    One fleet object holds a consumer name at a time, across processes; others with the same name
    stand by. A handler that raises is logged and listed in `failures`; the others are called.

    Args:
        run: The run; None = ``ULTRAMON_RUN``, else ``default``.
        consumer: Name under which events are acknowledged.
        backend: A backend or its URL; None = see `open_backend`.
        poll_interval_seconds: Longest time between two polls while running; at most 10 s count.
        max_generations_without_progress: When so many agents of one chain, one after the other,
            completed nothing, ``no_progress`` is delivered instead of ``handoff_ready``; and
            `supervise` sets an item aside.
        otel: Export the metrics of the run to OpenTelemetry until `close`, see
            `ultramon.metrics`; None = if ``ULTRAMON_OTEL`` is set.
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
        otel: bool | None = None,
        clock: Clock | None = None,
    ) -> None:
        from ultramon.backends.opening import as_backend

        self.run_name = given_or_named(run, "run", "ULTRAMON_RUN") or "default"
        check_agent_id(consumer, "consumer")
        self.backend = as_backend(backend)
        if not poll_interval_seconds > 0:
            raise ConfigurationError("poll_interval_seconds", poll_interval_seconds, "> 0")
        if max_generations_without_progress < 1:
            raise ConfigurationError(
                "max_generations_without_progress", max_generations_without_progress, ">= 1"
            )
        self._max_attempts = max_generations_without_progress
        self._clock = clock or SYSTEM_CLOCK
        self._deliveries = Deliveries(
            self.backend,
            self.run_name,
            consumer,
            self._clock,
            interval_seconds=poll_interval_seconds,
            max_generations_without_progress=max_generations_without_progress,
        )
        self.failures = self._deliveries.failures
        self._agents = self._deliveries.agents
        # The stored generation of agents that were assigned work and have no process yet.
        self._generations: dict[str, int] = {}
        self._end_export = self._export(otel)

    def _export(self, otel: bool | None) -> Callable[[], object] | None:
        if otel is False or not (otel or is_on("ULTRAMON_OTEL")) or disabled():
            return None
        from ultramon.metrics.opentelemetry import start_opentelemetry

        end = start_opentelemetry(self.backend, self.run_name, clock=self._clock)
        # A fleet that is dropped without `close` ends its export too.
        return weakref.finalize(self, end)

    def on(self, name: str) -> Callable[[Handler], Handler]:
        """Return a decorator that has a handler called with a `FleetEvent`, sync or async.

        Raises:
            ValueError: There is no such event.
        """
        if name not in EVENT_NAMES:
            raise ValueError(f"no event {name!r}: choose one of {', '.join(EVENT_NAMES)}")

        def connect(handler: Handler) -> Handler:
            self._deliveries.handlers.setdefault(name, []).append(handler)
            return handler

        return connect

    def assign(self, agent_id: str, work: Iterable[str | PathLike[str]] | HandoffRecord) -> None:
        """Assign work to an agent before its start; returns when it is durable.

        Assigned work that the agent does not record as done is handed over, in its own handoff or
        in one that the fleet makes when the agent ends without it, even before its plan is stored.
        The agent need not know of it.

        An assigned handoff is offered again when the agent dies before its start. An agent with no
        attached process that does not start within ten minutes is ``lost``.

        Args:
            agent_id: The agent that will be started next. Two assignments add up.
            work: Items, named as its plan will name them, or the handoff to continue.

        Raises:
            AgentAlreadyRunningError: It is alive: work is assigned before the start.
            ConfigurationError: An item is neither text nor path, or a plan cannot hold them all.
            StateError: The store refused; nothing is assigned.
        """
        check_agent_id(agent_id)
        if disabled():
            return
        record, is_over = self._stored(agent_id)
        if record is not None and not is_over:
            raise AgentAlreadyRunningError(agent_id, record.pid or 0, record.hostname, record.run)
        event = self._deliveries.assignments.event(
            agent_id,
            work,
            0 if record is None else record.generation,
            source=self._deliveries.detector.source,
            at=self._clock.now(),
        )
        self.backend.append_events([event])
        self._generations[agent_id] = event["generation"]

    def _stored(self, agent_id: str) -> tuple[StateRecord | None, bool]:
        """Return the stored state of an agent, and whether that life is over."""
        try:
            agent = self.backend.load(agent_id)
        except (AgentNotFoundError, StateError):
            return None, True
        return agent.record, agent.record is None or has_ended(agent, self._clock.now())

    def attach(self, agent_id: str, process: Attachable) -> None:
        """Attach a process, so that the next poll after its end reports how it ended.

        Without it a process that ends before its agent is stored goes unnoticed.

        Args:
            agent_id: The agent in it. An agent that never starts is ``lost`` too.
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
        """Return the environment for a child process that runs an agent of this run.

        The agent of this process, if there is one, becomes the parent; with ``notify_parent`` it
        receives notices from the child's start on, at the usage ratios in ``thresholds``, else at
        the rungs of the child's own ladder. `attach` the process: the fleet knows the agent only
        from its first stored state on.
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
            SUPERVISED: "",
            "ULTRAMON_OTEL": "",  # this process exports; a second one would count events twice
        }

    def request_return(self, agent_id: str, deadline_seconds: float = 30.0) -> None:
        """Ask an agent to return; it sees ``should_return`` within about a second.

        Without a handoff by the deadline it is ``expired``, and nothing kills it. An agent that has
        ended is left alone.

        Raises:
            AgentNotFoundError: There is no such agent.
            ConfigurationError: The deadline is negative.
            StateError: The store refused.
        """
        if not deadline_seconds >= 0:
            raise ConfigurationError("deadline_seconds", deadline_seconds, ">= 0")
        self._agents.refresh()
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
        self.backend.append_events(
            [self._deliveries.detector.request_return(record, deadline_seconds)]
        )

    def get_states(self) -> list[AgentState]:
        """Return the readable states of the run, ended agents included."""
        return self._states(lambda record: True)

    def get_stale(self) -> list[AgentState]:
        """Return the agents of the run whose heartbeat is overdue."""
        now, machine = self._clock.now(), this_machine()

        def is_stale(record: StateRecord) -> bool:
            beat = self._agents.heartbeats.get(record.agent_id)
            return judge(record, beat, now, machine).verdict == STALE

        return self._states(is_stale)

    def _states(self, wanted: Callable[[StateRecord], bool]) -> list[AgentState]:
        with self._agents.lock:
            self._agents.refresh()
            records = [record for record in self._agents.records.values() if wanted(record)]
        return [state for state in map(state_of, records) if state is not None]

    def poll(self) -> list[FleetEvent]:
        """Poll once, deliver new events to handlers and return them.

        Async handlers run to their end; in a running loop use `poll_async`. Empty while another
        fleet holds the consumer name.

        Raises:
            StateError: The store refused; events not acknowledged are delivered again.
        """
        return list(self._deliveries.step())

    async def poll_async(self) -> list[FleetEvent]:
        """Do as `poll` does, awaiting async handlers in the running loop."""
        return [event async for event in self._deliveries.step_async()]

    def run(self) -> None:
        """Poll until `stop`: at every event, and at each interval."""
        for _ in Watch(self._deliveries, acknowledge_all=False):
            pass

    async def run_async(self) -> None:
        """Poll in the running loop until `stop` or cancellation."""
        async for _ in Watch(self._deliveries, acknowledge_all=False):
            pass

    def add_items(self, items: Iterable[str | PathLike[str]]) -> None:
        """Add items to what `supervise` has done; returns when they are durable.

        From a handler, another thread or another process of the run, before or while it runs.
        Items that the run knows already are not added again.

        Raises:
            ConfigurationError: An item is neither text nor path, or too large for a plan.
            StateError: The store refused; some of them may be added.
        """
        if disabled():
            return
        from ultramon.fleet.supervise.jobs import POOL, added, name_in_run

        source, at = self._deliveries.detector.source, self._clock.now()
        pool = name_in_run(self.run_name, POOL)
        for event in added(self.run_name, pool, items, source=source, at=at):
            self.backend.append_events([event])

    def supervise(
        self,
        spawn: Callable[[Job], Any] | None = None,
        items: Iterable[str | PathLike[str]] = (),
        *,
        target: Callable[[Job], object] | None = None,
        **options: Unpack[SupervisorOptions],
    ) -> SupervisorResult:
        """Work through items in as many contexts as they take, and return when all are settled.

        Each context is assigned a part of the items before it starts. What it leaves undone, also
        by a kill at any moment, goes to a successor with its handoff. The same call under the same
        run, after a crash or an early stop, continues; items that are new are added. Of several
        processes with one call, one supervises and the others stand by.

        A Ctrl-C asks all agents to hand off and returns a result; a second one ends them.

        Args:
            spawn: Starts a process for a `Job`, with ``env=job.env``, and returns it: a
                `subprocess.Popen` or a multiprocessing process.
            items: Names or paths, each once; see `add_items`.
            target: Instead of `spawn`: called with the job in a new process; can be pickled.
            **options: See `ultramon.fleet.supervise.options.SupervisorOptions`.

        Raises:
            ConfigurationError: An option or item is out of range.
            StateError: The store refused the items.
            RuntimeError: A process of `target` calls this: the main module has no guard.
            TypeError: Neither or both of spawn and target, or they are coroutine functions; or
                `spawn` returned no process.
        """
        if inspect.iscoroutinefunction(spawn) or inspect.iscoroutinefunction(options.get("verify")):
            raise TypeError("spawn and verify are called here: for async ones use supervise_async")
        if disabled():
            return self._not_supervised(items)
        supervisor = self._supervisor(spawn, target, options)
        self.add_items(items)
        return supervisor.run()

    async def supervise_async(
        self,
        spawn: Callable[[Job], Any] | None = None,
        items: Iterable[str | PathLike[str]] = (),
        *,
        target: Callable[[Job], object] | None = None,
        **options: Unpack[SupervisorOptions],
    ) -> SupervisorResult:
        """Do as `supervise` in the running loop.

        `spawn`, `verify` and ``on_event`` may be coroutine functions, and processes those of
        asyncio. A cancelled task first asks all agents to hand off.
        """
        if disabled():
            return self._not_supervised(items)
        supervisor = self._supervisor(spawn, target, options)
        await asyncio.to_thread(self.add_items, items)
        return await supervisor.run_async()

    def _supervisor(
        self,
        spawn: Callable[[Job], Any] | None,
        target: Callable[[Job], object] | None,
        options: SupervisorOptions,
    ) -> Supervisor:
        from ultramon.fleet.supervise.jobs import process_for, refuse_import_of_main
        from ultramon.fleet.supervise.supervisor import Supervisor

        refuse_import_of_main()
        if target is not None and spawn is None:
            spawn = process_for(target)
        elif target is not None or spawn is None:
            raise TypeError("supervise takes either spawn or target")
        return Supervisor(
            self,
            self._deliveries,
            spawn,
            clock=self._clock,
            max_attempts=self._max_attempts,
            **options,
        )

    def _not_supervised(self, items: Iterable[str | PathLike[str]]) -> SupervisorResult:
        from ultramon.fleet.supervise.result import untouched

        return untouched(self.run_name, items)

    def wait(self) -> None:
        """Wait for the next event, the poll interval or `stop`, for loops around `poll`."""
        self._deliveries.wait()

    def stop(self) -> None:
        """End `run`, `run_async` and `supervise` for good. Handlers may call it."""
        self._deliveries.stopping.set()

    def close(self) -> None:
        """Release the consumer name, so that another fleet takes over at once; end the export."""
        self._deliveries.close()
        if self._end_export is not None:
            self._end_export()

    def watch(self) -> Watch:
        """Return an iterator, sync and async, over events until `stop`; handlers run too.

        Asking for the next event acknowledges the last one.
        """
        return Watch(self._deliveries, acknowledge_all=True)
