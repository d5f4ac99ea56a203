"""Proof, from the records of a run, that no planned item was lost."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ultramon.backends.claims import has_taken_over
from ultramon.fleet.journal_event import JournalEvent
from ultramon.fleet.supervise.ledger import Ledger, events_of
from ultramon.handoff import HandoffRecord
from ultramon.state.liveness import ENDED, LOST, judge
from ultramon.state.plan import DONE
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.processes import this_machine
from ultramon.system.wording import plural

if TYPE_CHECKING:
    from typing import Any

    from ultramon.backends.base import Backend, StoredAgent
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock


def assert_no_work_lost(
    run: str, backend: Backend | str | None = None, *, clock: Clock | None = None
) -> None:
    """Assert that each item of a run is done, held by a living agent, or waits in a handoff.

    Items are those that agents planned or were assigned. An item that `Fleet.supervise` has set
    aside is not lost, but no agent does it any more: that fails too.

    Items are known by name: agents that planned the same name share the item, and the last holder
    decides. A handoff waits until an agent has started with its items in its plan; items that a
    successor claimed without ever beginning are lost.

    Args:
        run: Whose agents.
        backend: A backend or its URL; None = see `open_backend`.
        clock: That of the agents, for tests; None = the system's.

    Raises:
        AssertionError: Items are lost; lists them with the agents that had them. Items are set
            aside; lists them with the reason. Also when the run has no agents, a state cannot be
            read, or an agent died with neither a plan nor an assignment: then nothing is proven.
    """
    from ultramon.backends.opening import as_backend

    backend = as_backend(backend)
    stored = backend.list_agents(run)
    if not stored:
        raise AssertionError(f"no agent of run {run} is stored in {backend.url}")
    unreadable = [f"{agent.agent_id}: {agent.problem}" for agent in stored if agent.record is None]
    if unreadable:
        raise AssertionError("\n  ".join(["states cannot be read:", *unreadable]))

    history = _History(run, backend, stored, (clock or SYSTEM_CLOCK).now())
    set_aside = history.set_aside
    lost = [item for item in history.holders if item not in set_aside and not history.is_safe(item)]
    lines = []
    if lost:
        lines = [f"run {run}: {len(lost)} of {len(history.holders)} planned items are lost"]
        lines += [f"{item}: {history.describe(item)}" for item in lost]
    if set_aside:
        lines.append(f"run {run}: {plural(len(set_aside), 'item')} set aside, no agent does them:")
        lines += [f"{item}: {reason}" for item, reason in set_aside.items()]
    if history.died_without_plan:
        lines.append(f"run {run}: agents died without a plan, nobody knows their work:")
        lines += history.died_without_plan
    if lines:
        raise AssertionError("\n  ".join(lines))


class _History:
    """The holders of each item of a run, in the order of the journal."""

    def __init__(self, run: str, backend: Backend, stored: list[StoredAgent], now: float) -> None:
        self.holders: dict[str, list[str]] = {}
        self._safe: set[str] = set()
        self._ends: dict[str, str] = {}
        self._planned: defaultdict[str, list[StateRecord]] = defaultdict(list)
        self._started_at: dict[str, int] = {}
        self._handoffs: dict[str, tuple[int, HandoffRecord]] = {}
        self._living: dict[str, int] = {}
        died, ledger = [], Ledger()
        machine = this_machine()
        for agent in stored:
            if agent.record is not None:
                liveness = judge(agent.record, agent.heartbeat_at, now, machine)
                owner = (agent.agent_id, agent.record.generation)
                self._ends[agent.agent_id] = f"{liveness.verdict}: {liveness.reason}"
                self._note_state(agent.record, lives=liveness.verdict not in (ENDED, LOST))
                if liveness.verdict == LOST:
                    died.append(owner)
                elif liveness.verdict != ENDED:
                    self._living.update([owner])
                ledger.enter_state(agent.record)
        events = list(events_of(backend, run))
        position = len(events)
        for index, event in enumerate(events, 1):
            self._read(index, event)
            ledger.enter_event(event)
        self.set_aside = ledger.set_aside
        self.died_without_plan = list(map(self._describe_agent, ledger.without_plan(died)))
        records = {agent.agent_id: agent.record for agent in stored}
        self._adrift = {
            claim.handoff_id: claim.successor_id
            for claim in backend.pending_claims()
            if not has_taken_over(records.get(claim.successor_id), claim)
        }
        for agent in stored:
            # An event that a busy journal has not taken yet is the newest.
            if agent.record is not None and agent.record.handoff is not None:
                self._note_handoff(position + 1, agent.record.handoff)

    def is_safe(self, item: str) -> bool:
        """Whether an item is done, held by a living agent, or in a handoff without a successor."""
        if item in self._safe:
            return True
        position, last = self._last_handoff(item)
        if last is None or last.handoff_id in self._adrift:
            return False
        return not any(
            self._started_at.get(state.agent_id, -1) > position
            for state in self._planned[item]
            # An agent does not take its own work over, unless it says so.
            if state.agent_id != last.agent_id or state.predecessor_id == last.agent_id
        )

    def _last_handoff(self, item: str) -> tuple[int, HandoffRecord | None]:
        """Return the last handoff that left an item, and its place in the journal."""
        left: list[tuple[int, HandoffRecord | None]] = [
            (position, handoff)
            for position, handoff in self._handoffs.values()
            if item in handoff.interrupted or item in handoff.remaining
        ]
        return max(left, key=lambda entry: entry[0], default=(0, None))

    def describe(self, item: str) -> str:
        """Return the agents that had an item and what became of them, for people."""
        had = list(map(self._describe_agent, self.holders[item]))
        _, last = self._last_handoff(item)
        if last is not None and last.handoff_id in self._adrift:
            had.append(f"{self._adrift[last.handoff_id]} (claimed it and never began)")
        return ", ".join(had)

    def _describe_agent(self, agent_id: str) -> str:
        return f"{agent_id} ({self._ends.get(agent_id, 'not stored')})"

    def _note(self, item: str, holder: str, *, is_safe: bool) -> None:
        holders = self.holders.setdefault(item, [])
        if holder not in holders:
            holders.append(holder)
        if is_safe:
            self._safe.add(item)

    def _note_state(self, state: StateRecord, *, lives: bool) -> None:
        for task in state.tasks or ():
            self._note(task["name"], state.agent_id, is_safe=lives or task["status"] == DONE)
            self._planned[task["name"]].append(state)

    def _note_handoff(self, position: int, payload: dict[str, Any]) -> None:
        handoff = HandoffRecord.model_validate(payload)
        # The state repeats the handoff of an event, whose place is the right one.
        self._handoffs.setdefault(handoff.handoff_id, (position, handoff))
        for item in handoff.completed:
            self._note(item, handoff.agent_id, is_safe=True)
        for item in (*handoff.interrupted, *handoff.remaining):
            self._note(item, handoff.agent_id, is_safe=False)

    def _read(self, position: int, event: dict[str, Any]) -> None:
        agent_id = event["agentId"]
        if event["type"] == "agent_started":
            self._started_at[agent_id] = position
        elif event["type"] == "handoff_ready":
            self._note_handoff(position, event["handoff"])
        elif event["type"] == "agent_assigned":
            # The event has the generation before the one that the assigned process starts.
            lives = self._living.get(agent_id, 0) > event["generation"]
            for item in JournalEvent.of(event).work:
                self._note(item, agent_id, is_safe=lives)
