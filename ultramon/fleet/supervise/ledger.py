"""Who began and completed each item of a run, from states, assignments and handoffs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.state.plan import DONE, IN_PROGRESS, INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from ultramon.backends.base import Backend
    from ultramon.fleet.journal_event import JournalEvent
    from ultramon.handoff import HandoffRecord
    from ultramon.state.record import StateRecord

_VERDICTS = (
    "items_claimed", "items_verified", "items_rejected", "items_set_aside", "items_reopened",
)  # fmt: skip
_EARLIER = 0
"""The number of an unknown life: the item's beginning or end was seen, not its life."""


class _Item(NamedTuple):
    begun_by: set[tuple[str, int]]
    """Agents and the generations in which they began it."""
    done_by: set[tuple[str, int]]
    """Agents and the numbers of the lives in which they completed it."""


class Ledger:
    """The items of a run by name: agents that planned the same name mean the same item.

    An agent that starts again under its id replaces its state, so its former plan is known only if
    the former state was entered in time.

    Args:
        before: The last generation of each agent that this ledger is not about; what is entered
            about it, or about one before it, is passed over. None = about all.
    """

    def __init__(self, before: Mapping[str, int] | None = None) -> None:
        self._before = before or {}
        self._died: set[tuple[str, int]] = set()
        self._survived: set[tuple[str, int]] = set()
        self._with_plan: set[tuple[str, int]] = set()
        self._assigned_at: dict[str, int] = {}
        self._items: dict[str, _Item] = {}
        self._set_aside: dict[str, str] = {}
        self._unverified: dict[str, None] = {}
        self._has_verdicts = False
        self._lives: dict[str, tuple[int, int, bool]] = {}

    @property
    def agent_ids(self) -> list[str]:
        """The agents whose states were seen."""
        return list(self._lives)

    @property
    def planned(self) -> list[str]:
        """The items that were planned or assigned, in the order they were seen."""
        return list(self._items)

    @property
    def completed(self) -> list[str]:
        """The items that were completed."""
        return [name for name, item in self._items.items() if item.done_by]

    @property
    def lost(self) -> list[str]:
        """The items that were planned or assigned, never completed, and not set aside."""
        never_done = [name for name, item in self._items.items() if not item.done_by]
        return [name for name in never_done if name not in self._set_aside]

    @property
    def set_aside(self) -> dict[str, str]:
        """The items that a supervisor has given up, with the reason."""
        return self._set_aside

    @property
    def unverified(self) -> list[str]:
        """The items that were claimed in vain: a run with a check never confirmed them."""
        return [name for name in self._unverified if self._has_verdicts]

    @property
    def repeated(self) -> list[str]:
        """The items that were completed more than once, or begun by more than one owner."""
        return [
            name
            for name, item in self._items.items()
            if len(item.done_by) > 1 or len(item.begun_by) > 1
        ]

    def done_by(self, name: str) -> list[str]:
        """Return the agents that completed an item, each as often as it did."""
        item = self._items.get(name)
        return sorted(agent_id for agent_id, _ in item.done_by) if item else []

    def enter_state(self, record: StateRecord) -> None:
        """Enter one state of an agent; repeating it changes nothing."""
        agent_id, begin = record.agent_id, (record.agent_id, record.generation)
        if not self.concerns(*begin):
            return
        if record.tasks:
            self._with_plan.add(begin)
        life = (agent_id, self._life(record))
        for task in record.tasks or ():
            item = self._item(task["name"])
            status = task["status"]
            if status == IN_PROGRESS:
                item.begun_by.add(begin)
            elif status == INTERRUPTED:
                _add_unless_known(item.begun_by, agent_id)
            elif status == DONE and life not in item.done_by:
                item.done_by.add(life)
                item.begun_by.add(begin)

    def enter_event(self, json: dict[str, Any]) -> None:
        """Enter an event of the journal, as it is stored."""
        from ultramon.fleet.journal_event import JournalEvent

        event = JournalEvent.of(json)
        kind, agent_id, generation = event.kind, event.agent_id, event.generation
        life = agent_id, generation
        began_at = generation + (kind == "agent_assigned")
        # A life without a generation never began, so it is in no state from before.
        if began_at and not self.concerns(agent_id, began_at):
            return
        if kind == "handoff_ready" and event.handoff is not None:
            self._enter_handoff(event.handoff)
            if event.handoff.left or event.handoff.completed:
                self._with_plan.add(life)
                if "releasedFrom" in json:
                    self._with_plan.add((json["releasedFrom"], 0))  # it died in its start
        elif kind == "agent_assigned":
            self._assigned_at.setdefault(agent_id, generation)
            for name in event.work:
                self._item(name)
        elif kind in _VERDICTS:
            self._enter_verdict(kind, event)
        elif kind == "agent_lost":
            self._died.add(life)
            self._survived.discard(life)
        elif kind in ("agent_recovered", "agent_stopped"):
            self._died.discard(life)
            self._survived.add(life)

    def _enter_verdict(self, kind: str, event: JournalEvent) -> None:
        self._has_verdicts |= kind in ("items_verified", "items_rejected", "items_reopened")
        for name in event.items:
            if kind in ("items_claimed", "items_reopened"):
                self._unverified[name] = None
            elif kind != "items_rejected":
                self._unverified.pop(name, None)
            if kind == "items_set_aside":
                self._set_aside[name] = event.reasons.get(name, "")
                self._item(name)

    def _enter_handoff(self, handoff: HandoffRecord) -> None:
        for name in (*handoff.completed, *handoff.interrupted):
            _add_unless_known(self._item(name).begun_by, handoff.agent_id)
        for name in handoff.completed:
            _add_unless_known(self._item(name).done_by, handoff.agent_id)
        for name in handoff.remaining:
            self._item(name)

    def concerns(self, agent_id: str, generation: int) -> bool:
        """Return whether a life is one that this ledger is about."""
        return agent_id not in self._before or generation > self._before[agent_id]

    def without_plan(self, died: Iterable[tuple[str, int]]) -> list[str]:
        """Return the agents whose work is unknown: they died without a plan or an assignment.

        Args:
            died: Agents and generations that are lost by their states, with or without a verdict.
        """
        unknown = (self._died | (set(died) - self._survived)) - self._with_plan
        return sorted({life[0] for life in unknown if not self._is_assigned(*life)})

    def _is_assigned(self, agent_id: str, generation: int) -> bool:
        """Return whether a life was assigned its work."""
        assigned_at = self._assigned_at.get(agent_id)
        return assigned_at is not None and (generation == 0 or assigned_at < generation)

    def _item(self, name: str) -> _Item:
        return self._items.setdefault(name, _Item(set(), set()))

    def _life(self, record: StateRecord) -> int:
        """Return the number of the life that a state belongs to; a new life begins after an end."""
        life, generation, active = self._lives.get(
            record.agent_id, (1, record.generation, record.active)
        )
        if record.generation > generation and not active:
            life += 1
        self._lives[record.agent_id] = life, record.generation, record.active
        return life


