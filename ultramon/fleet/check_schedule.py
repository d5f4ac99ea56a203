"""Schedules liveness checks, so that of 100,000 agents only those that may be late are checked."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from ultramon.state.liveness import beats_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ultramon.state.record import StateRecord
    from ultramon.system.processes import MachineIdentity


class CheckSchedule:
    """Remembers when each agent's next liveness check is due.

    A check is due when the last heartbeat grows old or the state changes. Agents whose process can
    be inspected from this machine are due every time: they may vanish at any moment.

    Args:
        machine: This machine.
    """

    def __init__(self, machine: MachineIdentity) -> None:
        self._machine = machine
        self._near: set[str] = set()
        self._late: set[str] = set()
        self._until: dict[str, float] = {}
        self._queue: list[tuple[float, str]] = []
        self._checked_at = float("inf")

    def due(
        self,
        records: Mapping[str, StateRecord],
        heartbeats: Mapping[str, float],
        changed: Iterable[str],
        now: float,
    ) -> set[str]:
        """Return the agents to check now.

        Args:
            records: The states of all agents.
            heartbeats: Their last heartbeats, epoch seconds.
            changed: Agents whose state changed or vanished since the last call.
            now: Epoch seconds.
        """
        if now < self._checked_at:  # the first call, or the clock was set back
            self._near.clear()
            self._late.clear()
            self._until.clear()
            self._queue.clear()
            changed = records
        self._checked_at = now
        candidates = {*changed, *self._late}
        while self._queue and self._queue[0][0] < now:
            ended, agent_id = heappop(self._queue)
            # An entry stays in the queue after its agent has got a later one.
            if self._until.get(agent_id) == ended:
                del self._until[agent_id]
                candidates.add(agent_id)
        for agent_id in candidates:
            record = records.get(agent_id)
            if record is None or not record.active:
                self._forget(agent_id)
            elif (until := self._beats_until(record, heartbeats, now)) is None:
                if agent_id not in self._near:
                    self._forget(agent_id)
                    self._near.add(agent_id)
            elif self._until.get(agent_id) != until:
                self._forget(agent_id)
                if until < now:
                    self._late.add(agent_id)
                else:
                    self._until[agent_id] = until
                    heappush(self._queue, (until, agent_id))
        return self._near | self._late

    def _beats_until(
        self, record: StateRecord, heartbeats: Mapping[str, float], now: float
    ) -> float | None:
        until = beats_until(record, None, now, self._machine)
        if until is None or until >= now:
            return until
        # The heartbeat is looked up only where the state alone is too old.
        return beats_until(record, heartbeats.get(record.agent_id), now, self._machine)

    def _forget(self, agent_id: str) -> None:
        self._near.discard(agent_id)
        self._late.discard(agent_id)
        self._until.pop(agent_id, None)
