"""The items of a supervised run: which context has each, and what has become of it.

Pure bookkeeping: the pool is what the events of the journal add up to, in their order, and nothing
else. Two orchestrators that have read the same events have the same pool.
"""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.context.ladder import FORCE_RETURN
from ultramon.fleet.journal_event import Closing
from ultramon.fleet.supervise.result import ItemCounts, SupervisorEvent
from ultramon.handoff import TEXTS
from ultramon.state.item_steps import STEP_COMPLETED, ItemSteps
from ultramon.state.plan import MAX_PLAN_BYTES, item_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ultramon.fleet.journal_event import Exit, JournalEvent, ProcessFacts
    from ultramon.handoff import HandoffRecord

OPEN = "open"
ASSIGNED = "assigned"
CLAIMED = "claimed"
VERIFIED = "verified"
SET_ASIDE = "set_aside"

REJECTIONS = 2
"""How often one context's claim of an item is rejected before the item is put back."""
# A kill from outside says nothing about an item, and yet an item that has its agents killed must
# not be tried for ever.
KILLS_PER_ATTEMPT = 3
"""The number of kills from outside that weigh as much as one context that made no progress."""
CHUNK_ITEMS = 500
"""A context saves its whole plan after each item: 500 paths are some 60 KB."""
CHUNK_BYTES = MAX_PLAN_BYTES // 2
"""The other half is for what the agent plans itself."""

_SENT_SIGNALS = {
    number.name: number
    for number in signal.Signals
    if number.name in ("SIGHUP", "SIGINT", "SIGKILL", "SIGTERM")
}
"""What others send: an orchestrator, a person, a system that shuts down or wants its memory."""
_SENT_CODES = {128 + number for number in _SENT_SIGNALS.values()}
"""How a shell says that its program was ended by one of them."""


@dataclass(slots=True)
class Item:
    """One item.

    Attributes:
        status: One of the statuses above.
        context: The context that had it last.
        rejections: How often the claim of that context was rejected.
        attempts: How many contexts in a row made no progress on it.
        kills: How often a context that had it in work was killed from outside meanwhile.
        reason: Why it was rejected or set aside last.
        is_half_done: Whether a context was killed while it worked on it.
        settled_at: When it was claimed, or verified, last; as the journal says it.
        is_cut_off: Whether a context that did not hand over ended while it worked on it.
        is_final: Whether no other context would fare better than the last one.
    """

    status: str = OPEN
    context: str | None = None
    rejections: int = 0
    attempts: int = 0
    kills: int = 0
    reason: str | None = None
    is_half_done: bool = False
    settled_at: str | None = None
    is_cut_off: bool = False
    is_final: bool = False


@dataclass(slots=True)
class WorkerContext:
    """One context: an agent that was assigned a part of the items.

    Attributes:
        agent_id: The agent.
        items: The items that it was assigned.
        handoff: The handoff that it is to continue.
        supervisor: The orchestrator that assigned them, and alone may start the agent.
        cursor: The place in the journal before the assignment.
        process: Its process; None = not known to have been started.
        generation: Of its stored state; 0 before it started.
        left: The last handoff that it left.
        end: The event that ended its agent.
        is_asked: Whether it should return.
        closed: What the event says that put back what it left.
        is_detached: Whether it still runs although its items were put back.
        has_new_step: Whether it did a step of an item that no context did before it.
        event_count: How many events about it were read, from its assignment on.
    """

    agent_id: str
    items: list[str]
    handoff: HandoffRecord | None
    supervisor: str
    cursor: str | None
    process: ProcessFacts | None = None
    generation: int = 0
    left: HandoffRecord | None = None
    end: JournalEvent | None = None
    is_asked: bool = False
    closed: Closing | None = None
    is_detached: bool = False
    has_new_step: bool = False
    event_count: int = 0

    def has_read(self, events: Iterable[dict[str, Any]], run: str) -> bool:
        """Return whether no event of its agent was stored that is not read yet.

        Args:
            events: All that are stored now.
            run: The run.
        """
        own = [event for event in events if event["run"] == run]
        assigned = next((n for n, one in enumerate(own) if one.get("supervisor") is not None), 0)
        return len(own) - assigned <= self.event_count


