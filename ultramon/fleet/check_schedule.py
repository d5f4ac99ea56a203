"""Which agents have to be judged now: of a hundred thousand that beat, a few thousand a second."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from ultramon.state.liveness import beats_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ultramon.state.record import StateRecord
    from ultramon.system.processes import HostIdentity


class CheckSchedule:
    """Remembers until when each agent need not be looked at.

    That is until its last known beat grows old, unless its state changes. Agents whose process may
    be looked at from here are judged every time: they may vanish at any moment.

    Args:
        host: Where the judge stands.
    """

    def __init__(self, host: HostIdentity) -> None:
        self._host = host
        self._near: set[str] = set()
        self._late: set[str] = set()
        self._until: dict[str, float] = {}
        self._queue: list[tuple[float, str]] = []
        self._looked_at = float("inf")

    def turn(
        self,
        records: Mapping[str, StateRecord],
        heartbeats: Mapping[str, float],
        changed: Iterable[str],
        now: float,
    ) -> set[str]:
        """Return the agents that have to be judged.

        Args:
            records: The states of all agents.
            heartbeats: Their last beats, epoch seconds.
            changed: Those whose state is another one since the last turn, or is gone.
            now: Epoch seconds.
        """
        if now < self._looked_at:  # the first turn, or the clock was set back
            self._near.clear()
            self._late.clear()
            self._until.clear()
            self._queue.clear()
            changed = records
        self._looked_at = now
        due = {*changed, *self._late}
        while self._queue and self._queue[0][0] < now:
            ended, agent_id = heappop(self._queue)
            if self._until.get(agent_id) == ended:
                del self._until[agent_id]
                due.add(agent_id)
        for agent_id in due:
            record = records.get(agent_id)
            if record is None or not record.active:
                self._forget(agent_id)
            elif (until := beats_until(record, heartbeats.get(agent_id), now, self._host)) is None:
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

    def _forget(self, agent_id: str) -> None:
        self._near.discard(agent_id)
        self._late.discard(agent_id)
        self._until.pop(agent_id, None)