def _add_unless_known(lives: set[tuple[str, int]], agent_id: str) -> None:
    if not any(agent == agent_id for agent, _ in lives):
        lives.add((agent_id, _EARLIER))


def end_of_journal(backend: Backend) -> str | None:
    """Return the cursor behind all present events."""
    cursor = None
    while (page := backend.events(cursor)).events:
        cursor = page.cursor
    return cursor


def events_of(backend: Backend, run: str, cursor: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events of a run behind a cursor, oldest first."""
    while (page := backend.events(cursor)).events:
        cursor = page.cursor
        yield from (event for event in page.events if event["run"] == run)


def read_ledger(backend: Backend, run: str) -> Ledger:
    """Return the ledger of all that is stored about a run."""
    from ultramon.state.models import is_whole

    ledger = Ledger()
    # States first: they know the life of a completion, which a handoff then adds nothing to.
    for agent in backend.list_agents(run):
        if agent.record is not None and is_whole(agent.record):
            ledger.enter_state(agent.record)
    for event in events_of(backend, run):
        ledger.enter_event(event)
    return ledger


def unproven(
    backend: Backend,
    run: str,
    finished: Collection[str],
    item_of: Callable[[str], str | None] = str,
) -> tuple[str, ...]:
    """Return the items that are counted as finished and that no state or handoff shows as done."""
    proven = set(map(item_of, read_ledger(backend, run).completed))
    return tuple(name for name in finished if name not in proven)