class Work(NamedTuple):
    """What the next context is to do: a handoff to continue, or items."""

    items: list[str]
    handoff: HandoffRecord | None


class ItemPool:
    """The items and contexts of one run.

    Args:
        max_attempts: So many contexts without progress on an item set it aside, and three times as
            many that were killed from outside.

    Attributes:
        contexts: By agent id, in the order of their assignment.
        repeated: Items that were begun again after a kill.
        begun_again: Items that were begun again after an end without a handover by its agent.
        last_number: The number at the end of the last context's agent id.
        has_claims: Whether an item was ever claimed.
        reopenings: How often verified items were reopened.
        verifications: How often items were verified.
        steps: What was done inside items that are neither claimed nor set aside.
    """

    def __init__(self, max_attempts: int) -> None:
        self.contexts: dict[str, WorkerContext] = {}
        self.repeated: dict[str, None] = {}
        self.begun_again: dict[str, None] = {}
        self.last_number = 0
        self.has_claims = False
        self.reopenings = self.verifications = 0
        self.steps = ItemSteps()
        self._max_attempts = max_attempts
        self._items: dict[str, Item] = {}
        self._number_of: Counter[str] = Counter()
        self._fresh: dict[str, None] = {}
        self._claimed: dict[str, None] = {}
        self._unfinished: dict[str, None] = {}
        self._open_contexts: dict[str, WorkerContext] = {}
        self._detached: dict[str, WorkerContext] = {}
        self._readers: dict[str, Callable[[JournalEvent], Iterator[SupervisorEvent]]] = {
            "items_added": self._add,
            "items_claimed": self._claim,
            "items_verified": self._verify,
            "items_rejected": self._reject,
            "items_set_aside": self._set_aside,
            "items_reopened": self._reopen,
            STEP_COMPLETED: self._take_step,
        }

    @property
    def counts(self) -> ItemCounts:
        """The items by status."""
        number = self._number_of
        return ItemCounts(
            assigned=len(self._items),
            verified=number[VERIFIED],
            claimed=number[CLAIMED],
            set_aside=number[SET_ASIDE],
            left=number[OPEN] + number[ASSIGNED],
        )

    @property
    def open_contexts(self) -> list[WorkerContext]:
        """The contexts that are not closed yet."""
        return list(self._open_contexts.values())

    @property
    def open_count(self) -> int:
        """Items that no context has."""
        return self._number_of[OPEN]

    def item(self, name: str) -> Item:
        """Return what is known about an item."""
        return self._items[name]

    def with_status(self, *statuses: str) -> Iterator[tuple[str, Item]]:
        """Yield the items that have one of the statuses."""
        return ((name, item) for name, item in self._items.items() if item.status in statuses)

    @property
    def running_on(self) -> list[WorkerContext]:
        """The contexts that are not closed, and those whose agent still runs although they are."""
        return [*self._open_contexts.values(), *self._detached.values()]

    def held_by(self, context: WorkerContext, status: str) -> list[tuple[str, Item]]:
        """Return the items of a status that a context had last."""
        held = []
        for name in context.items:
            item = self._items[name]
            if item.status == status and item.context == context.agent_id:
                held.append((name, item))
        return held

    def finished_by(self, context: WorkerContext) -> list[tuple[str, Item]]:
        """Return the items that a context had last and claimed, verified or not."""
        return [*self.held_by(context, CLAIMED), *self.held_by(context, VERIFIED)]

    def claims(self) -> dict[str, list[str]]:
        """Return what is claimed and not verified by context, whether that is closed or not."""
        claims: dict[str, list[str]] = {}
        for name in self._claimed:
            claims.setdefault(self._items[name].context or "", []).append(name)
        return claims

    def claimable(self, context: WorkerContext, done: Iterable[str]) -> list[str]:
        """Return which of the items that an agent has recorded as done are new claims."""
        recorded = set(done)
        return [
            name
            for name, item in self.held_by(context, ASSIGNED)
            if name in recorded and item.rejections < REJECTIONS
        ]

    def next_work(
        self,
        share: int,
        may_take: Callable[[str], bool] = lambda name: True,
        *,
        filled: bool = False,
    ) -> Work | None:
        """Return the work for the next context, None without any; what was left comes first.

        An item on which `KILLS_PER_ATTEMPT` contexts were killed waits until there is no other:
        where it is the reason, the others are done first; else their contexts are killed too.

        Args:
            share: How many fresh items at most.
            may_take: Asked whether an item may be in it.
            filled: Whether fresh items are added to what one context left, up to `share` in all.
        """

        def is_first(name: str) -> bool:
            return self._items[name].kills < KILLS_PER_ATTEMPT and may_take(name)

        return self._work(share, is_first, filled) or self._work(share, may_take, filled)

    def _work(self, share: int, may_take: Callable[[str], bool], filled: bool) -> Work | None:
        for agent_id in self._unfinished:
            context = self.contexts[agent_id]
            if items := [name for name, _ in self.held_by(context, OPEN) if may_take(name)]:
                if filled:
                    items += self._next_fresh(share, may_take, items)
                return Work(items, self._handoff_for(context, items))
        items = self._next_fresh(share, may_take)
        return Work(items, None) if items else None

    def _next_fresh(
        self, share: int, may_take: Callable[[str], bool], beside: Sequence[str] = ()
    ) -> list[str]:
        """Return the next fresh items for a context that has some, so that they fit its plan."""
        items: list[str] = []
        size = sum(map(item_bytes, beside))
        most = max(0, min(share, CHUNK_ITEMS) - len(beside))
        for name in islice(filter(may_take, self._fresh), most):
            size += item_bytes(name)
            if (items or beside) and size > CHUNK_BYTES:
                break
            items.append(name)
        return items

    def _is_orphan(self, name: str) -> bool:
        """Return whether the last context of an item died."""
        before = self.contexts.get(self._items[name].context or "")
        return before is not None and before.closed is not None and before.closed.died

    def _handoff_for(self, context: WorkerContext, items: list[str]) -> HandoffRecord | None:
        """Return the handoff of a context for its successor: what is left by the pool's count."""
        left = handoff_from(context)
        if left is None:
            return None
        known, open_items = set(left.left), set(items)

        def kept(names: Iterable[str]) -> tuple[str, ...]:
            # What the agent planned itself, the pool does not know.
            return tuple(name for name in names if name in open_items or name not in self._items)

        new = tuple(name for name in items if name not in known)
        return left.model_copy(
            update={
                "completed": tuple(name for name in left.completed if name not in open_items),
                "interrupted": kept(left.interrupted),
                "remaining": kept(left.remaining) + new,
            }
        )

    def closing(
        self,
        context: WorkerContext,
        in_work: Iterable[str],
        exited: Exit,
        *,
        is_enforced: bool = False,
    ) -> tuple[Closing, dict[str, str]]:
        """Judge a context that has ended and whose claims are settled.

        Progress is a change in items, their steps, verification or notes. Without it an attempt is
        charged to the items in work, else, where the agent left by itself, to the first one; to an
        item whose claim was rejected in any case. A kill from outside is counted apart.

        Args:
            context: The context.
            in_work: The items that were begun and not done.
            exited: How its agent or its process ended, as far as that is known.
            is_enforced: Whether the supervisor ended it because it did not return.

        Returns:
            The facts for the event that closes it, and the items that are given up with it, each
            with the reason.
        """
        end = context.end
        left = dict(self.held_by(context, ASSIGNED))
        begun = [name for name in in_work if name in left]
        words = _words(context.left)
        is_new = bool(words) and words != _words(context.handoff)
        progress = is_new or bool(self.finished_by(context)) or context.has_new_step
        kind, outcome = (None, None) if end is None else (end.kind, end.outcome)
        is_lost = kind == "agent_lost"
        died = outcome in ("lost", "failed") or kind == "agent_refused"
        # An agent that could still say that it was cancelled was sent a signal all the same.
        is_outside = not is_enforced and is_from_outside(exited) and (is_lost or bool(exited))
        charged = [name for name, item in left.items() if item.rejections >= REJECTIONS]
        at_fault: list[str] = []
        if not progress:
            at_fault = begun or ([] if died or is_outside else list(left)[:1])
        if not is_outside:
            charged += [name for name in at_fault if name not in charged]
        killed = [name for name in at_fault if name not in charged]
        closing = Closing(
            reason=_describe_end(end, exited),
            died=died,
            killed=is_lost and _is_kill(exited),
            progress=progress,
            begun=begun,
            charged=charged,
            killed_outside=killed,
        )
        given_up = {}
        for name, item in left.items():
            if name in charged:
                why = f"the last one: {closing.reason}"
                if item.rejections >= REJECTIONS:
                    why = item.reason or "not verified"
                if (reason := self.reason_to_give_up(name, why)) is not None:
                    given_up[name] = reason
            elif name in killed and item.kills + 1 >= KILLS_PER_ATTEMPT * self._max_attempts:
                given_up[name] = f"killed from outside {item.kills + 1} times"
        return closing, given_up

    def reason_to_give_up(self, name: str, why: str) -> str | None:
        """Return why an item is given up if this attempt is charged to it; None = it is not.

        Args:
            name: The item.
            why: How that attempt failed.
        """
        if self._items[name].is_final:
            return why
        attempts = self._items[name].attempts + 1
        if attempts < self._max_attempts:
            return None
        return f"{attempts} contexts without progress on it; {why}"

    def read(self, event: JournalEvent, cursor: str | None) -> Iterator[SupervisorEvent]:
        """Learn from the next event of the run's journal, and yield the steps to report.

        Args:
            event: The event.
            cursor: The place before it.
        """
        kind = event.kind
        known = self.contexts.get(event.agent_id)
        if known is not None:
            known.event_count += 1
        if kind == "agent_assigned":
            yield from self._assign(event, cursor)
        elif kind in self._readers:
            yield from self._readers[kind](event)
        elif known is not None:
            if kind == "context_closed":
                yield from self._close(known, event, Closing.of(event.json))
            else:
                _follow(known, event)
                if known.is_detached:
                    self._detached[known.agent_id] = known
                else:
                    self._detached.pop(known.agent_id, None)

    def _step(self, name: str, event: JournalEvent, items: Iterable[str]) -> SupervisorEvent:
        return SupervisorEvent(name, event.agent_id, tuple(items), event.reason, self.counts)

    def _move(self, item: Item, status: str) -> None:
        self._number_of[item.status] -= 1
        self._number_of[status] += 1
        item.status = status

    def _add(self, event: JournalEvent) -> Iterator[SupervisorEvent]:
        for name in event.items:
            if name not in self._items:
                self._items[name] = Item()
                self._number_of[OPEN] += 1
                self._fresh[name] = None
        yield from ()

    def _assign(self, event: JournalEvent, cursor: str | None) -> Iterator[SupervisorEvent]:
        agent_id = event.agent_id
        if event.supervisor is None or agent_id in self.contexts:
            return
        items = [name for name in dict.fromkeys(event.work) if self._is_free(name)]
        is_restart = any(map(self._is_orphan, items))
        context = WorkerContext(agent_id, items, event.handoff, event.supervisor, cursor)
        context.event_count = 1
        self.contexts[agent_id] = self._open_contexts[agent_id] = context
        # From the journal: another orchestrator may have assigned the last one.
        self.last_number = int(agent_id.rpartition(".")[2])
        continued = dict.fromkeys(self._items[name].context or "" for name in items)
        for name in items:
            item = self._items[name]
            if item.is_half_done:
                self.repeated[name] = None
            if item.is_cut_off:
                self.begun_again[name] = None
            self._fresh.pop(name, None)
            self._unfinished.pop(item.context or "", None)
            self._move(item, ASSIGNED)
            item.context, item.is_half_done, item.is_cut_off = agent_id, False, False
        for before in (self.contexts[one] for one in continued if one in self.contexts):
            # What the successor of a context did not get may begin later, by itself.
            self._fresh |= dict.fromkeys(name for name, _ in self.held_by(before, OPEN))
        yield self._step("restarted" if is_restart else "started", event, items)

    def _put_back(self, name: str) -> None:
        """Take an item from its context; one that is to be continued keeps it for its successor."""
        item = self._items[name]
        self._move(item, OPEN)
        item.rejections = 0
        if item.context not in self._unfinished:
            self._fresh[name] = None

    def _is_free(self, name: str) -> bool:
        return name in self._items and self._items[name].status == OPEN

    def _of(self, event: JournalEvent, status: str) -> list[str]:
        """Return the items of an event that its agent holds in a status."""
        return [
            name
            for name in event.items
            if (item := self._items.get(name)) is not None
            and item.status == status
            and item.context == event.agent_id
        ]

    def _take_step(self, event: JournalEvent) -> Iterator[SupervisorEvent]:
        item, step = event.json["item"], event.json["step"]
        known = self._items.get(item)
        # An agent whose work was put back may still store some: its successor does them again.
        if known is not None and (known.status, known.context) == (ASSIGNED, event.agent_id):
            is_new = self.steps.put(item, step, event.json.get("result"))
            self.contexts[event.agent_id].has_new_step |= is_new
        yield from ()

    def _claim(self, event: JournalEvent) -> Iterator[SupervisorEvent]:
        items = self._of(event, ASSIGNED)
        self.steps.drop(items)
        self.has_claims |= bool(items)
        for name in items:
            self._move(self._items[name], CLAIMED)
            self._items[name].settled_at = event.occurred_at
            self._claimed[name] = None
        yield self._step("claimed", event, items)

    def _verify(self, event: JournalEvent) -> Iterator[SupervisorEvent]:
        items = self._of(event, CLAIMED)
        self.verifications += len(items)
        for name in items:
            self._move(self._items[name], VERIFIED)
            self._items[name].settled_at = event.occurred_at
            del self._claimed[name]
        yield self._step("verified", event, items)

    def _reject(self, event: JournalEvent) -> Iterator[SupervisorEvent]:
        items = self._of(event, CLAIMED)
        for name in items:
            item = self._items[name]
            item.is_final = name in event.final
            item.rejections = REJECTIONS if item.is_final else item.rejections + 1
            item.reason = event.reasons.get(name)
            # The agent may still correct it: `verify` is asked again when the context has ended.
            if item.rejections < REJECTIONS:
                continue
            del self._claimed[name]
            self._move(item, ASSIGNED)
            if self.contexts[event.agent_id].closed is not None:
                self._put_back(name)
                item.attempts += 1
        yield self._step("rejected", event, items)

    def _set_aside(self, event: JournalEvent) -> Iterator[SupervisorEvent]:
        # One that was reopened is no context's.
        givers = (event.agent_id, None)
        free = filter(self._is_free, event.items)
        items = [name for name in free if self._items[name].context in givers]
        self.steps.drop(items)
        for name in items:
            self._move(self._items[name], SET_ASIDE)
            self._items[name].reason = event.reasons.get(name)
            self._fresh.pop(name, None)
        # Without one where its assignment was pruned, or is not read yet.
        context = self.contexts.get(event.agent_id)
        if context is not None and not self.held_by(context, OPEN):
            self._unfinished.pop(context.agent_id, None)
        yield self._step("set_aside", event, items)

    def _reopen(self, event: JournalEvent) -> Iterator[SupervisorEvent]:
        """Put verified items back that a later check denied: they are as good as new."""
        self.reopenings += 1
        known = [name for name in event.items if name in self._items]
        items = [name for name in known if self._items[name].status == VERIFIED]
        for name in items:
            self._move(self._items[name], OPEN)
            self._items[name] = Item(reason=event.reasons.get(name))
            self._fresh[name] = None
        yield SupervisorEvent("reopened", None, tuple(items), None, self.counts)

    def _close(
        self, context: WorkerContext, event: JournalEvent, closing: Closing
    ) -> Iterator[SupervisorEvent]:
        if context.closed is not None:
            return
        context.closed = closing
        del self._open_contexts[context.agent_id]
        begun, charged = set(closing.begun), set(closing.charged)
        killed = set(closing.killed_outside)
        left = self.held_by(context, ASSIGNED)
        has_handoff = handoff_from(context) is not None
        if left and has_handoff:
            self._unfinished[context.agent_id] = None
        for name, item in left:
            self._put_back(name)
            item.is_half_done = closing.killed and name in begun
            item.is_cut_off = closing.died and name in begun
            if name in charged:
                item.attempts += 1
            elif name in killed:
                item.kills += 1
            elif closing.progress:
                item.attempts = item.kills = 0
        names = [name for name, _ in left]
        if names and not closing.died:
            yield self._step("handed_over", event, names)
        yield self._step("ended", event, names)


