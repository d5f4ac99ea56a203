"""Carries a job across as many contexts as it takes: verified, and through kills at any moment.

The journal is the only source. A supervisor reads it into an `ItemPool`, compares that with states
and processes, and appends what follows as events, which it then reads like everybody's. Whatever
is cut off in between is found again by the next round, in this process or another.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any, TypedDict

from ultramon.errors import ConfigurationError, StateError
from ultramon.fleet.children import Children
from ultramon.fleet.item_pool import (
    ASSIGNED,
    CLAIMED,
    OPEN,
    REJECTIONS,
    SET_ASIDE,
    VERIFIED,
    ItemPool,
)
from ultramon.fleet.jobs import Job, make_event, name_in_run
from ultramon.fleet.ledger import unproven
from ultramon.fleet.stopping import Stopping
from ultramon.fleet.supervisor_result import ContextResult, SupervisorEvent, SupervisorResult
from ultramon.fleet.verification import Verification
from ultramon.fleet.watch import CHANGE_CHECK_SECONDS, next_in_thread
from ultramon.monitor.handoff import ASSIGNMENT, SUPERVISED, HandoffRecord, left_in
from ultramon.state.liveness import LOST_AFTER_SECONDS
from ultramon.state.models import is_whole
from ultramon.state.plan import DONE, IN_PROGRESS, INTERRUPTED
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from concurrent.futures import Executor

    from ultramon.fleet.deliveries import Deliveries
    from ultramon.fleet.fleet import Fleet
    from ultramon.fleet.item_pool import Context
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock

_log = logging.getLogger("ultramon.fleet")

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 30.0


class SupervisorOptions(TypedDict, total=False):
    """The keywords of `Fleet.supervise`.

    Attributes:
        workers: How many contexts run at the same time; 1 and more, default 1.
        verify: Called with an item that its agent says is done, in a thread; true = it is. What
            raises counts as false. A coroutine function in `supervise_async`. After an early stop
            a call is waited for as long as agents are; a thread does not outlive the program.
        enforce: Whether to end a process whose agent should return and does not within
            ``grace_seconds``; default False. An agent that has ended has as long to exit, always.
        grace_seconds: How long agents have to hand off, 0 and more; default 30.
        max_restarts: So often in a row contexts that made no progress are followed by others,
            each time after a longer pause; then this call ends. Default 10.
        max_contexts: How many contexts this call may start; None (default) = any number.
        deadline_seconds: After so long agents are asked to hand off; None (default) = never.
        on_event: Called with each `SupervisorEvent`; what it raises is logged.
        adopt: Called once for each context that an orchestrator before this one has left open, with
            its agent id; returns what stands for its process, running or ended, as `spawn` does,
            or None: then it is watched by its pid. After a `StateError` it is called again.
            Default None.
        item_of: Called with the name of each task that an agent records; returns the item it is
            about, None = none. Default: the name is the item.
    """

    workers: int
    verify: Callable[[str], bool | Awaitable[bool]] | None
    enforce: bool
    grace_seconds: float
    max_restarts: int
    max_contexts: int | None
    deadline_seconds: float | None
    on_event: Callable[[SupervisorEvent], object] | None
    adopt: Callable[[str], Any] | None
    item_of: Callable[[str], str | None]


class _Call:
    """A call of the user's code, made by the loop that drives the supervisor."""

    def __init__(self, function: Callable[..., Any], argument: object) -> None:
        self.value: Any = None
        self.error: Exception | None = None
        self._function = function
        self._argument = argument

    def make(self) -> None:
        with self._guarded():
            self.value = self._function(self._argument)

    async def make_async(self) -> None:
        with self._guarded():
            self.value = self._function(self._argument)
            if inspect.isawaitable(self.value):
                self.value = await self.value

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the user's code must not stop the job
            self.error = error
            _log.warning("%r raised", self._function, exc_info=error)


