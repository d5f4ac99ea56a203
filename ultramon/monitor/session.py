"""The life of one agent: created, active, ended; what is stored and told on the way."""

from __future__ import annotations

import asyncio
import logging
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from pydantic import ValidationError

from ultramon import signals
from ultramon.backends.claims import give_back
from ultramon.backends.registry import registry_of
from ultramon.context.gauge import Gauge
from ultramon.errors import AgentAlreadyRunningError, HandoffTakenError, StateError
from ultramon.monitor.lifecycle import CREATED, LifecycleMachine
from ultramon.monitor.state_writer import StateWriter
from ultramon.routing import PARENT, SELF
from ultramon.state.events import parse_event
from ultramon.state.models import AgentState
from ultramon.state.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from ultramon.backends.base import Backend
    from ultramon.context.config import ContextConfig
    from ultramon.context.gauge import EpochStart
    from ultramon.context.ladder import Ladder
    from ultramon.context.levels import ThresholdAction
    from ultramon.monitor.handoff import HandoffRecord
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
Monitor = TypeVar("Monitor", bound="AgentLife")


_log = logging.getLogger("ultramon.monitor")


async def to_its_end(
    work: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Result:
    """Do blocking work in a thread, and all of it, even when the task is cancelled meanwhile."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments, **named))
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from running.exception()
    return running.result()


def in_thread(
    verb: Callable[Concatenate[Monitor, Arguments], Result],
) -> Callable[Concatenate[Monitor, Arguments], Coroutine[Any, Any, Result]]:
    """Return the async twin of a method: all of it happens in a thread, even when cancelled."""

    @wraps(verb)
    async def run(
        self: Monitor, /, *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        return await to_its_end(partial(verb, self), *arguments, **named)

    return run


class AgentLife:
    """Start, stop and the context managers; base of `ContextMonitor`.

    Attributes:
        agent_id: The agent.
    """

    def __init__(
        self,
        agent_id: str,
        config: ContextConfig,
        *,
        identity: dict[str, Any],
        backend: Backend | None,
        clock: Clock,
        goal: str | None = None,
        predecessor: HandoffRecord | None = None,
        takeover: bool = False,
        notify: str | None = None,
        notify_ladder: Ladder | None = None,
    ) -> None:
        self.agent_id = agent_id
        self._run: str = identity["run"]
        self._clock = clock
        self._backend = backend
        self._goal = goal
        self._predecessor = predecessor
        self._takeover = takeover
        self._notify = {SELF: agent_id, PARENT: identity["parent_id"]}.get(notify or "")
        self._notify_ladder = notify_ladder
        self._lifecycle = LifecycleMachine(agent_id)
        self._active = False
        self._phase = "working"
        self._exit: dict[str, Any] | None = None
        self._handoff: dict[str, Any] | None = None
        self._handed_off = False
        self._plan = Plan()
        self._gauge = Gauge(config, clock, count_tasks=self._count_tasks)
        self._writer = StateWriter(
            agent_id,
            identity,
            config,
            backend=backend,
            clock=clock,
            fill=self._fill,
            resume=self._resume,
            obey=self._obey,
            yield_to=self._yield_to,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.agent_id} {self._lifecycle.phase}>"

    @property
    def is_active(self) -> bool:
        """Whether the agent was started and has not ended."""
        return self._active

    @property
    def is_stored(self) -> bool:
        """Whether the store has everything that this agent has to store; False when disabled."""
        return self._writer.is_stored

    @property
    def is_fenced(self) -> bool:
        """Whether another process owns the agent: nothing of this one is stored any more.

        Its action is ``force_return`` then, and the message names the other.
        """
        return self._writer.is_fenced

    def start(self) -> Self:
        """Take the agent and store its first state; waits `store_timeout_seconds` at most.

        Where the store is too slow or refuses, the agent runs on and is stored later; `is_stored`
        says whether it is. In an event loop use ``async with`` or `start_async`.

        Raises:
            LifecycleError: It was started before.
            AgentAlreadyRunningError: The id belongs to an agent whose owner provably lives.
            HandoffTakenError: Another successor took the handoff that this agent continues, or it
                was offered again because this one took too long to be stored.
            StateError: That handoff could not be claimed for certain, or the store refused and
                ``on_error`` is ``raise``.
        """
        self._lifecycle.require("start")
        if self._predecessor is not None:
            left = (*self._predecessor.interrupted, *self._predecessor.remaining)
            self._plan.add(dict.fromkeys(left))  # the record may come from elsewhere
            if self._backend is not None:
                try:
                    self._predecessor.claim(self.agent_id, self._backend, clock=self._clock)
                except HandoffTakenError as error:
                    self._note_refusal(self._backend, str(error))
                    raise
        with self._writer.lock:
            self._active = True
            event = self._writer.event("agent_started", self._gauge.epoch)
        try:
            self._writer.start(takeover=self._takeover)
        except BaseException as error:
            self._active = False
            if isinstance(error, AgentAlreadyRunningError):
                self._give_handoff_back()
            if isinstance(error, HandoffTakenError) and self._backend is not None:
                self._note_refusal(self._backend, str(error))
            raise
        self._lifecycle.begin()
        if self._notify is not None and self._writer.generation:
            self._writer.guard(self._register)
        self._emit([(signals.agent_started, event)], stored=self._writer.is_stored)
        return self

    def _give_handoff_back(self) -> None:
        """Free the handoff for a successor of another id, instead of holding it until it ages."""
        if self._predecessor is None or self._backend is None:
            return
        try:
            give_back(
                self._backend,
                self._predecessor.handoff_id,
                self.agent_id,
                source=f"agent:{self.agent_id}",
                now=self._clock.now(),
            )
        except StateError as error:
            _log.info("agent %s: its claim is released later: %s", self.agent_id, error)

    def _note_refusal(self, backend: Backend, reason: str) -> None:
        """Have the end of the process not taken for the loss of an agent that was never stored."""
        now = self._clock.now()
        event = self._writer.snapshot().event(
            "agent_refused",
            source=f"agent:{self.agent_id}",
            at=now,
            n=round(now * 1000),
            outcome="cancelled",
            reason=reason,
        )
        try:
            backend.append_events([event])
        except StateError as error:
            _log.warning("agent %s is not noted as refused: %s", self.agent_id, error)

    def _register(self) -> None:
        """Have this agent's notices sent, unless a life before has done so: that would re-arm."""
        from ultramon.routing import register

        notify, backend, ladder = str(self._notify), self._writer.backend, self._notify_ladder
        for known in registry_of(backend).registrations(self.agent_id):
            if known.notify_id == notify and (ladder is None or known.ladder == ladder.to_json()):
                return
        register(self.agent_id, notify, None, ladder, backend=backend, clock=self._clock)

    async def start_async(self) -> Self:
        """Do what `start` does in a thread; one that is cancelled ends the agent as cancelled."""
        try:
            return await to_its_end(self.start)
        except asyncio.CancelledError:
            if self._active:
                await self.stop_async("cancelled")
            raise

    def stop(self, outcome: str = "completed") -> bool:
        """End the agent, finally. A second call changes nothing.

        Args:
            outcome: ``completed``, ``returned``, ``failed``, ``cancelled``, ``expired`` or
                ``lost``.

        Returns:
            Whether the end is stored. It waits for that `store_timeout_seconds` at most; an end
            that is not stored is tried again for as long as the process lives.

        Raises:
            LifecycleError: It was never started.
            ValueError: There is no such outcome.
        """
        self._lifecycle.require("stop")
        with self._writer.lock:
            if not self._active:
                return self._writer.is_stored
            self._lifecycle.finish(outcome)
            self._active = False
            event = self._writer.event("agent_stopped", self._gauge.epoch, outcome=outcome)
        stored = False
        try:
            stored = self._writer.end()
        finally:
            self._emit([(signals.agent_stopped, event)], stored=stored)
        return stored

    stop_async = in_thread(stop)

    def __enter__(self) -> Self:
        return self.start() if self._lifecycle.phase == CREATED else self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._active:
            return
        if kind is None:
            self.stop("returned" if self._handed_off else "completed")
        elif issubclass(kind, (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)):
            self.stop("cancelled")
        else:
            self._exit = {"error": kind.__qualname__}
            self.stop("failed")

    async def __aenter__(self) -> Self:
        return await self.start_async() if self._lifecycle.phase == CREATED else self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await to_its_end(self.__exit__, kind, error, traceback)

    def _count_tasks(self) -> tuple[int, int | None]:
        return self._plan.completed_count, self._plan.total_count

    def _read(self, change: Callable[[], EpochStart | None]) -> ThresholdAction:
        """Apply a change to the gauge, then save and tell what it led to, outside the lock."""
        owner, gauge = self._writer, self._gauge
        with owner.lock:
            before = gauge.level
            is_first = gauge.measured_at is None
            started = change()
            facts: list[tuple[Any, dict[str, Any]]] = []
            if started is not None:
                facts.append((signals.context_epoch_started, self._epoch_event(started)))
            level_change = gauge.decide()
            if level_change is not None:
                signal = (
                    signals.context_threshold_reached
                    if level_change.rising
                    else signals.context_relaxed
                )
                facts.append((signal, self._level_event(signal.name, level_change.previous)))
            action = gauge.changed_action() if gauge.level != before else gauge.action
        if not self._active:
            return action
        if facts:
            self._emit(facts, stored=owner.commit())
        else:
            is_first = is_first and gauge.measured_at is not None
            owner.changed(0.0 if is_first else None)
        return action

    def _epoch_event(self, started: EpochStart) -> dict[str, Any]:
        return self._writer.event(
            "context_epoch_started",
            self._gauge.epoch,
            reason=started.reason,
            tokensBefore=started.tokens_before,
            tokensAfter=started.tokens_after,
        )

    def _level_event(self, kind: str, previous: str) -> dict[str, Any]:
        gauge = self._gauge
        return self._writer.event(
            kind,
            gauge.epoch,
            level=gauge.level,
            previousLevel=previous,
            action=gauge.action.action.value,
            usageRatio=round(gauge.usage_ratio or 0.0, 6),
            tokens=gauge.tokens,
            contextLimit=gauge.limit.context_limit_tokens,
            tokensSource=gauge.tokens_source,
        )

    def _emit(self, facts: list[tuple[Any, dict[str, Any]]], *, stored: bool) -> None:
        if self._writer.muted:
            return
        for signal, event in facts:
            if signal.receivers:
                signals.emit(signal, self.agent_id, parse_event({**event, "stored": stored}))

    def _fill(self, record: StateRecord) -> None:
        self._gauge.fill(record)
        record.active = self._active
        record.phase = self._phase
        record.outcome = self._lifecycle.outcome
        record.exit = self._exit
        record.current_task = self._plan.current
        record.tasks_completed = self._plan.completed_count
        record.tasks_total = self._plan.total_count
        record.tasks = self._plan.to_json()
        record.handoff = self._handoff

    def _obey(self, request: dict[str, Any] | None) -> None:
        """Take notice of what an orchestrator asks of this generation of the agent."""
        with self._writer.lock:
            asked = request is not None and request.get("generation") == self._writer.generation
            if not (self._active and self._gauge.request_return(asked)):
                return
        self._writer.changed(0.0)

    def _yield_to(self, owner: str) -> None:
        with self._writer.lock:
            self._gauge.fence(
                f"Agent belongs to {owner} - nothing more is stored here, initiating return"
            )

    def _resume(self, stored: StateRecord) -> int:
        """Come after the owner that held the agent before; return the epochs that this moves."""
        gauge = self._gauge
        former = gauge.epoch
        is_same_run = stored.run == self._run
        if is_same_run:
            self._handoff = self._handoff or stored.handoff
        if self._lifecycle.phase != CREATED:
            # It could not be stored until now; what it counted itself meanwhile is newer.
            gauge.epoch = max(gauge.epoch, stored.epoch + 1)
        elif stored.active and is_same_run and _is_sound(stored):
            gauge.restore(stored)
            self._plan.restore(stored.tasks, stored.tasks_completed, stored.tasks_total)
            self._writer.started_at = stored.started_at
        else:
            gauge.begin_after(stored)
        return gauge.epoch - former


def _is_sound(stored: StateRecord) -> bool:
    """Whether a state that was stored whole also means what this version takes it to mean."""
    try:
        AgentState.from_record(stored)
    except ValidationError as error:
        _log.warning("agent %s begins anew, its state has no meaning: %s", stored.agent_id, error)
        return False
    return True