def handoff_from(context: WorkerContext) -> HandoffRecord | None:
    """Return the handoff that the successor of a context continues; None = it begins afresh.

    A record that was rebuilt after a kill has no words: those of the one before are kept.
    """
    left, before = context.left, context.handoff
    if before is None or _words(left):
        return left
    if left is not None:
        words = {name: getattr(before, name) for name in TEXTS}
        return left.model_copy(update={"goal": left.goal or before.goal, **words})
    is_refused = context.end is not None and context.end.kind == "agent_refused"
    if context.generation or is_refused:
        # It is claimed: the same words under an id of their own.
        return before.model_copy(update={"handoff_id": f"{before.handoff_id}-{context.agent_id}"})
    return before


def _words(handoff: HandoffRecord | None) -> list[object]:
    """Return what an agent wrote into its handoff; empty for nothing."""
    words = [getattr(handoff, name, None) for name in TEXTS]
    return words if any(words) else []


def _follow(context: WorkerContext, event: JournalEvent) -> None:
    """Follow the life of a context's agent."""
    kind, generation, end = event.kind, event.generation, context.end
    if kind == "context_spawned":
        context.process = event.process
    elif kind == "agent_started":
        # What the journal says first holds: work that was put back is not its work any more.
        is_late = context.closed is not None or (end is not None and end.is_void)
        context.generation = generation
        if is_late:
            context.is_detached = True
        else:
            context.end = None
    elif kind in ("agent_stopped", "agent_lost", "agent_refused"):
        # A process that ended between its first event and its first state has no generation.
        if 0 < generation < context.generation or (event.is_void and context.generation):
            return
        context.is_detached = False
        if context.closed is None:
            context.end = event
    elif kind == "agent_recovered":
        if context.closed is not None:
            context.is_detached = True
        elif end is not None and end.kind == "agent_lost":
            context.end = None
    elif kind == "handoff_ready" and generation and context.closed is None:
        # One that a fleet made of what an agent left out, or offers again, has no words.
        if event.handoff is not None and not event.is_made:
            context.left, context.is_asked = event.handoff, True
    elif kind == "return_requested" or event.action == FORCE_RETURN:
        context.is_asked = True
    elif kind == "context_relaxed":
        context.is_asked = context.left is not None


def _describe_end(end: JournalEvent | None, exited: Exit) -> str:
    if end is not None and end.kind == "agent_refused":
        return f"refused: {end.reason}"
    how = exited.get("message") or exited.get("error") or exited.get("signal")
    if how is None and "returncode" in exited:
        how = f"exit code {exited['returncode']}"
    outcome = str(None if end is None else end.outcome)
    return outcome if how is None else f"{outcome} ({how})"


def _is_kill(exited: Exit) -> bool:
    return "signal" in exited or is_from_outside(exited)


def is_from_outside(exited: Exit) -> bool:
    """Whether a process ended by a signal that others send, or in a way that is not known."""
    if exited.get("outOfMemory"):
        return False
    sent = exited.get("signal") in _SENT_SIGNALS or exited.get("returncode") in _SENT_CODES
    return sent or not exited