class Supervisor:
    """Supervises the contexts of one run until every item is settled.

    Drive it with `run`, `run_async`, or with `step` until `is_over`.

    Args:
        fleet: The run, its store and its environment.
        deliveries: Those of the fleet: verdicts, states, processes and the lease.
        spawn: Starts the process of a job and returns it.
        clock: For deadlines and pauses.
        max_attempts: So many contexts without progress on an item set it aside.
        executor: Calls `verify`; None = threads. A simulation passes one that is deterministic.
        **options: As `SupervisorOptions`.

    Attributes:
        pool: The items and contexts, as far as the journal was read.
    """

    def __init__(
        self,
        fleet: Fleet,
        deliveries: Deliveries,
        spawn: Callable[[Job], Any],
        *,
        clock: Clock,
        max_attempts: int,
        executor: Executor | None = None,
        workers: int = 1,
        verify: Callable[[str], bool | Awaitable[bool]] | None = None,
        enforce: bool = False,
        grace_seconds: float = 30.0,
        max_restarts: int = 10,
        max_contexts: int | None = None,
        deadline_seconds: float | None = None,
        on_event: Callable[[SupervisorEvent], object] | None = None,
        adopt: Callable[[str], Any] | None = None,
        item_of: Callable[[str], str | None] = str,
    ) -> None:
        if workers < 1:
            raise ConfigurationError("workers", workers, ">= 1")
        self.pool = ItemPool(max_attempts)
        self._fleet = fleet
        self._run = fleet.run_name
        self._backend = fleet.backend
        self._deliveries = deliveries
        self._agents = deliveries.agents
        self._holder = deliveries.holder
        self._clock = clock
        self._spawn = spawn
        self._verification = verify and Verification(verify, workers, executor)
        self._workers = workers
        self._max_restarts = max_restarts
        self._max_contexts = max_contexts
        self._on_event = on_event
        self._adopt_by = adopt
        self._item_of = item_of
        self._offered: set[str] = set()
        self._cursor: str | None = None
        self._has_read = False
        self._is_holder = False
        self._news: list[SupervisorEvent] = []
        self._children = Children(deliveries.agents)
        self._stopping = Stopping(
            fleet,
            self._children,
            clock,
            enforce=enforce,
            grace_seconds=grace_seconds,
            deadline_seconds=deadline_seconds,
        )
        self._ended_children: set[str] = set()
        # With the end that each was read after: an agent that was lost may stop after all.
        self._final: dict[str, tuple[dict[str, Any], StateRecord | None]] = {}
        self._assigned = 0
        self._barren = 0
        self._pause_until = self._stepped_at = clock.monotonic()
        self._stateless_since: dict[str, float] = {}

    def run(self) -> SupervisorResult:
        """Supervise until it is over; a Ctrl-C asks all agents to hand off."""
        try:
            with self._stopping.interruptible():
                while not self.is_over:
                    self.step()
                    time.sleep(CHANGE_CHECK_SECONDS)
                    while self._may_rest():
                        time.sleep(CHANGE_CHECK_SECONDS)
            return self.result()
        finally:
            self._let_go()

    async def run_async(self) -> SupervisorResult:
        """Do as `run` in the running loop; a cancelled task hands off before it is cancelled."""
        cancelled: asyncio.CancelledError | None = None
        if self._verification is not None:
            self._verification.loop = asyncio.get_running_loop()
        try:
            with self._stopping.interruptible():
                while not self.is_over:
                    try:
                        await self.step_async()
                        await asyncio.sleep(CHANGE_CHECK_SECONDS)
                        while self._may_rest():
                            await asyncio.sleep(CHANGE_CHECK_SECONDS)
                    except asyncio.CancelledError as error:
                        cancelled = error
                        if self.stopped:
                            self._stopping.interrupt()
                        self.stop("cancelled")
            if cancelled is not None:
                raise cancelled
            return await asyncio.to_thread(self.result)
        finally:
            self._let_go()

    def step(self) -> None:
        """Do all that is to be done now; never waits, and may be called at any time."""
        try:
            self._fleet.poll()
            for call in self._round():
                call.make()
        except StateError as error:
            self._deliveries.complain(error)
        self._end_overdue()

    async def step_async(self) -> None:
        """Do as `step`, the user's code in the running loop and everything else in threads."""
        try:
            await self._fleet.poll_async()
            calls = self._round()
            while (call := await next_in_thread(calls)) is not None:
                await call.make_async()
        except StateError as error:
            self._deliveries.complain(error)
        await asyncio.to_thread(self._end_overdue)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do, or it has stopped and no process of it runs."""
        if self._children.are_running:
            return False
        if self.stopped is None:
            counts = self.pool.counts
            return self._has_read and not (counts.left or self.pool.open_contexts)
        if self._stopping.is_late or not self._is_holder:
            return True
        # A check that does not return is waited for as long as an agent.
        return all(
            self._stopping.is_past_grace
            and self._has_settled(context)
            and self._has_claims_to_judge(context)
            for context in self.pool.open_contexts
        )

    @property
    def stopped(self) -> str | None:
        """Why it stops early; None = it does not."""
        return self._stopping.reason

    def stop(self, reason: str) -> None:
        """Ask all agents to hand off, start nothing more, and be over when they have ended."""
        if self._stopping.begin(reason):
            self._news.append(SupervisorEvent("stopping", None, (), reason, self.pool.counts))

    def result(self) -> SupervisorResult:
        """Return what has become of the items so far."""
        pool = self.pool
        finished = {name for name, _ in pool.with_status(CLAIMED, VERIFIED)}
        return SupervisorResult(
            run=self._run,
            counts=pool.counts,
            contexts=tuple(_result_of(context, pool) for context in pool.contexts.values()),
            repeated=tuple(pool.repeated),
            set_aside={name: item.reason or "" for name, item in pool.with_status(SET_ASIDE)},
            left=tuple(name for name, _ in pool.with_status(OPEN, ASSIGNED)),
            lost=unproven(self._backend, self._run, finished, self._item_of),
            verify_errors=dict(self._verification.errors) if self._verification else {},
            stopped=self.stopped,
        )

    def _round(self) -> Iterator[_Call]:
        """Bring journal, states and processes together; yields the calls of the user's code."""
        self._stepped_at = self._clock.monotonic()
        # Before the journal: what stands for a process may store a handoff as it sees the end.
        self._ended_children = set(self._children.ended)
        self._is_holder = self._deliveries.holds_lease()
        yield from self._read()
        if not self._is_holder:
            return
        yield from self._take_over()
        self._settle()
        yield from self._read()
        self._close_contexts()
        self._adopt()
        yield from self._read()
        self._check_limits()
        share = ceil(self.pool.open_count / self._workers)
        while (agent_id := self._assign_next(share)) is not None:
            yield from self._read()
            if agent_id not in self.pool.contexts:
                break  # it is in the journal, and not as an assignment of a supervisor
        yield from self._spawn_assigned()
        yield from self._read()

    def _read(self) -> Iterator[_Call]:
        """Read the journal to its end, and tell what is new since this supervisor began."""
        news, self._news = self._news, []
        while (page := self._backend.events(self._cursor)).events:
            for event, cursor in zip(page.events, page.cursors, strict=True):
                if event["run"] == self._run:
                    follows = list(self.pool.read(event, self._cursor))
                    news += follows if self._has_read else ()
                self._cursor = cursor
        self._has_read = True
        if self._on_event is not None:
            for step in news:
                yield _Call(self._on_event, step)

    def _append(self, events: list[dict[str, Any]]) -> None:
        if events:
            self._backend.append_events(events)

    def _event(self, agent_id: str, kind: str, **details: Any) -> dict[str, Any]:
        source, at = self._deliveries.detector.source, self._clock.now()
        return make_event(self._run, agent_id, kind, source=source, at=at, **details)

    def _settle(self) -> None:
        """Store what agents claim and what `verify` says, and have new claims verified."""
        events = []
        for context in self.pool.open_contexts:
            if claims := self.pool.claimable(context, self._recorded_as_done(context)):
                events.append(self._event(context.agent_id, "items_claimed", items=claims))
            if (late := self._late_handoff(context)) is not None:
                events.append(late)
        if self._verification is None:
            self._append(events)
            return
        for context in self.pool.open_contexts:
            agent_id = context.agent_id
            attempts = range(REJECTIONS if self._has_ended(context) else 1)
            for attempt in attempts:
                claimed = [
                    name
                    for name, item in self.pool.held_by(context, CLAIMED)
                    if item.rejections == attempt
                ]
                verdicts = self._verification.ask(agent_id, claimed, attempt)
                if verdicts.verified:
                    events.append(self._event(agent_id, "items_verified", items=verdicts.verified))
                if verdicts.rejected:
                    events.append(
                        self._event(
                            agent_id,
                            "items_rejected",
                            items=list(verdicts.rejected),
                            reasons=verdicts.rejected,
                            attempt=attempt + 1,
                        )
                    )
        self._append(events)

    def _recorded_as_done(self, context: Context) -> list[str]:
        record = self._state_of(context)
        done = list((context.left or {}).get("completed", ()))
        if record is not None and is_whole(record):
            done += [task["name"] for task in record.tasks or () if task["status"] == DONE]
        return self._items_of(done)

    def _items_of(self, names: Iterable[str]) -> list[str]:
        return [item for name in names if (item := self._item_of(name)) is not None]

    def _late_handoff(self, context: Context) -> dict[str, Any] | None:
        """Make the event of a handoff whose own was not stored: one was rebuilt under its key.

        So it is where an agent fell silent, was lost, and handed off after all.
        """
        record, known = self._state_of(context), context.left
        if known is None or known["reason"] != "lost" or record is None or not is_whole(record):
            return None
        own = record.handoff
        if own is None or own["handoffId"] != known["handoffId"]:
            return None
        left_at = parse_time(own["createdAt"]) or 0.0
        if left_at <= (parse_time(known["createdAt"]) or 0.0):
            return None
        return self._deliveries.detector.event(
            record, "handoff_ready", round(left_at * 1000), handoff=own
        )

    def _state_of(self, context: Context) -> StateRecord | None:
        """Return the state of a context, the last one where it has ended."""
        if context.end is None:
            self._final.pop(context.agent_id, None)
            return self._agents.records.get(context.agent_id)
        if not self._has_final(context):
            self._final[context.agent_id] = context.end, self._agents.state_after(context.end)
        return self._final[context.agent_id][1]

    def _has_final(self, context: Context) -> bool:
        """Whether the state after the end of a context was read, and its claims with it."""
        return context.agent_id in self._final and self._final[context.agent_id][0] is context.end

    def _has_ended(self, context: Context) -> bool:
        """Whether a context is over: its agent, our child for it, and what that left running."""
        agent_id = context.agent_id
        if agent_id in self._children:
            is_gone = agent_id in self._ended_children
        else:
            is_gone = not self._children.is_running(agent_id)
        return context.end is not None and is_gone

    def _has_settled(self, context: Context) -> bool:
        """Whether a context is over, and all that it claims is known."""
        return self._has_ended(context) and self._has_final(context)

    def _has_claims_to_judge(self, context: Context) -> bool:
        return self._verification is not None and any(self.pool.held_by(context, CLAIMED))

    def _close_contexts(self) -> None:
        """Close the contexts that have ended and whose claims are settled."""
        for context in self.pool.open_contexts:
            if not self._has_settled(context) or self._has_claims_to_judge(context):
                continue
            _, record = self._final[context.agent_id]
            tasks = (record.tasks or ()) if record is not None and is_whole(record) else ()
            in_work = self._items_of(
                task["name"] for task in tasks if task["status"] in (IN_PROGRESS, INTERRUPTED)
            )
            facts, given_up = self.pool.closing(context, in_work)
            events = [self._event(context.agent_id, "context_closed", **facts)]
            if given_up:
                reasons = {name: self._blame(name, facts) for name in given_up}
                events.append(
                    self._event(
                        context.agent_id, "items_set_aside", items=given_up, reasons=reasons
                    )
                )
            self._append(events)
            self._children.forget(context.agent_id)
            self._pause(is_barren=not (facts["progress"] or set(given_up) & set(facts["begun"])))

    def _pause(self, *, is_barren: bool) -> None:
        """Wait before the next start, longer each time, while contexts make no progress."""
        now = self._clock.monotonic()
        if not is_barren:
            self._barren = 0
        elif now >= self._pause_until:  # else it was started before this pause
            pause = FIRST_PAUSE_SECONDS * 2 ** min(self._barren, 10)
            self._pause_until = now + min(pause, LONGEST_PAUSE_SECONDS)
            self._barren += 1

    def _blame(self, name: str, facts: dict[str, Any]) -> str:
        item = self.pool.item(name)
        attempts = f"{item.attempts + 1} contexts without progress on it"
        if item.rejections >= REJECTIONS:
            return f"{attempts}; {item.reason}"
        return f"{attempts}; the last one: {facts['reason']}"

    def _take_over(self) -> Iterator[_Call]:
        """Have the user's code stand in for the processes of an orchestrator before us."""
        for context in self.pool.open_contexts if self._adopt_by is not None else ():
            agent_id = context.agent_id
            if context.supervisor == self._holder or agent_id in self._offered:
                continue
            assert self._adopt_by is not None
            call = _Call(self._adopt_by, agent_id)
            yield call
            if isinstance(call.error, StateError):
                raise call.error  # the next step asks again, and nothing is decided before
            self._offered.add(agent_id)
            if call.value is not None:
                self._children.take_over(agent_id, call.value)
        yield from self._read()

    def _adopt(self) -> None:
        """Watch the processes of an orchestrator before us, and put back what it never started."""
        for context in self.pool.open_contexts:
            agent_id = context.agent_id
            if context.end or agent_id in self._children:
                continue
            if context.process is not None:
                self._children.adopt(context)
            elif context.supervisor != self._holder and agent_id not in self._agents.records:
                if not context.generation:
                    # If its process runs after all, it finds this at its start and leaves.
                    self._note_unstarted(agent_id, "its orchestrator ended before it started")
                elif self._is_silent(agent_id):
                    self._note_lost(agent_id, "it left no state")

    def _is_silent(self, agent_id: str) -> bool:
        """Whether an agent has been without a state for too long: its host died with it."""
        now = self._clock.monotonic()
        return now - self._stateless_since.setdefault(agent_id, now) > LOST_AFTER_SECONDS

    def _note_unstarted(self, agent_id: str, error: str) -> None:
        # Unless the journal holds its start already.
        self._note_lost(agent_id, error, void=True)

    def _note_lost(self, agent_id: str, error: str, **more: Any) -> None:
        facts = {"outcome": "lost", "reason": error, "exit": {"error": error}, **more}
        self._append([self._event(agent_id, "agent_lost", **facts)])

    def _check_limits(self) -> None:
        if self._deliveries.stopping.is_set():
            self.stop("stopped")  # before anything is started
        elif self._barren > self._max_restarts:
            self.stop("max_restarts")
        elif (
            self._max_contexts is not None
            and self._assigned >= self._max_contexts
            and self.pool.open_count
            and not self.pool.open_contexts
        ):
            self.stop("max_contexts")

    def _assign_next(self, share: int) -> str | None:
        """Assign the next context its work; None where nothing is to be started now."""
        if (
            self.stopped
            or not self._deliveries.holds_lease()
            or self._clock.monotonic() < self._pause_until
            or len(self.pool.open_contexts) >= self._workers
            or (self._max_contexts is not None and self._assigned >= self._max_contexts)
        ):
            return None
        work = self.pool.next_work(share)
        if work is None:
            return None
        agent_id = name_in_run(self._run, self.pool.last_number + 1)
        handoff = work.handoff and HandoffRecord.model_validate(work.handoff)
        event = self._deliveries.assignments.event(
            agent_id,
            handoff or work.items,
            0,
            # Of two orchestrators that assign one context the journal takes the first.
            number=0,
            source=self._deliveries.detector.source,
            at=self._clock.now(),
            supervisor=self._holder,
        )
        self._append([event])
        self._assigned += 1
        return agent_id

    def _spawn_assigned(self) -> Iterator[_Call]:
        """Start the process of each context that this supervisor has assigned and not started."""
        for context in self.pool.open_contexts:
            agent_id = context.agent_id
            is_ours = context.supervisor == self._holder and agent_id not in self._children
            if context.process or context.end or not is_ours:
                continue
            if self.stopped:
                self._note_unstarted(agent_id, f"not started: {self.stopped}")
                continue
            if not self._deliveries.holds_lease():
                return
            call = _Call(self._spawn, self._job(context))
            yield call
            if call.error is not None:
                error = f"{type(call.error).__name__}: {call.error}"
                self._note_unstarted(agent_id, f"spawn raised {error}")
            else:
                process = self._children.add(agent_id, call.value)
                self._append([self._event(agent_id, "context_spawned", **process)])

    def _job(self, context: Context) -> Job:
        given = context.handoff
        return Job(
            context.agent_id,
            tuple(context.items if given is None else left_in(given)),
            None if given is None else HandoffRecord.model_validate(given),
            {
                **self._fleet.env(context.agent_id),
                SUPERVISED: "1",
                ASSIGNMENT: context.cursor or "",
            },
        )

    def _end_overdue(self) -> None:
        """Stop where that is due, ask agents to return, and end processes that are overdue."""
        if self._stopping.is_interrupted:
            self.stop("interrupted")
        if self._stopping.is_past_deadline and not self.is_over:
            self.stop("deadline")
        if self._deliveries.stopping.is_set():
            self.stop("stopped")
        self._stopping.end_overdue(self._running())

    def _running(self) -> list[Context]:
        """Return the contexts whose processes are ours to end: children, and what we took over."""
        return [
            context
            for context in self.pool.contexts.values()
            if self._children.is_running(context.agent_id)
            or (
                self._is_holder
                and context.agent_id not in self._children
                and (context.is_ghost or not (context.end or context.closed))
            )
        ]

    def _may_rest(self) -> bool:
        """Return whether nothing calls for a round before the fleet's next poll."""
        if self.is_over or (self._stopping.is_interrupted and not self.stopped):
            return False
        if any(self.pool.contexts[agent_id].end is None for agent_id in self._children.ended):
            return False
        if self._verification is not None and self._verification.has_news():
            return False
        if self._stepped_at < self._pause_until <= self._clock.monotonic():
            return False
        return self._deliveries.may_rest()

    def _let_go(self) -> None:
        """End what still runs, for an exit by an error, and give the run up."""
        self._children.kill()
        if self._verification is not None:
            self._verification.close()
        self._deliveries.close()


def _result_of(context: Context, pool: ItemPool) -> ContextResult:
    closed = context.closed or {}
    finished = sum(1 for status in (CLAIMED, VERIFIED) for _ in pool.held_by(context, status))
    return ContextResult(
        context.agent_id,
        len(context.items),
        finished,
        closed.get("reason"),
        bool(closed.get("killed")),
    )
