"""Works through a run's items in as many contexts as they take, across kills at any moment.

The journal is the only source. A supervisor reads it into an `ItemPool`, compares that with states
and processes, and appends what follows as events, which it then reads like those of others.
Whatever is cut off in between is found again by the next round, in this process or another.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
import time
from collections import Counter
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from math import ceil
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Unpack, cast

from ultramon.backends.lease_holder import machine_of_holder
from ultramon.errors import ConfigurationError, SpawnError, StateError
from ultramon.fleet.deliveries import CHANGE_CHECK_SECONDS, next_in_thread
from ultramon.fleet.supervise.broken_worker import EarlyEnds, is_refusal
from ultramon.fleet.supervise.children import Children
from ultramon.fleet.supervise.jobs import POOL, Job, make_event, marks_of, name_in_run
from ultramon.fleet.supervise.ledger import unproven
from ultramon.fleet.supervise.options import SupervisorOptions
from ultramon.fleet.supervise.pool import (
    ASSIGNED,
    CHUNK_ITEMS,
    CLAIMED,
    OPEN,
    REJECTIONS,
    SET_ASIDE,
    VERIFIED,
)
from ultramon.fleet.supervise.result import ContextResult, SupervisorEvent, SupervisorResult
from ultramon.fleet.supervise.run_log import RunLog
from ultramon.fleet.supervise.stopping import Stopping
from ultramon.fleet.supervise.verification import Verification
from ultramon.handoff import ASSIGNMENT
from ultramon.state.liveness import LOST_AFTER_SECONDS, lost_after
from ultramon.state.models import is_whole
from ultramon.state.plan import DONE, IN_PROGRESS, INTERRUPTED
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor

    from ultramon.backends.base import Backend
    from ultramon.fleet.deliveries import Deliveries
    from ultramon.fleet.journal_event import Closing, Exit, JournalEvent
    from ultramon.fleet.supervise.pool import ItemPool, Work, WorkerContext
    from ultramon.handoff import HandoffRecord
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock

_log = logging.getLogger("ultramon.fleet")

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 30.0
MAX_DENIALS = 3
_FAILS_ALWAYS = (TypeError, FileNotFoundError, NotADirectoryError, PermissionError)


class SupervisedFleet(Protocol):
    """What a supervisor needs of the fleet whose run it supervises; see `Fleet`."""

    run_name: str
    backend: Backend

    def env(self, agent_id: str) -> dict[str, str]:
        """Return the environment for the process of an agent."""

    def request_return(self, agent_id: str, deadline_seconds: float) -> None:
        """Ask an agent to return."""

    def poll(self) -> object:
        """Poll once and deliver new events to handlers."""

    async def poll_async(self) -> object:
        """Do as `poll` does in the running loop."""


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


class _Seen(NamedTuple):
    """What claims follow from, as it was when it was looked at; another one is another object."""

    context: WorkerContext
    record: StateRecord | None
    left: HandoffRecord | None

    def is_as(self, before: _Seen | None) -> bool:
        """Return whether nothing has changed since."""
        return before is not None and all(map(is_, self, before))


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
        fleet: SupervisedFleet,
        deliveries: Deliveries,
        spawn: Callable[[Job], Any],
        *,
        clock: Clock,
        max_attempts: int,
        executor: Executor | None = None,
        **options: Unpack[SupervisorOptions],
    ) -> None:
        for name in options.keys() - SupervisorOptions.__annotations__.keys():
            raise TypeError(f"supervise() got an unexpected keyword argument {name!r}")
        workers, verify = options.get("workers", 1), options.get("verify")
        recheck, at_end = options.get("recheck", False), options.get("recheck_at_end", False)
        if workers < 1:
            raise ConfigurationError("workers", workers, ">= 1")
        if recheck and verify is None:
            raise ConfigurationError("recheck", recheck, "left out where there is no verify")
        if at_end and verify is None:
            raise ConfigurationError("recheck_at_end", at_end, "left out where there is no verify")
        self._fleet = fleet
        self._run = fleet.run_name
        self._backend = fleet.backend
        self._log = RunLog(self._backend, self._run, max_attempts)
        self.pool = self._log.pool
        self._deliveries = deliveries
        self._agents = deliveries.agents
        self._holder = deliveries.holder
        self._clock = clock
        self._spawn = spawn
        self._verification = verify and Verification(verify, workers, executor)
        self._workers = workers
        self._max_restarts = options.get("max_restarts", 10)
        self._max_contexts = options.get("max_contexts")
        self._on_event = options.get("on_event")
        self._adopt_by = options.get("adopt")
        self._item_of = options.get("item_of", str)
        self._may_start = options.get("may_start")
        self._may_take = options.get("may_take")
        self._most_items = options.get("most_items")
        self._offered: set[str] = set()
        self._has_read = False
        self._is_holder = False
        self._is_read = False
        self._news: list[SupervisorEvent] = []
        self._children = Children(deliveries.agents)
        self._stopping = Stopping(fleet.request_return, self._children, clock, options)
        self._ended_children: set[str] = set()
        self._seen: dict[str, _Seen] = {}
        # The state after an end, with that end, as an agent that was lost may stop after all, and
        # with whether its process was gone by then.
        self._final: dict[str, tuple[JournalEvent, bool, StateRecord | None]] = {}
        self._assigned = 0
        self._rounds_without_progress = 0
        self._early_ends = EarlyEnds()
        self._failure: str | None = None
        self._spawn_error: Exception | None = None
        self._recheck = recheck
        self._rechecks_at_end = at_end
        self._rechecked_at = 0
        self._denials: Counter[str] = Counter()
        self._to_recheck: list[str] = []
        self._denied: dict[str, str] = {}
        self._done_earlier: dict[str, str | None] = {}
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
            if self._spawn_error is not None:
                raise self._spawn_error
            return self.result()
        finally:
            self._close()

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
            if self._spawn_error is not None:
                raise self._spawn_error
            return await asyncio.to_thread(self.result)
        finally:
            self._close()

    def step(self) -> None:
        """Do all that is to be done now; never waits, and may be called at any time."""
        try:
            self._fleet.poll()
            for call in self._round():
                call.make()
        except StateError as error:
            self._deliveries.log_refusal(error)
        self._end_overdue()

    async def step_async(self) -> None:
        """Do as `step`, the user's code in the running loop and everything else in threads."""
        try:
            await self._fleet.poll_async()
            calls = self._round()
            while (call := await next_in_thread(calls)) is not None:
                await call.make_async()
        except StateError as error:
            self._deliveries.log_refusal(error)
        await asyncio.to_thread(self._end_overdue)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do, or it has stopped and no process of it runs."""
        if self._children.are_running:
            return False
        if self.stopped is None:
            if self._is_rechecking or self._must_recheck:
                return False
            return self._has_read and self._has_nothing_left
        if self._stopping.is_late or not self._is_holder:
            return True
        # A check that does not return is waited for as long as an agent.
        undecided = 0 if self._verification is None else len(self._verification.undecided)
        if not self._stopping.is_past_grace and self._unverified_count > undecided:
            return False
        return all(
            self._has_settled(context) and self._has_claims_to_judge(context)
            for context in self.pool.open_contexts
        )

    @property
    def _has_nothing_left(self) -> bool:
        """Whether every item is settled, and every context closed."""
        pool = self.pool
        return not (pool.counts.left or pool.open_contexts or self._unverified_count)

    @property
    def _unverified_count(self) -> int:
        """How many claims `verify` has not confirmed; 0 without one."""
        return 0 if self._verification is None else self.pool.counts.claimed

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
        finished = {name: item for name, item in pool.with_status(CLAIMED, VERIFIED)}
        earlier = [
            item.settled_at
            for name, item in finished.items()
            if item.settled_at is not None and self._done_earlier.get(name) == item.settled_at
        ]
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
            failure=self._failure or self._early_ends.problem,
            done_earlier=len(earlier),
            done_earlier_at=datetime.fromisoformat(max(earlier)) if earlier else None,
            begun_again=tuple(pool.begun_again),
            unverified=tuple(chain.from_iterable(pool.claims().values()))
            if self._verification is not None
            else (),
        )

    def _round(self) -> Iterator[_Call]:
        """Bring journal, states and processes together; yields the calls of the user's code."""
        self._stepped_at = self._clock.monotonic()
        self._is_read = False
        # Processes before the journal: what stands for one may store a handoff as it sees the end.
        self._ended_children = set(self._children.ended)
        self._is_holder = self._deliveries.holds_lease()
        yield from self._read()
        if not self._is_holder:
            return
        yield from self._take_over()
        self._adopt()
        self._begin_recheck_at_end()
        self._verify_again()
        self._settle()
        yield from self._read()
        self._close_contexts()
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
        """Read the journal to its end, and report what is new since this supervisor began.

        A round reads again only where this supervisor or the user's code may have stored something.
        """
        if self._is_read and not self._news:
            return
        self._is_read = True
        steps = self._log.read()
        self.pool = self._log.pool
        news, self._news = self._news + (steps if self._has_read else []), []
        if not self._has_read:
            self._note_done_earlier()
        self._has_read = True
        if self._on_event is not None:
            for step in news:
                yield self._call(self._on_event, step)

    def _call(self, function: Callable[..., Any], argument: object) -> _Call:
        """Make a call of the user's code, which may store events."""
        self._is_read = False
        return _Call(function, argument)

    def _note_done_earlier(self) -> None:
        """Note what was done before this call, and whether to ask about it again."""
        pool = self.pool
        done = pool.with_status(CLAIMED, VERIFIED)
        self._done_earlier = {name: item.settled_at for name, item in done}
        is_verified = pool.counts.verified == pool.counts.assigned
        if self._recheck and is_verified and not pool.open_contexts:
            self._to_recheck = list(self._done_earlier)
        if self._has_nothing_left:
            self._rechecked_at = pool.verifications  # a finished run is left as it is

    @property
    def _must_recheck(self) -> bool:
        """Whether anything was verified since all items were checked at the end, and is left."""
        is_new = self._rechecks_at_end and self.pool.verifications != self._rechecked_at
        return is_new and bool(self.pool.counts.verified)

    def _begin_recheck_at_end(self) -> None:
        """Have every verified item checked once more where nothing else is left to do."""
        pool = self.pool
        if not (self._must_recheck and self._has_nothing_left) or self.stopped is not None:
            return
        self._rechecked_at = pool.verifications
        self._to_recheck = [name for name, _ in pool.with_status(VERIFIED)]
        items = tuple(self._to_recheck)
        self._news.append(SupervisorEvent("rechecking", None, items, None, pool.counts))

    def _verify_again(self) -> None:
        """Ask about what an earlier call has verified, and reopen what is denied: all at once.

        A call that is cut off in between has changed nothing, and the next one asks about all.
        """
        if self._verification is None or not self._is_rechecking:
            return
        pool = name_in_run(self._run, POOL)
        verdicts = self._verification.ask(pool, self._to_recheck, 0)
        self._denied |= verdicts.rejected
        for name in verdicts.verified if self._recheck else ():
            self._done_earlier.pop(name, None)
        settled = {*verdicts.verified, *verdicts.rejected, *self._verification.undecided}
        self._to_recheck = [name for name in self._to_recheck if name not in settled]
        if self._denied and not self._to_recheck:
            names, attempt = list(self._denied), self.pool.reopenings + 1
            pieces = [names[at : at + CHUNK_ITEMS] for at in range(0, len(names), CHUNK_ITEMS)]
            self._append(
                [
                    self._event(
                        pool,
                        "items_reopened",
                        items=piece,
                        reasons={name: self._denied[name] for name in piece},
                        attempt=attempt,
                    )
                    for piece in pieces
                ]
            )
            self._denials.update(list(self._denied))
            given_up = {
                name: f"denied at the end {MAX_DENIALS} times: {reason}"
                for name, reason in self._denied.items()
                if self._denials[name] >= MAX_DENIALS
            }
            if given_up:
                facts = {"items": list(given_up), "reasons": given_up}
                self._append([self._event(pool, "items_set_aside", **facts)])
            self._denied = {}

    @property
    def _is_rechecking(self) -> bool:
        return bool(self._to_recheck or self._denied)

    def _append(self, events: list[dict[str, Any]]) -> None:
        if events:
            self._is_read = False
            self._backend.append_events(events)

    def _append_following(self, context: WorkerContext, events: list[dict[str, Any]]) -> bool:
        """Store events that follow from those of a context; return False where more are stored.

        What was read of it then is not all, e.g. its agent has started or handed off since.
        """
        is_current = False

        def follow(stored: list[dict[str, Any]]) -> list[dict[str, Any]]:
            nonlocal is_current
            is_current = context.has_read(stored, self._run)
            return events if is_current else []

        self._is_read = False
        self._backend.append_following(context.agent_id, follow)
        return is_current

    def _event(self, agent_id: str, kind: str, **details: Any) -> dict[str, Any]:
        source, at = self._deliveries.detector.source, self._clock.now()
        return make_event(self._run, agent_id, kind, source=source, at=at, **details)

    def _settle(self) -> None:
        """Store what agents claim and what `verify` says, and have new claims verified."""
        events = []
        seen: dict[str, _Seen] = {}
        for context in self.pool.open_contexts:
            record = self._state_of(context)
            now_seen = seen[context.agent_id] = _Seen(context, record, context.left)
            if now_seen.is_as(self._seen.get(context.agent_id)):
                continue
            if claims := self.pool.claimable(context, self._recorded_as_done(context, record)):
                events.append(self._event(context.agent_id, "items_claimed", items=claims))
            if (late := self._late_handoff(context, record)) is not None:
                events.append(late)
        if self._verification is not None:
            events += self._judge_claims(self._verification)
        self._append(events)
        self._seen = seen

    def _judge_claims(self, verification: Verification) -> list[dict[str, Any]]:
        """Have claims verified, and make the events of the verdicts that are there."""
        events = []
        # Closed contexts too: their claims were not verified, or not known when they closed.
        for agent_id, claims in self.pool.claims().items():
            context = self.pool.contexts[agent_id]
            for attempt in range(REJECTIONS if self._has_ended(context) else 1):
                claimed = [name for name in claims if self.pool.item(name).rejections == attempt]
                verdicts = verification.ask(agent_id, claimed, attempt)
                if verdicts.verified:
                    events.append(self._event(agent_id, "items_verified", items=verdicts.verified))
                if verdicts.rejected:
                    events += self._reject(context, verdicts.rejected, verdicts.final, attempt)
        return events

    def _reject(
        self, context: WorkerContext, reasons: dict[str, str], final: list[str], attempt: int
    ) -> list[dict[str, Any]]:
        """Make the events that reject claims; an open context gives items up when it closes."""
        agent_id, rejected = context.agent_id, list(reasons)
        facts: dict[str, Any] = {"items": rejected, "reasons": reasons, "attempt": attempt + 1}
        if final:
            facts["final"] = final
        events = [self._event(agent_id, "items_rejected", **facts)]
        if context.closed is None:
            return events
        last = rejected if attempt + 1 >= REJECTIONS else []
        judged = {name: self.pool.reason_to_give_up(name, reasons[name]) for name in last}
        judged |= {name: reasons[name] for name in final}
        if given_up := {name: reason for name, reason in judged.items() if reason is not None}:
            facts = {"items": list(given_up), "reasons": given_up}
            events.append(self._event(agent_id, "items_set_aside", **facts))
        return events

    def _recorded_as_done(self, context: WorkerContext, record: StateRecord | None) -> list[str]:
        done = [] if context.left is None else list(context.left.completed)
        if record is not None and is_whole(record):
            done += [task["name"] for task in record.tasks or () if task["status"] == DONE]
        return self._items_of(done)

    def _items_of(self, names: Iterable[str]) -> list[str]:
        return [item for name in names if (item := self._item_of(name)) is not None]

    def _late_handoff(
        self, context: WorkerContext, record: StateRecord | None
    ) -> dict[str, Any] | None:
        """Make the event of a handoff whose own was not stored: one was rebuilt under its key.

        So it is where an agent fell silent, was lost, and handed off after all.
        """
        known = context.left
        if known is None or known.reason != "lost" or record is None or not is_whole(record):
            return None
        own = record.handoff
        if own is None or own["handoffId"] != known.handoff_id:
            return None
        left_at = parse_time(own["createdAt"]) or 0.0
        if left_at <= known.created_at.timestamp():
            return None
        return self._deliveries.detector.event(
            record, "handoff_ready", round(left_at * 1000), handoff=own
        )

    def _state_of(self, context: WorkerContext) -> StateRecord | None:
        """Return the state of a context, the last one where it has ended."""
        if context.end is None:
            self._final.pop(context.agent_id, None)
            return self._agents.records.get(context.agent_id)
        if not self._has_final(context):
            is_over = self._has_ended(context)
            state = self._agents.state_after(context.end)
            self._final[context.agent_id] = context.end, is_over, state
        return self._final[context.agent_id][-1]

    def _has_final(self, context: WorkerContext) -> bool:
        """Whether the state after the end of a context was read, and its claims with it.

        Read again once its process is gone as well: until then it may have stored another one.
        """
        end, was_over, _ = self._final.get(context.agent_id, (None, False, None))
        return end is not None and end is context.end and was_over == self._has_ended(context)

    def _has_ended(self, context: WorkerContext) -> bool:
        """Whether a context is over: its agent, its process, and what that left running.

        Where this machine does not show them, as on another one, a lost agent must also have been
        silent for as long as its state says.
        """
        agent_id, end = context.agent_id, context.end
        if end is None or context.closed is not None:
            return context.closed is not None
        if agent_id in self._children:
            is_gone = agent_id in self._ended_children
        else:
            is_gone = not self._children.is_running(agent_id)
        is_shown = end.kind != "agent_lost" or self._sees(context)
        return is_gone and (is_shown or self._has_been_silent(context))

    def _has_settled(self, context: WorkerContext) -> bool:
        """Whether a context is over, and all that it claims is known."""
        return self._has_ended(context) and self._has_final(context)

    def _has_claims_to_judge(self, context: WorkerContext) -> bool:
        return self._verification is not None and bool(self.pool.held_by(context, CLAIMED))

    def _close_contexts(self) -> None:
        """Close the contexts that have ended and whose claims are settled."""
        for context in self.pool.open_contexts:
            if context.end is None or not self._has_settled(context):
                continue
            if self._has_claims_to_judge(context):
                continue
            # With nothing left there is no successor that they could work beside.
            if self.pool.held_by(context, ASSIGNED) and self._children.find_left_over(
                context.agent_id, marks_of(context)
            ):
                continue
            record = self._final[context.agent_id][-1]
            tasks = (record.tasks or ()) if record is not None and is_whole(record) else ()
            in_work = self._items_of(
                task["name"] for task in tasks if task["status"] in (IN_PROGRESS, INTERRUPTED)
            )
            exited = self._exit_of(context, record)
            closing, given_up = self.pool.closing(
                context,
                in_work,
                exited,
                is_enforced=context.agent_id in self._stopping.enforced,
            )
            events = [self._event(context.agent_id, "context_closed", **closing.to_json())]
            if given_up:
                events.append(
                    self._event(
                        context.agent_id, "items_set_aside", items=list(given_up), reasons=given_up
                    )
                )
            if not self._append_following(context, events):
                continue  # the next round judges by what was stored meanwhile
            # An item that was given up is progress, but not where nothing was ever done.
            is_settled = set(given_up) & set(closing.begun) and self.pool.has_claims
            self._pause(
                made_progress=closing.progress or bool(is_settled and not is_refusal(exited))
            )
            self._judge_worker(context, closing, exited)
            self._children.forget(context.agent_id)

    def _judge_worker(self, context: WorkerContext, closing: Closing, exited: Exit) -> None:
        """Stop where a context ended as those before it did: another one would end so too."""
        agent_id, ends = context.agent_id, self._early_ends
        if context.generation:
            ends.note_seen()
        elif self._children.is_own(agent_id) and not closing.killed and "returncode" in exited:
            unseen = ends.note_unseen(agent_id)
            if unseen is not None:
                _log.warning("run %s: %s", self._run, unseen)
        if closing.progress:
            ends.clear()
        elif ends.note(
            context,
            closing,
            exited,
            self._children.last_lines_of(agent_id),
            has_claims=self.pool.has_claims,
        ):
            self._give_up("broken_worker", ends.problem)

    def _give_up(self, reason: str, failure: str | None) -> None:
        if self.stopped is None:
            self._failure = failure
            if failure is not None:
                _log.error("run %s stops: %s", self._run, failure)
        self.stop(reason)

    def _sees(self, context: WorkerContext) -> bool:
        return self._children.sees(context, machine_of_holder(context.supervisor))

    def _has_been_silent(self, context: WorkerContext) -> bool:
        record = self._agents.records.get(context.agent_id)
        if record is None:
            return self._is_silent(context.agent_id)
        beat = self._agents.heartbeats.get(context.agent_id) or 0.0
        return self._clock.now() - max(beat, record.last_heartbeat) > lost_after(record)

    def _pause(self, *, made_progress: bool) -> None:
        """Wait before the next start, longer each time, while contexts make no progress."""
        now = self._clock.monotonic()
        if made_progress:
            self._rounds_without_progress = 0
        elif now >= self._pause_until:  # an end within a pause is that of one started before it
            pause = FIRST_PAUSE_SECONDS * 2 ** min(self._rounds_without_progress, 10)
            self._pause_until = now + min(pause, LONGEST_PAUSE_SECONDS)
            self._rounds_without_progress += 1

    def _exit_of(self, context: WorkerContext, record: StateRecord | None) -> Exit:
        """Return how a context ended: by its end, else by its state and its process."""
        end = context.end
        if end is not None and end.exit is not None:
            return end.exit
        stored = cast("Exit", (record.exit if record is not None else None) or {})
        if end is None or end.outcome not in ("failed", "cancelled"):
            return stored
        return {**stored, **self._children.exit_of(context.agent_id)}

    def _take_over(self) -> Iterator[_Call]:
        """Have the user's code stand in for the processes of an earlier orchestrator."""
        for context in self.pool.open_contexts if self._adopt_by is not None else ():
            agent_id = context.agent_id
            if context.supervisor == self._holder or agent_id in self._offered:
                continue
            assert self._adopt_by is not None
            call = self._call(self._adopt_by, agent_id)
            yield call
            if isinstance(call.error, StateError):
                raise call.error  # the next step asks again, and nothing is decided before
            self._offered.add(agent_id)
            if call.value is not None:
                self._children.take_over(agent_id, call.value)
        yield from self._read()

    def _adopt(self) -> None:
        """Watch the processes of an earlier orchestrator, and put back what it never started."""
        for context in self._children.others_of(self.pool.open_contexts):
            agent_id = context.agent_id
            if context.process is not None:
                self._children.adopt(context, marks_of(context))
            elif context.end is not None:
                continue
            elif context.supervisor != self._holder and agent_id not in self._agents.records:
                if not context.generation:
                    if not (self._sees(context) or self._is_silent(agent_id)):
                        continue
                    # If its process runs after all, it finds this at its start and leaves.
                    self._note_unstarted(context, "its orchestrator ended before it started")
                elif self._is_silent(agent_id):
                    self._note_lost(context, "it left no state")

    def _is_silent(self, agent_id: str) -> bool:
        """Whether an agent has been without a state for too long: its machine died with it."""
        now = self._clock.monotonic()
        return now - self._stateless_since.setdefault(agent_id, now) > LOST_AFTER_SECONDS

    def _note_unstarted(self, context: WorkerContext, error: str) -> None:
        # Void: it does not hold for an agent whose start is in the journal already.
        self._note_lost(context, error, void=True)

    def _note_lost(self, context: WorkerContext, error: str, **more: Any) -> None:
        facts = {"outcome": "lost", "reason": error, "exit": {"error": error}, **more}
        event = self._event(context.agent_id, "agent_lost", **facts)
        self._append_following(context, [event])

    def _check_limits(self) -> None:
        if self._deliveries.stopping.is_set():
            self.stop("stopped")  # before anything is started
        elif self._rounds_without_progress > self._max_restarts:
            self._give_up("max_restarts", self._early_ends.problem)
        elif (
            self._max_contexts is not None
            and self._assigned >= self._max_contexts
            and self.pool.open_count
            and not self.pool.open_contexts
        ):
            self.stop("max_contexts")

    def _assign_next(self, share: int) -> str | None:
        """Assign the next context its work; None where nothing is to be started now."""
        pool = self.pool
        if (
            self.stopped
            or len(pool.open_contexts) >= self._workers
            or (self._max_contexts is not None and self._assigned >= self._max_contexts)
            or self._clock.monotonic() < self._pause_until
            or not self._deliveries.holds_lease()
        ):
            return None
        work = self._next_work(share)
        if work is None or (self._may_start is not None and not self._may_start()):
            return None
        agent_id = name_in_run(self._run, self.pool.last_number + 1)
        steps = self.pool.steps.among(work.items)
        event = self._deliveries.assignments.event(
            agent_id,
            work.handoff or work.items,
            0,
            # Two orchestrators that assign one context make the same key: the journal takes one.
            number=0,
            source=self._deliveries.detector.source,
            at=self._clock.now(),
            supervisor=self._holder,
            **({"steps": steps} if steps else {}),
        )
        self._append([event])
        self._assigned += 1
        return agent_id

    def _next_work(self, share: int) -> Work | None:
        """Return the work for the next context; stop where nothing of what is left may begin."""
        pool, may_take = self.pool, self._may_take
        is_filled = self._most_items is not None
        if self._most_items is not None and pool.open_count:
            share = min(share, max(1, self._most_items()))
        if may_take is None:
            return pool.next_work(share, filled=is_filled)
        # Without a check a claim is the end of an item.
        in_work = (ASSIGNED,) if self._verification is None else (ASSIGNED, CLAIMED)
        held = frozenset(name for name, _ in pool.with_status(*in_work))
        work = pool.next_work(share, may_take(held), filled=is_filled)
        if work is None and pool.open_count and not (held or pool.open_contexts):
            self.stop("blocked")
        return work

    def _spawn_assigned(self) -> Iterator[_Call]:
        """Start the process of each context that this supervisor has assigned and not started."""
        for context in self._children.others_of(self.pool.open_contexts):
            agent_id = context.agent_id
            if context.process or context.end or context.supervisor != self._holder:
                continue
            if self.stopped:
                self._note_unstarted(context, f"not started: {self.stopped}")
                continue
            # Another orchestrator may hold the run by now, and put back what has not started.
            if not self._deliveries.holds_lease():
                return
            call = self._call(self._spawn, self._job(context))
            yield call
            if call.error is not None:
                error = f"{type(call.error).__name__}: {call.error}"
                self._note_unstarted(context, f"spawn raised {error}")
                if _fails_always(call.error):
                    self._refuse_spawn(SpawnError(self._run, agent_id, call.error), call.error)
                continue
            try:
                process = self._children.add(agent_id, call.value)
            except TypeError as error:
                returned = f"spawn returned {type(call.value).__name__}"
                mistake = TypeError(f"{returned}: it has to return the process that it started")
                self._note_unstarted(context, str(mistake))
                self._refuse_spawn(mistake, error)
            else:
                self._append([self._event(agent_id, "context_spawned", **process)])

    def _refuse_spawn(self, error: Exception, cause: Exception | None = None) -> None:
        """Stop, and raise an error once the agents that run have handed off."""
        error.__cause__ = cause
        self._spawn_error = self._spawn_error or error
        self.stop("spawn_failed")

    def _job(self, context: WorkerContext) -> Job:
        given = context.handoff
        return Job(
            context.agent_id,
            tuple(context.items if given is None else given.left),
            given,
            {
                **self._fleet.env(context.agent_id),
                **marks_of(context),
                ASSIGNMENT: context.cursor or "",
            },
            self.pool.steps.among(context.items),
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

    def _running(self) -> list[WorkerContext]:
        """Return the contexts whose processes may be ended here: children, and those taken over."""
        contexts = {context.agent_id: context for context in self.pool.running_on}
        running: list[WorkerContext] = []
        for agent_id in self._children.agent_ids:
            context = contexts.pop(agent_id, None) or self.pool.contexts.get(agent_id)
            if context is not None and self._children.is_running(agent_id):
                running.append(context)
        if self._is_holder:
            running += filter(self._is_taken_over, contexts.values())
        return running

    def _is_taken_over(self, context: WorkerContext) -> bool:
        """Whether a context of an earlier orchestrator is still open, or its process runs."""
        if context.is_detached or context.closed is not None:
            return context.is_detached
        return context.end is None or self._children.is_running(context.agent_id)

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

    def _close(self) -> None:
        """End what still runs, for an exit by an error, and give the run up."""
        self._children.kill()
        if self._verification is not None:
            self._verification.close()
        self._deliveries.close()


def _fails_always(error: Exception) -> bool:
    """Whether a call of `spawn` that raised this would raise it for every context."""
    is_no_program = isinstance(error, OSError) and error.errno == errno.ENOEXEC
    return is_no_program or isinstance(error, _FAILS_ALWAYS)


def _result_of(context: WorkerContext, pool: ItemPool) -> ContextResult:
    closed = context.closed
    finished = len(pool.finished_by(context))
    return ContextResult(
        context.agent_id,
        len(context.items),
        finished,
        None if closed is None else closed.reason,
        closed is not None and closed.killed,
    )
