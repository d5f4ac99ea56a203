"""Work assigned to agents before their start, and the handoff of what they leave undone.

The journal is the only source. The consumer's memory holds positions of events, not their items,
however many there are.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypedDict

from ultramon.fleet.journal_event import JournalEvent
from ultramon.handoff import HandoffRecord
from ultramon.state.plan import DONE, Plan
from ultramon.state.record import StateRecord
from ultramon.system.ids import random_hex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ultramon.backends.base import Backend

_log = logging.getLogger("ultramon.fleet")

_ENDS = ("agent_stopped", "agent_lost", "agent_refused")


class Given(TypedDict):
    """Work that an agent was given: its event, and whether the agent has started since."""

    cursor: str | None
    before: int
    at: float
    source: str
    isStarted: bool
    handoffId: str | None


class Left(TypedDict):
    """The last handoff of an agent: the place before it, and the life that left it."""

    cursor: str | None
    generation: int


class Memory(TypedDict):
    """Facts that outlive the cursor, by agent; by handoff the deaths before a start."""

    given: dict[str, list[Given]]
    left: dict[str, Left]
    ending: dict[str, str]
    unstarted: dict[str, list[str]]


class Assignments:
    """Tracks assignments, and makes handoffs for agents that ended without leaving one.

    Args:
        backend: The store.
        run: The run.

    Attributes:
        memory: Facts that outlive the cursor; JSON values only.
    """

    def __init__(self, backend: Backend, run: str) -> None:
        self.memory: Memory = {"given": {}, "left": {}, "ending": {}, "unstarted": {}}
        self._backend = backend
        self._run = run
        self._cursor: str | None = None
        self._unread: dict[str, list[JournalEvent]] | None = None

    def remember(self, memory: dict[str, Any]) -> None:
        """Continue from the memory acknowledged last under this consumer name."""
        self.memory = {
            "given": dict(memory.get("given", {})),
            "left": dict(memory.get("left", {})),
            "ending": dict(memory.get("ending", {})),
            "unstarted": dict(memory.get("unstarted", {})),
        }

    def event(
        self,
        agent_id: str,
        work: Iterable[object] | HandoffRecord,
        before: int,
        *,
        number: int | None = None,
        **given: Any,
    ) -> dict[str, Any]:
        """Make the event of an assignment.

        Args:
            agent_id: The agent.
            work: Items, or the handoff that it is to continue.
            before: The agent's stored generation; 0 = none.
            number: Of several assignments with one number the first is stored; None = each is.
            **given: ``source``, ``at`` and further members, as for `StateRecord.event`.

        Raises:
            ConfigurationError: As `Plan.add`.
        """
        if isinstance(work, HandoffRecord):
            details: dict[str, Any] = {"handoff": work.to_json()}
        else:
            plan = Plan()
            plan.add(work)
            details = {"items": plan.pending()}
        unstored = StateRecord(agent_id, run=self._run, generation=before, epoch=1)
        # Assignments add up, so each has a key of its own.
        if number is None:
            number = int(random_hex(6), 16)
        return unstored.event("agent_assigned", n=number, **given, **details)

    def begin_poll(self, cursor: str | None) -> None:
        """Start a poll: events after the cursor are unread."""
        self._cursor, self._unread = cursor, None

    def unread(self, agent_id: str) -> list[JournalEvent]:
        """Return the agent's assignments, starts and ends after the cursor."""
        # Read with the first question of a poll: most polls find no agent to ask about.
        if self._unread is None:
            self._unread = {}
            cursor = self._cursor
            while (page := self._backend.events(cursor)).events:
                cursor = page.cursor
                for event in page.events:
                    if event["run"] == self._run and (
                        event["type"] in ("agent_assigned", "agent_started", *_ENDS)
                    ):
                        found = self._unread.setdefault(event["agentId"], [])
                        found.append(JournalEvent.of(event))
        return self._unread.get(agent_id, [])

    def overdue(self, before: float, source: str) -> Iterator[tuple[str, float]]:
        """Yield agents assigned before a time that have not started, with the time."""
        for agent_id, entries in self.memory["given"].items():
            last = entries[-1]
            if last["at"] < before and not last["isStarted"] and last["source"] == source:
                yield agent_id, last["at"]

    def given(self, agent_id: str, generation: int) -> list[JournalEvent]:
        """Return the assignments for one life of an agent.

        Args:
            agent_id: The agent.
            generation: The life; 0 = the one that never started.
        """
        known = list(self._read_back(agent_id, generation))
        unread = self.unread(agent_id)
        started = [event.generation for event in unread if event.kind == "agent_started"]
        last = generation - 1 if generation else max(started, default=0)
        if not generation:
            known = [event for event in known if event.generation >= last]
        return known + [
            event
            for event in unread
            if event.kind == "agent_assigned"
            and (event.generation <= last if generation else event.generation >= last)
        ]

    def _read_back(self, agent_id: str, generation: int) -> Iterator[JournalEvent]:
        for entry in self.memory["given"].get(agent_id, ()):
            if entry["isStarted"] if generation == 0 else entry["before"] >= generation:
                continue
            event = self._at(entry["cursor"], "agent_assigned", agent_id)
            if event is not None:
                yield event

    def _at(self, cursor: str | None, kind: str, agent_id: str) -> JournalEvent | None:
        for event in self._backend.events(cursor, 1).events:
            if (event["type"], event["agentId"]) == (kind, agent_id):
                return JournalEvent.of(event)
        _log.warning("agent %s: its event %s was pruned from the journal", agent_id, kind)
        return None

    def handoff_of(self, event: JournalEvent) -> HandoffRecord | None:
        """Return the last handoff read of the life that an event is about."""
        left = self.memory["left"].get(event.agent_id)
        if left is None or left["generation"] != event.generation:
            return None
        found = self._at(left["cursor"], "handoff_ready", event.agent_id)
        return None if found is None else found.handoff

    def read(self, event: JournalEvent, cursor: str | None) -> None:
        """Learn from an event of the journal.

        Args:
            event: The next one of this run.
            cursor: Behind the one before it.
        """
        kind, agent_id, generation = event.kind, event.agent_id, event.generation
        handoff_id = None if event.handoff is None else event.handoff.handoff_id
        if kind == "agent_assigned":
            self.memory["given"].setdefault(agent_id, []).append(
                {
                    "cursor": cursor,
                    "before": generation,
                    "at": event.at,
                    "source": event.source,
                    "isStarted": False,
                    "handoffId": handoff_id,
                }
            )
        elif kind == "agent_started":
            for entry in self.memory["given"].get(agent_id, ()):
                if entry["before"] < generation:
                    entry["isStarted"] = True
                    self.memory["unstarted"].pop(entry["handoffId"] or "", None)
        elif kind == "handoff_ready":
            self.memory["left"][agent_id] = {"cursor": cursor, "generation": generation}
            if generation == 0 and handoff_id is not None:
                deaths = self.memory["unstarted"].setdefault(handoff_id, [])
                if event.event_id not in deaths:
                    deaths.append(event.event_id)

    def deaths_before_start(self, handoff: HandoffRecord) -> int:
        """Return how many agents in a row were assigned this work and never started."""
        return len(self.memory["unstarted"].get(handoff.handoff_id, ()))

    def is_awaited(self, end: JournalEvent) -> bool:
        """Return whether an end is still to be delivered, after the handoff that holds it."""
        return self.memory["ending"].get(end.agent_id) == end.event_id

    def forget(self, event: JournalEvent, *, is_awaited: bool = False) -> None:
        """Forget the life that an event closed.

        Args:
            event: Its end.
            is_awaited: It will be delivered behind a handoff that was just stored.
        """
        agent_id, generation = event.agent_id, event.generation
        self.memory["left"].pop(agent_id, None)
        self.memory["ending"].pop(agent_id, None)
        if is_awaited:
            self.memory["ending"][agent_id] = event.event_id
        left = [
            entry
            for entry in self.memory["given"].pop(agent_id, ())
            if (entry["isStarted"] if generation == 0 else entry["before"] >= generation)
        ]
        if left:
            self.memory["given"][agent_id] = left

    def handoffs_of_unstarted(
        self, given: list[JournalEvent], source: str, now: float
    ) -> list[dict[str, Any]]:
        """Make the handoffs of an agent that died before its first state was stored.

        A handoff that it was to continue comes again as it is: no agent has claimed it, or else the
        claim decides. Items come as one record.
        """
        handoffs = {event.n: event.handoff for event in given if event.handoff is not None}
        named = [event for event in given if event.handoff is None]
        if items := work_of(named):
            unstored = _unknown(named[0], generation=0)
            handoffs[named[0].n] = HandoffRecord.of(unstored, [], items, now=now)
        return [
            StateRecord(given[0].agent_id, run=self._run, epoch=1).event(
                "handoff_ready", source=source, at=now, n=number, handoff=handoff.to_json()
            )
            for number, handoff in handoffs.items()
        ]

    def rest_of(
        self, end: JournalEvent, record: StateRecord | None, source: str, now: float
    ) -> dict[str, Any] | None:
        """Make the handoff of assigned work that an agent neither did nor handed over.

        Args:
            end: The event that closes its life; the handoff holds it, to be delivered after it.
            record: The state that the end led to, a valid one; None when there is none.
            source: The consumer.
            now: Epoch seconds.
        """
        agent_id, generation = end.agent_id, end.generation
        if agent_id not in self.memory["given"]:
            return None
        given = list(self._read_back(agent_id, generation))
        if generation == 0:
            # Another successor has the handoff of a refused one; items of its own remain.
            given = [event for event in given if event.items]
        if not given:
            return None
        if record is not None and record.generation == generation:
            life = record
        elif end.outcome == "completed":
            return None  # without its state this is all that is known of the work
        else:
            life = _unknown(end, generation)
        tasks = life.tasks or []
        left = self.handoff_of(end)
        settled = {
            *(task["name"] for task in tasks if task["status"] == DONE),
            *(() if left is None else (*left.completed, *left.left)),
        }
        rest = [item for item in work_of(given) if item not in settled]
        if not rest:
            return None
        unsettled = set(rest)
        kept = [task for task in tasks if task["status"] == DONE or task["name"] in unsettled]
        number = given[-1].n
        handoff = HandoffRecord.of(life, kept, rest, now=now, suffix=f"-{number}").to_json()
        return life.event(
            "handoff_ready", source=source, at=now, n=number, handoff=handoff, endedWith=end.json
        )


def is_end(event: JournalEvent) -> bool:
    """Return whether an event closes the life of an agent; one that is expired still runs."""
    return event.kind in _ENDS


def _unknown(event: JournalEvent, generation: int) -> StateRecord:
    """Return the facts in an event about a life whose state is missing."""
    return StateRecord(
        event.agent_id,
        run=event.json["run"],
        session_id=event.json["sessionId"],
        generation=generation,
        epoch=event.epoch,
        started_at=event.at,
    )


def work_of(given: Iterable[JournalEvent]) -> list[str]:
    """Return all items of some assignments, each once, in order."""
    return list(dict.fromkeys(item for event in given for item in event.work))
