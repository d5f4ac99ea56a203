"""Through whose hands each item of a run went, read from states, assignments and handoffs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.state.plan import DONE, IN_PROGRESS, INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.backends.base import Backend
    from ultramon.state.record import StateRecord

_EARLIER = 0
"""Stands for the life in which an item was begun when only what became of it was seen."""


class _Item:
    __slots__ = ("begun_by", "done_by")

    def __init__(self) -> None:
        self.begun_by: set[tuple[str, int]] = set()
        """Agents and the generations in which they began it."""
        self.done_by: set[tuple[str, int]] = set()
        """Agents and the number of their life in which they completed it."""


class Ledger:
    """Goes by item names: two agents that planned the same name mean the same item.

    What a state no longer tells is known only if the state was seen while it did: an agent that
    ends and starts again under its id leaves a state without its former plan.
    """

    def __init__(self) -> None:
        self._items: dict[str, _Item] = {}
        self._lives: dict[str, tuple[int, int, bool]] = {}

    @property
    def agent_ids(self) -> list[str]:
        """The agents whose states were seen."""
        return list(self._lives)

    @property
    def planned(self) -> list[str]:
        """Every item that was planned or assigned, in the order in which it was seen."""
        return list(self._items)

    @property
    def completed(self) -> list[str]:
        """The items that somebody completed."""
        return [name for name, item in self._items.items() if item.done_by]

    @property
    def lost(self) -> list[str]:
        """The items that were planned or assigned, and never completed."""
        return [name for name, item in self._items.items() if not item.done_by]

    @property
    def repeated(self) -> list[str]:
        """The items that were completed more than once, or begun by more than one owner."""
        return [
            name
            for name, item in self._items.items()
            if len(item.done_by) > 1 or len(item.begun_by) > 1
        ]

    def done_by(self, name: str) -> list[str]:
        """Return the agents that completed an item, one of them as often as it did so."""
        item = self._items.get(name)
        return sorted(agent_id for agent_id, _ in item.done_by) if item else []

    def see_state(self, record: StateRecord) -> None:
        """Enter one state of an agent; the same one again changes nothing."""
        agent_id, begin = record.agent_id, (record.agent_id, record.generation)
        life = (agent_id, self._life(record))
        for task in record.tasks or ():
            item = self._items.setdefault(task["name"], _Item())
            status = task["status"]
            if status == IN_PROGRESS:
                item.begun_by.add(begin)
            elif status == INTERRUPTED:
                self._was_begun(item, agent_id)
            elif status == DONE and life not in item.done_by:
                item.done_by.add(life)
                item.begun_by.add(begin)

    def see_handoff(self, handoff: dict[str, Any]) -> None:
        """Enter a handoff as it stands in the journal."""
        agent_id = handoff["agentId"]
        for name in handoff.get("completed", ()):
            item = self._items.setdefault(name, _Item())
            self._was_begun(item, agent_id)
            if not any(agent == agent_id for agent, _ in item.done_by):
                item.done_by.add((agent_id, _EARLIER))
        for name in handoff.get("interrupted", ()):
            self._was_begun(self._items.setdefault(name, _Item()), agent_id)
        for name in handoff.get("remaining", ()):
            self._items.setdefault(name, _Item())

    def see_assignment(self, event: dict[str, Any]) -> None:
        """Enter what an agent was given before its start, as it stands in the journal."""
        from ultramon.fleet.assignments import items_of

        for name in items_of([event]):
            self._items.setdefault(name, _Item())

    def _life(self, record: StateRecord) -> int:
        """Return which life of an agent a state belongs to: a new one begins after an end."""
        life, generation, active = self._lives.get(
            record.agent_id, (1, record.generation, record.active)
        )
        if record.generation > generation and not active:
            life += 1
        self._lives[record.agent_id] = life, record.generation, record.active
        return life

    @staticmethod
    def _was_begun(item: _Item, agent_id: str) -> None:
        if not any(agent == agent_id for agent, _ in item.begun_by):
            item.begun_by.add((agent_id, _EARLIER))


def end_of_journal(backend: Backend) -> str | None:
    """Return the cursor behind all events that there are now."""
    cursor = None
    while (page := backend.events(cursor)).events:
        cursor = page.cursor
    return cursor


def events_of(backend: Backend, run: str, cursor: str | None = None) -> Iterator[dict[str, Any]]:
    """Return the events of a run behind a cursor as they stand in the journal, oldest first."""
    while (page := backend.events(cursor)).events:
        cursor = page.cursor
        yield from (event for event in page.events if event["run"] == run)
