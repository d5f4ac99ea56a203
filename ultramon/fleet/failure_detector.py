"""Detects what agents cannot say of themselves: stale, recovered, lost, expired, going in circles.

A verdict is an event in the journal, once per episode for all consumers; the state of another
agent is never written. The detector reads the journal alone and keeps its memory with the
consumer's cursor: a verdict that could not be stored, or whose orchestrator was killed, is found
again.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

from ultramon.context.ladder import FORCE_RETURN
from ultramon.fleet.assignments import is_end, work_of
from ultramon.fleet.check_schedule import CheckSchedule
from ultramon.handoff import HandoffRecord
from ultramon.state.liveness import ALIVE, ENDED, LOST, LOST_AFTER_SECONDS, STALE, is_beating, judge
from ultramon.state.models import is_whole, state_of
from ultramon.state.record import StateRecord
from ultramon.system.processes import process_started_at, this_machine
from ultramon.system.timestamps import format_time, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ultramon.fleet.assignments import Assignments
    from ultramon.fleet.journal_event import Exit, JournalEvent
    from ultramon.fleet.run_view import RunView
    from ultramon.system.clock import Clock

    Records = Mapping[str, StateRecord]

JUMP_SECONDS = 5.0
"""Wall clock and monotonic clock may drift apart so far between two looks; more is a jump."""
SETTLE_INTERVALS = 2
"""After a jump an agent has so many of its heartbeat intervals before its silence counts."""


class Life(TypedDict):
    """What was read of one life of an agent: the last verdict, and the event and beat of it."""

    generation: int
    verdict: str
    beat: int
    eventId: str


class Due(TypedDict):
    """A return that is awaited: of which generation and epoch, until when, and who asked."""

    life: list[int]
    until: float
    requested: bool


class Memory(TypedDict):
    """What was read from the journal and matters still, by agent."""

    lives: dict[str, Life]
    returning: dict[str, Due]


class FailureDetector:
    """Notices changes in the life of the agents of a run.

    Args:
        run: Whose agents.
        source: Who notices, for the events.
        clock: For their times.
        max_generations_without_progress: So many agents of one chain, one after the other, that
            completed nothing are going in circles.

    Attributes:
        memory: What was read from the journal and matters still; JSON values only.
        in_doubt: Whether `look` saw a process gone whose last state may not have been read.
    """

    def __init__(
        self, run: str, source: str, clock: Clock, max_generations_without_progress: int
    ) -> None:
        self.source = source
        self.in_doubt = False
        self.memory: Memory = {"lives": {}, "returning": {}}
        self._run = run
        self._clock = clock
        self._max_idle = max_generations_without_progress
        self._machine = this_machine()
        self._schedule = CheckSchedule(self._machine)
        self._looked_at: tuple[float, float] | None = None
        self._jumped_at: float | None = None
        self._gone: set[tuple[str, int]] = set()

    @property
    def gone_agents(self) -> list[str]:
        """The agents whose process `judge` has seen gone."""
        return sorted(agent_id for agent_id, _ in self._gone)

    def remember(self, memory: dict[str, Any]) -> None:
        """Continue from the memory acknowledged last under this consumer name."""
        self.memory = {
            "lives": dict(memory.get("lives", {})),
            "returning": dict(memory.get("returning", {})),
        }

    def event(self, record: StateRecord, kind: str, n: int = 0, **details: Any) -> dict[str, Any]:
        """Make an event about an agent."""
        return record.event(kind, source=self.source, at=self._clock.now(), n=n, **details)

    def judge(self, agents: RunView, assignments: Assignments) -> list[dict[str, Any]]:
        """Judge all agents of a run. Nothing is remembered until `read` gets the events back.

        Returns:
            The events that follow, to be stored once per key. The handoff of a lost agent comes
            before the verdict, as that of one that leaves comes before its end.
        """
        records = agents.records
        now = self._clock.now()
        self._notice_jump(now)
        self._forget_ended(records)
        gone_before, self._gone, self.in_doubt = self._gone, set(), False
        events: list[dict[str, Any]] = []
        # Thousands of agents may live in one process.
        started_at = cache(process_started_at)
        heartbeats, machine = agents.heartbeats, self._machine
        # With a verdict or a deadline an agent is judged although it beats: it may have recovered,
        # or not have returned in time.
        noted = {*self.memory["lives"], *self.memory["returning"], *agents.processes.ended_agents}
        near = self._schedule.due(records, heartbeats, agents.take_changed(), now)
        silent = [
            agent_id
            for agent_id in near
            if (record := records.get(agent_id)) is not None
            and not is_beating(record, None, now, machine, started_at)
            and not is_beating(record, heartbeats.get(agent_id), now, machine, started_at)
        ]
        for agent_id in sorted(noted.union(silent)):
            record = records.get(agent_id)
            if record is None or not record.active:
                continue
            verdict = self._judge_one(record, agents, gone_before, started_at)
            if verdict is not None:
                if verdict["type"] == "agent_lost":
                    if agents.is_kept(agent_id):
                        continue  # its end may wait there
                    events += self._rebuild_handoff(record, records, assignments)
                events.append(verdict)
            events += self._expire(record, now)
        return events + self._unstarted(agents, assignments, now)

    def _unstarted(
        self, agents: RunView, assignments: Assignments, now: float
    ) -> list[dict[str, Any]]:
        """Judge agents that never stored a state: only their process or their work is known."""
        processes = agents.processes
        for agent_id in processes.without_agent():
            for event in assignments.unread(agent_id):
                if is_end(event):
                    processes.note_end(agent_id, event.generation)
        reasons: dict[str, tuple[str, Exit]] = {
            agent_id: ("its process ended before it started", exited)
            for agent_id, exited in processes.without_agent().items()
        }
        if self._has_settled(0.0):
            for agent_id, since in assignments.overdue(now - LOST_AFTER_SECONDS, self.source):
                if not (processes.is_attached(agent_id) or assignments.unread(agent_id)):
                    reasons[agent_id] = f"not started for {now - since:.0f} s", {}
        events = []
        for agent_id, (reason, exited) in reasons.items():
            if agents.is_kept(agent_id):
                continue
            given = assignments.given(agent_id, 0)
            events += assignments.handoffs_of_unstarted(given, self.source, now)
            # The number of the first assignment: every fleet makes the same key.
            n = given[0].n if given else round(now * 1000)
            unknown = StateRecord(agent_id, run=self._run, epoch=1)
            events.append(self._lost(unknown, n, reason, exited))
        return events

    def _notice_jump(self, now: float) -> None:
        """Note a suspend or a set clock, after which every agent looks silent until it beats."""
        monotonic = self._clock.monotonic()
        if self._looked_at is not None:
            drift = (now - self._looked_at[0]) - (monotonic - self._looked_at[1])
            if abs(drift) > JUMP_SECONDS:
                self._jumped_at = monotonic
        self._looked_at = (now, monotonic)

    def _is_settled(self, record: StateRecord) -> bool:
        return self._has_settled(SETTLE_INTERVALS * (record.heartbeat_interval_seconds or 0))

    def _has_settled(self, seconds: float) -> bool:
        return self._jumped_at is None or self._clock.monotonic() >= self._jumped_at + seconds

    def _forget_ended(self, records: Records) -> None:
        lives, returning = self.memory["lives"], self.memory["returning"]
        for agent_id in [*lives, *returning]:
            record = records.get(agent_id)
            if record is None or not record.active:
                returning.pop(agent_id, None)
                # An agent that was lost and stopped after all has that event still to be read.
                if record is None or (agent_id in lives and lives[agent_id]["verdict"] != LOST):
                    lives.pop(agent_id, None)

    def _judge_one(
        self,
        record: StateRecord,
        agents: RunView,
        gone_before: set[tuple[str, int]],
        started_at: Callable[[int], str | None],
    ) -> dict[str, Any] | None:
        beat_at = agents.heartbeats.get(record.agent_id)
        liveness = judge(record, beat_at, self._clock.now(), self._machine, started_at)
        verdict, reason = liveness.verdict, liveness.reason
        life = self._life(record)
        before = ALIVE if life is None else life["verdict"]
        if before == ENDED:
            return None
        exited = agents.processes.exit_of(record)
        if exited is not None:
            verdict, reason = LOST, "its process ended without stop()"
        elif liveness.is_gone:
            # It may have saved, even stopped, between the read of its state and its death.
            self._gone.add((record.agent_id, record.generation))
            confirmed = (record.agent_id, record.generation) in gone_before
            self.in_doubt = self.in_doubt or not (confirmed or before == LOST)
            if not confirmed or agents.processes.will_report(record):
                return None
        elif not self._is_settled(record):
            return None
        # The last beat before the silence: the same number for every fleet.
        beat = round(liveness.last_heartbeat_at * 1000)
        if verdict == ALIVE:
            # Only a new beat shows life, a clock that was set back does not.
            if life is None or life["beat"] == beat:
                return None
            return self.event(record, "agent_recovered", life["beat"], previous=before)
        if before in (verdict, LOST):
            return None
        if verdict == STALE:
            return self.event(record, "agent_stale", beat, reason=reason)
        return self._lost(record, beat, reason, exited or {})

    def _life(self, record: StateRecord) -> Life | None:
        life = self.memory["lives"].get(record.agent_id)
        return life if life is not None and life["generation"] == record.generation else None

    def _lost(self, record: StateRecord, n: int, reason: str, exited: Exit) -> dict[str, Any]:
        return self.event(record, "agent_lost", n, outcome="lost", reason=reason, exit=exited)

    def _rebuild_handoff(
        self, record: StateRecord, records: Records, assignments: Assignments
    ) -> list[dict[str, Any]]:
        """Make the handoff of a vanished agent from its saved plan and its assigned items.

        Its key is that of the first handoff in this life and epoch: where the agent left one, that
        one is stored already and stays.
        """
        if state_of(record) is None:
            return []
        handoff = HandoffRecord.of(
            record,
            record.tasks or [],
            work_of(assignments.given(record.agent_id, record.generation)),
            now=self._clock.now(),
            generation_count=_chain_length(record, records),
        )
        return [self.event(record, "handoff_ready", handoff=handoff.to_json())]

    def _expire(self, record: StateRecord, now: float) -> list[dict[str, Any]]:
        due = self.memory["returning"].get(record.agent_id)
        if due is None or now < due["until"] or not self._is_settled(record):
            return []
        moved_on = [record.generation, record.epoch] != due["life"]
        if moved_on or (is_whole(record) and _has_returned(record, due)):
            del self.memory["returning"][record.agent_id]
            return []
        n = round(due["until"] * 1000)
        return [self.event(record, "agent_expired", n, outcome="expired", reason="grace ran out")]

    def request_return(self, record: StateRecord, deadline_seconds: float) -> dict[str, Any]:
        """Make the event of a request to return; it binds every fleet of the run."""
        now = self._clock.now()
        deadline = format_time(now + deadline_seconds)
        return self.event(record, "return_requested", round(now * 1000), deadlineAt=deadline)

    def read(self, event: JournalEvent, record: StateRecord | None) -> None:
        """Update the memory from an event of the journal.

        Args:
            event: The next one after the cursor, of this run.
            record: The state of its agent, for an event that is delivered.
        """
        kind, agent_id = event.kind, event.agent_id
        returning = self.memory["returning"]
        if kind in ("agent_lost", "agent_expired"):
            returning.pop(agent_id, None)
        if kind in ("agent_stale", "agent_lost") and not (
            event.generation == 0 or self.ended_before(event)
        ):
            self.memory["lives"][agent_id] = {
                "generation": event.generation,
                "verdict": STALE if kind == "agent_stale" else LOST,
                "beat": event.n,
                "eventId": event.event_id,
            }
        elif kind in ("agent_started", "agent_recovered"):
            self.memory["lives"].pop(agent_id, None)
        elif kind == "return_requested":
            self._expect_return(event, parse_time(event.json.get("deadlineAt")), requested=True)
        elif kind == "context_threshold_reached" and event.action == FORCE_RETURN:
            asked_at = parse_time(event.occurred_at)
            if record is not None and asked_at is not None:
                self._expect_return(event, asked_at + record.grace_seconds, requested=False)
        elif kind == "context_relaxed" and event.action != FORCE_RETURN:
            due = returning.get(agent_id)
            if due is not None and not due["requested"]:
                del returning[agent_id]

    def _expect_return(self, event: JournalEvent, until: float | None, *, requested: bool) -> None:
        if until is None:
            return
        life = [event.generation, event.epoch]
        known = self.memory["returning"].get(event.agent_id)
        # A second request extends no deadline.
        if known is not None and known["life"] == life:
            until = min(until, known["until"])
            requested = requested or known["requested"]
        self.memory["returning"][event.agent_id] = {
            "life": life,
            "until": until,
            "requested": requested,
        }

    def ended_before(self, event: JournalEvent) -> bool:
        """Return whether the life that an event is about ended before: each life ends once."""
        life = self.memory["lives"].get(event.agent_id)
        return (
            life is not None
            and life["verdict"] in (LOST, ENDED)
            and life["generation"] == event.generation
            and life.get("eventId") != event.event_id
        )

    def note_end(self, event: JournalEvent, record: StateRecord | None) -> None:
        """Note that an agent ended by itself; its state may say so late, or never."""
        agent_id = event.agent_id
        self.memory["lives"].pop(agent_id, None)
        if record is not None and record.active and record.generation == event.generation:
            self.memory["lives"][agent_id] = {
                "generation": event.generation,
                "verdict": ENDED,
                "beat": event.n,
                "eventId": event.event_id,
            }

    def takes_back_end(self, event: JournalEvent, agents: RunView) -> bool:
        """Return whether an agent was killed after the event of its end, before the state of it.

        It is lost then, and that is its end: what its state does not say has to be done again.
        """
        record = agents.records.get(event.agent_id)
        if record is None or not record.active or record.generation != event.generation:
            return False
        if not judge(record, None, self._clock.now(), self._machine).is_gone:
            return False
        last = agents.state_after(event)
        return last is not None and last.active and last.generation == record.generation

    def goes_in_circles(self, handoff: HandoffRecord, records: Records) -> bool:
        """Return whether the last agents of this chain, as many as the limit, completed nothing."""
        record = None if handoff.completed else records.get(handoff.agent_id)
        for _ in range(self._max_idle):
            if record is None or not is_whole(record) or record.tasks_completed:
                return False
            record = records.get(record.predecessor_id or "")
        return True


def _has_returned(record: StateRecord, due: Due) -> bool:
    """Return whether an agent handed off, or need not return any more."""
    if record.handoff is not None and record.handoff.get("epoch") == record.epoch:
        return True
    return not due["requested"] and record.action != FORCE_RETURN


def _chain_length(record: StateRecord, records: Records) -> int:
    """Return the number of stored agents in a chain up to this one."""
    chain = {record.agent_id}
    before = records.get(record.predecessor_id or "")
    while before is not None and before.agent_id not in chain:
        chain.add(before.agent_id)
        before = records.get(before.predecessor_id or "")
    return len(chain)
