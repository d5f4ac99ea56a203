"""Checks the stored records of `ultramon demo` against the notes of its workers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.cli.demo.worker import BEGUN, DONE, read_notes
from ultramon.fleet.ledger import Ledger, events_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ultramon.backends.base import Backend
    from ultramon.state.record import StateRecord

    Notes = Mapping[str, list[tuple[str, str]]]


class Evidence(NamedTuple):
    """Everything that a run left behind."""

    records: list[StateRecord]
    handoffs: list[dict[str, Any]]
    notes: Notes
    """The notes of each worker, as (begun or done, item)."""
    ledger: Ledger
    unreadable: int

    @classmethod
    def gather(cls, backend: Backend, run: str, folder: str) -> Evidence:
        """Read states, events and notes from where they are stored."""
        stored = backend.list_agents(run)
        records = [agent.record for agent in stored if agent.record is not None]
        events = list(events_of(backend, run))
        handoffs = [event["handoff"] for event in events if event["type"] == "handoff_ready"]
        notes = {agent.agent_id: read_notes(folder, agent.agent_id) for agent in stored}
        ledger = Ledger()
        for record in records:
            ledger.enter_state(record)
        for event in events:
            ledger.enter_event(event)
        return cls(records, handoffs, notes, ledger, len(stored) - len(records))

    def problems(self, names: list[str], killed: Collection[str]) -> list[str]:
        """Return the problems found; none if every item was done exactly once.

        Args:
            names: The items to be done, each once.
            killed: Ids of the agents that were killed.
        """
        problems = [
            *check_items(names, self.ledger),
            *check_agents(self.records, self.handoffs, killed),
            *check_notes(self.ledger, self.notes, len(killed)),
        ]
        if self.unreadable:
            problems.append(f"{self.unreadable} states cannot be read")
        return problems

    def summary(
        self, names: list[str], killed: Collection[str], problems: list[str]
    ) -> dict[str, Any]:
        """Return the members that ``--json`` prints."""
        return {
            "items": len(names),
            "itemsDone": len(self.ledger.completed),
            "itemsBegunAgain": len(begun_again(self.notes)),
            "itemsLost": len(set(names) - set(self.ledger.completed)),
            "agents": len(self.records),
            "kills": len(killed),
            "handoffs": len(self.handoffs),
            "handoffReasons": dict(Counter(handoff["reason"] for handoff in self.handoffs)),
            "tokens": sum(record.estimated_tokens for record in self.records),
            "everyItemDoneOnce": not problems,
            "problems": problems,
        }


def check_items(names: list[str], ledger: Ledger) -> list[str]:
    """Compare the items to be done with the records; return the problems."""
    problems = [f"{name} was never done" for name in names if not ledger.done_by(name)]
    times = {name: len(ledger.done_by(name)) for name in ledger.completed}
    problems += [f"{name} was done {count} times" for name, count in times.items() if count > 1]
    return problems + [f"{name} was not asked for" for name in sorted(times.keys() - set(names))]


def check_agents(
    records: list[StateRecord], handoffs: list[dict[str, Any]], killed: Collection[str]
) -> list[str]:
    """Return the agents that did not end, and the handoffs without exactly one successor."""
    problems = [
        f"agent {record.agent_id} did not end"
        for record in records
        if record.active and record.agent_id not in killed
    ]
    successors = Counter(record.predecessor_id for record in records)
    for handoff in handoffs:
        agent_id, left = handoff["agentId"], handoff["interrupted"] or handoff["remaining"]
        if successors[agent_id] != (1 if left else 0):
            problems.append(f"agent {agent_id} handed off to {successors[agent_id]} successors")
    return problems


def check_notes(ledger: Ledger, notes: Notes, kills: int) -> list[str]:
    """Compare the records with the notes of the workers; return the problems."""
    problems = [
        f"{name} counts as done by agent {agent_id}, which did not note it"
        for name in ledger.completed
        for agent_id in ledger.done_by(name)
        if (DONE, name) not in notes.get(agent_id, ())
    ]
    again = begun_again(notes)
    if len(again) > kills:
        problems.append(f"{len(again)} items were begun again, with {kills} kills")
    return problems


def begun_again(notes: Notes) -> list[str]:
    """Return the items that were begun more than once."""
    begun = Counter(name for noted in notes.values() for what, name in noted if what == BEGUN)
    return [name for name, count in begun.items() if count > 1]
