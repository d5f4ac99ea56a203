"""The items of a supervised run: which context has each, and what has become of it.

Pure bookkeeping: the pool is what the events of the journal add up to, in their order, and nothing
else. Two orchestrators that have read the same events have the same pool.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.context.ladder import FORCE_RETURN
from ultramon.fleet.assignments import items_of
from ultramon.fleet.supervisor_result import ItemCounts, SupervisorEvent
from ultramon.monitor.handoff import left_in
from ultramon.state.plan import MAX_PLAN_BYTES, item_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

OPEN = "open"
ASSIGNED = "assigned"
CLAIMED = "claimed"
VERIFIED = "verified"
SET_ASIDE = "set_aside"

REJECTIONS = 2
"""So often one context's claim of an item is rejected before the item is put back."""
CHUNK_ITEMS = 500
"""A context saves its whole plan after each item: 500 paths are some 60 KB."""
CHUNK_BYTES = MAX_PLAN_BYTES // 2
"""The other half is for what the agent plans itself."""

_WORDS = (
    "constraints", "decisions", "rejected", "openQuestions", "nextStep", "filesModified", "notes",
)  # fmt: skip
"""What an agent writes into its handoff itself."""


@dataclass(slots=True)
class Item:
    """One item.

    Attributes:
        status: One of the statuses above.
        context: The context that had it last.
        rejections: How often the claim of that context was rejected.
        attempts: How many contexts in a row made no progress on it.
        reason: Why it was rejected or set aside last.
        is_half_done: Whether a context was killed while it worked on it.
    """

    status: str = OPEN
    context: str | None = None
    rejections: int = 0
    attempts: int = 0
    reason: str | None = None
    is_half_done: bool = False


@dataclass(slots=True)
class Context:
    """One context: an agent that was assigned a part of the items.

    Attributes:
        agent_id: The agent.
        items: The items that it was assigned.
        handoff: The handoff that it is to continue, as JSON.
        supervisor: The orchestrator that assigned them, and alone may start the agent.
        cursor: The place in the journal before the assignment.
        process: The event that tells its process; None = not known to have been started.
        generation: Of its stored state; 0 before it started.
        left: The last handoff that it left, as JSON.
        end: The event that ended its agent.
        is_asked: Whether it should return.
        closed: The event that put back what it left.
        is_ghost: Whether it runs on although its items were put back.
    """

    agent_id: str
    items: list[str]
    handoff: dict[str, Any] | None
    supervisor: str
    cursor: str | None
    process: dict[str, Any] | None = None
    generation: int = 0
    left: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    is_asked: bool = False
    closed: dict[str, Any] | None = None
    is_ghost: bool = False


class Work(NamedTuple):
    """What the next context is to do: a handoff to continue, or items."""

    items: list[str]
    handoff: dict[str, Any] | None


class ItemPool:
    """The items and contexts of one run.

    Args:
        max_attempts: So many contexts without progress on an item set it aside.

    Attributes:
        contexts: By agent id, in the order of their assignment.
        repeated: Items that were begun again after a kill.
        last_number: The number at the end of the last context's agent id.
    """

    def __init__(self, max_attempts: int) -> None:
        self.contexts: dict[str, Context] = {}
        self.repeated: dict[str, None] = {}
        self.last_number = 0
        self._max_attempts = max_attempts
        self._items: dict[str, Item] = {}
        self._number_of: Counter[str] = Counter()
        self._fresh: dict[str, None] = {}
        self._unfinished: dict[str, None] = {}
        self._open_contexts: dict[str, Context] = {}
        self._readers: dict[str, Callable[[dict[str, Any]], Iterator[SupervisorEvent]]] = {
            "items_added": self._add,
            "items_claimed": self._claim,
            "items_verified": self._verify,
            "items_rejected": self._reject,
            "items_set_aside": self._set_aside,
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
    def open_contexts(self) -> list[Context]:
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

    def held_by(self, context: Context, status: str) -> Iterator[tuple[str, Item]]:
        """Yield the items of a status that a context had last."""
        for name in context.items:
            item = self._items[name]
            if item.status == status and item.context == context.agent_id:
                yield name, item

    def claimable(self, context: Context, done: Iterable[str]) -> list[str]:
        """Return which of the items that an agent has recorded as done are new claims."""
        recorded = set(done)
        return [
            name
            for name, item in self.held_by(context, ASSIGNED)
            if name in recorded and item.rejections < REJECTIONS
        ]

    def next_work(self, share: int) -> Work | None:
        """Return the work for the next context, None without any; what was left comes first.

        Args:
            share: How many fresh items at most.
        """
        for agent_id in self._unfinished:
            context = self.contexts[agent_id]
            if items := [name for name, _ in self.held_by(context, OPEN)]:
                return Work(items, self._handoff_for(context, items))
        items, size = [], 0
        for name in islice(self._fresh, min(share, CHUNK_ITEMS)):
            size += item_bytes(name)
            if items and size > CHUNK_BYTES:
                break
            items.append(name)
        return Work(items, None) if items else None

    def _is_orphan(self, name: str) -> bool:
        """Return whether the last context of an item died."""
        before = self.contexts.get(self._items[name].context or "")
        return before is not None and before.closed is not None and bool(before.closed["died"])

    def _handoff_for(self, context: Context, items: list[str]) -> dict[str, Any] | None:
        """Return the handoff of a context for its successor: what is left by the pool's count."""
        left = handoff_from(context)
        if left is None:
            return None
        known, open_items = set(left_in(left)), set(items)

        def kept(names: Iterable[str]) -> list[str]:
            # What the agent planned itself, the pool does not know.
            return [name for name in names if name in open_items or name not in self._items]

        remaining = kept(left["remaining"]) + [name for name in items if name not in known]
        return {
            **left,
            "completed": [name for name in left["completed"] if name not in open_items],
            "interrupted": kept(left["interrupted"]),
            "remaining": remaining,
        }

    def closing(self, context: Context, in_work: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
        """Judge a context that has ended and whose claims are settled.

        Progress is a change in items, verification or notes. Without it the items in work are
        blamed, else, where the agent left by itself, the first one. An item whose claim was
        rejected is blamed all the same.

        Args:
            context: The context.
            in_work: The items that were begun and not done.

        Returns:
            The facts for the event that closes it, and the items that are given up with it.
        """
        end = context.end or {}
        left = dict(self.held_by(context, ASSIGNED))
        begun = [name for name in in_work if name in left]
        words = _words(context.left)
        is_new = bool(words) and words != _words(context.handoff)
        settled = (*self.held_by(context, CLAIMED), *self.held_by(context, VERIFIED))
        progress = is_new or bool(settled)
        died = end.get("outcome") in ("lost", "failed") or end.get("type") == "agent_refused"
        blamed = [name for name, item in left.items() if item.rejections >= REJECTIONS]
        if not progress:
            untouched = [] if died else list(left)[:1]
            blamed += [name for name in begun or untouched if name not in blamed]
        facts = {
            "reason": _describe_end(end),
            "died": died,
            "killed": end.get("type") == "agent_lost" and _is_kill(end.get("exit") or {}),
            "progress": progress,
            "begun": begun,
            "blamed": blamed,
        }
        return facts, [name for name in blamed if left[name].attempts + 1 >= self._max_attempts]

    def read(self, event: dict[str, Any], cursor: str | None) -> Iterator[SupervisorEvent]:
        """Learn from the next event of the run's journal, and yield what there is to tell.

        Args:
            event: The event.
            cursor: The place before it.
        """
        kind = event["type"]
        if kind == "agent_assigned":
            yield from self._assign(event, cursor)
        elif kind in self._readers:
            yield from self._readers[kind](event)
        elif (context := self.contexts.get(event["agentId"])) is not None:
            if kind == "context_closed":
                yield from self._close(context, event)
            else:
                _follow(context, event)

    def _tell(self, name: str, event: dict[str, Any], items: Iterable[str]) -> SupervisorEvent:
        return SupervisorEvent(
            name, event["agentId"], tuple(items), event.get("reason"), self.counts
        )

    def _move(self, item: Item, status: str) -> None:
        self._number_of[item.status] -= 1
        self._number_of[status] += 1
        item.status = status

    def _add(self, event: dict[str, Any]) -> Iterator[SupervisorEvent]:
        for name in event["items"]:
            if name not in self._items:
                self._items[name] = Item()
                self._number_of[OPEN] += 1
                self._fresh[name] = None
        yield from ()

    def _assign(self, event: dict[str, Any], cursor: str | None) -> Iterator[SupervisorEvent]:
        agent_id = event["agentId"]
        if event.get("supervisor") is None or agent_id in self.contexts:
            return
        items = [name for name in items_of([event]) if self._is_free(name)]
        is_restart = any(map(self._is_orphan, items))
        context = Context(agent_id, items, event.get("handoff"), event["supervisor"], cursor)
        self.contexts[agent_id] = self._open_contexts[agent_id] = context
        self.last_number = int(agent_id.rpartition(".")[2])
        for name in items:
            item = self._items[name]
            if item.is_half_done:
                self.repeated[name] = None
            self._fresh.pop(name, None)
            self._unfinished.pop(item.context or "", None)
            self._move(item, ASSIGNED)
            item.context, item.is_half_done = agent_id, False
        yield self._tell("restarted" if is_restart else "started", event, items)

    def _is_free(self, name: str) -> bool:
        return name in self._items and self._items[name].status == OPEN

    def _of(self, event: dict[str, Any], status: str) -> list[str]:
        """Return the items of an event that its agent holds in a status."""
        return [
            name
            for name in event["items"]
            if (item := self._items.get(name)) is not None
            and item.status == status
            and item.context == event["agentId"]
        ]

    def _claim(self, event: dict[str, Any]) -> Iterator[SupervisorEvent]:
        items = self._of(event, ASSIGNED)
        for name in items:
            self._move(self._items[name], CLAIMED)
        yield self._tell("claimed", event, items)

    def _verify(self, event: dict[str, Any]) -> Iterator[SupervisorEvent]:
        items = self._of(event, CLAIMED)
        for name in items:
            self._move(self._items[name], VERIFIED)
        yield self._tell("verified", event, items)

    def _reject(self, event: dict[str, Any]) -> Iterator[SupervisorEvent]:
        items = self._of(event, CLAIMED)
        for name in items:
            item = self._items[name]
            item.rejections += 1
            item.reason = event["reasons"].get(name)
            if item.rejections >= REJECTIONS:
                self._move(item, ASSIGNED)
        yield self._tell("rejected", event, items)

    def _set_aside(self, event: dict[str, Any]) -> Iterator[SupervisorEvent]:
        items = self._of(event, OPEN)
        for name in items:
            self._move(self._items[name], SET_ASIDE)
            self._items[name].reason = event["reasons"].get(name)
            self._fresh.pop(name, None)
        context = self.contexts[event["agentId"]]
        if not any(self.held_by(context, OPEN)):
            self._unfinished.pop(context.agent_id, None)
        yield self._tell("set_aside", event, items)

    def _close(self, context: Context, event: dict[str, Any]) -> Iterator[SupervisorEvent]:
        if context.closed is not None:
            return
        context.closed = event
        del self._open_contexts[context.agent_id]
        begun, blamed = set(event["begun"]), set(event["blamed"])
        left = list(self.held_by(context, ASSIGNED))
        has_handoff = handoff_from(context) is not None
        for name, item in left:
            self._move(item, OPEN)
            item.rejections = 0
            item.is_half_done = event["killed"] and name in begun
            if name in blamed:
                item.attempts += 1
            elif event["progress"]:
                item.attempts = 0
            if not has_handoff:
                self._fresh[name] = None
        if left and has_handoff:
            self._unfinished[context.agent_id] = None
        names = [name for name, _ in left]
        if names and not event["died"]:
            yield self._tell("handed_over", event, names)
        yield self._tell("ended", event, names)


def handoff_from(context: Context) -> dict[str, Any] | None:
    """Return the handoff that the successor of a context continues; None = it begins afresh.

    A record that was rebuilt after a kill has no words: those of the one before go on.
    """
    left, before = context.left, context.handoff
    if before is None or _words(left):
        return left
    if left is not None:
        goal = left.get("goal") or before.get("goal")
        return {**left, "goal": goal, **{name: before.get(name) for name in _WORDS}}
    if context.generation or (context.end or {}).get("type") == "agent_refused":
        # It is claimed: the same words under an id of their own.
        return {**before, "handoffId": f"{before['handoffId']}-{context.agent_id}"}
    return before


def _words(handoff: dict[str, Any] | None) -> list[Any]:
    """Return what an agent wrote into its handoff; empty for nothing."""
    words = [(handoff or {}).get(name) for name in _WORDS]
    return words if any(words) else []


def _follow(context: Context, event: dict[str, Any]) -> None:
    """Follow the life of a context's agent."""
    kind, generation = event["type"], event["generation"]
    if kind == "context_spawned":
        context.process = event
    elif kind == "agent_started":
        # What the journal says first holds: work that was put back is not its work any more.
        is_late = context.closed is not None or "void" in (context.end or {})
        context.generation = generation
        if is_late:
            context.is_ghost = True
        else:
            context.end = None
    elif kind in ("agent_stopped", "agent_lost", "agent_refused"):
        # A process that ended between its first event and its first state has no generation.
        if 0 < generation < context.generation or (event.get("void") and context.generation):
            return
        context.is_ghost = False
        if context.closed is None:
            context.end = event
    elif kind == "agent_recovered":
        if context.closed is not None:
            context.is_ghost = True
        elif (context.end or {}).get("type") == "agent_lost":
            context.end = None
    elif kind == "handoff_ready" and generation and context.closed is None:
        # One that a fleet made of what an agent left out, or offers again, has no words.
        if not (event.get("endedWith") or "releasedFrom" in event):
            context.left, context.is_asked = event["handoff"], True
    elif kind == "return_requested" or event.get("action") == FORCE_RETURN:
        context.is_asked = True
    elif kind == "context_relaxed":
        context.is_asked = context.left is not None


def _describe_end(end: dict[str, Any]) -> str:
    if end.get("type") == "agent_refused":
        return f"refused: {end.get('reason')}"
    exited = end.get("exit") or {}
    how = exited.get("error") or exited.get("signal")
    if how is None and "returncode" in exited:
        how = f"exit code {exited['returncode']}"
    outcome = str(end.get("outcome"))
    return outcome if how is None else f"{outcome} ({how})"


def _is_kill(exited: dict[str, Any]) -> bool:
    return not exited or "signal" in exited
