"""Looks at the files of this machine's agents: what has changed, as it may leave the machine.

Reads only; no agent and no hook waits for it.
"""

from __future__ import annotations

import os
from binascii import crc32
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.backends.postgres.store.mirror import Reading
from ultramon.backends.toolkit import judge_stored
from ultramon.errors import StateError
from ultramon.share.allow_list import level_names, redact
from ultramon.share.sent_events import redact_event
from ultramon.state.history import decode_points
from ultramon.state.history_ring import FULL_BYTES, POINT_BYTES, encode_point
from ultramon.state.liveness import ALIVE, LOST
from ultramon.state.observed import ObservedAgent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from ultramon.backends.base import StoredAgent
    from ultramon.backends.local.backend import LocalBackend
    from ultramon.share.identity import Identity
    from ultramon.state.record import StateRecord

BEAT_SECONDS = 15.0
"""How often the database hears that an agent lives, at least; its heartbeat interval there."""
JUDGE_SECONDS = 5.0
"""How often agents are judged whose files do not change."""
LEAST_LOST_SECONDS = 60.0
"""An agent that calls itself lost after less is not, for others: a beat may be late."""
LOST_AT_ONCE_SECONDS = 0.001
"""The silence after which an agent is lost that is lost here."""
RING_SECONDS = 5.0
"""How long the reading of a state is waited for in the agent's ring."""
_FRESH_SECONDS = 0.1
"""A folder may change twice within one tick of the file system's clock."""


class Shared(NamedTuple):
    """What is known of an agent from look to look."""

    id: str
    """In the database."""
    generation: int
    seq: int
    levels: Mapping[str, str]


class Look(NamedTuple):
    """What one look has found."""

    states: dict[str, StateRecord]
    """Newest states as they may leave, by the agent's id in the database."""
    readings: list[Reading]
    """New ones, those of one agent oldest first."""
    seen: dict[str, bytes]
    """The last point of an agent's ring, where that is new, by its id in the database."""
    removed: list[str]
    """Agents that are no longer here, by their ids in the database."""


class Looks:
    """The agents in a state directory, as they may leave the machine.

    Args:
        backend: The state directory.
        identity: Of this machine.
        names: What is sent by name.
        retention_seconds: An agent that ended longer ago is not there.
        seen: As `Look.seen`, of all agents until now.
    """

    def __init__(
        self,
        backend: LocalBackend,
        identity: Identity,
        names: Collection[str],
        retention_seconds: float,
        seen: dict[str, bytes],
    ) -> None:
        self._backend = backend
        self._identity = identity
        self._names = names
        self._retention_seconds = retention_seconds
        self._seen = seen
        self._marks: dict[str, Any] = {}
        self._folder_mark: int | None = None
        self._judged_at = float("-inf")
        self._active: dict[str, StoredAgent] = {}
        self._lost: set[str] = set()
        self._late: dict[str, tuple[StateRecord, float]] = {}
        self.agents: dict[str, Shared] = {}
        """The agents here, by their own ids."""
        self.alive: dict[str, int] = {}
        """Of those that live the generation, by their id in the database."""

    def look(self, now: float) -> Look:
        """Return what has changed since the last look; cheap where nothing has.

        Args:
            now: Epoch seconds.

        Raises:
            StateError: The state directory cannot be listed.
        """
        found = Look({}, [], {}, [])
        mark = self._folder_mark_at(now)
        if mark is None or mark != self._folder_mark:
            changes = self._backend.changes(None, self._marks)
            for agent in changes.changed:
                self._take(agent, found, now)
            for own in changes.removed:
                self._drop(own, found)
            # Behind the listing: one that failed is made again.
            self._folder_mark = mark
        for own in list(self._late):
            self._add_readings(own, self._late[own][0], found, now)
        if now - self._judged_at >= JUDGE_SECONDS or now < self._judged_at:
            self._judged_at = now
            self._judge(found, now)
        return found

    def _folder_mark_at(self, now: float) -> int | None:
        """Return what differs when a file of the folder was replaced; None = one may have been."""
        try:
            changed_at = os.stat(self._backend.directory.folder).st_mtime_ns
        except FileNotFoundError:
            return None if self.agents else 0
        return None if abs(now - changed_at / 1e9) < _FRESH_SECONDS else changed_at

    def forget_gone(self) -> list[str]:
        """Forget the agents seen earlier that have no state here; return their ids there."""
        here = {self._identity.agent_id(own) for own in self._marks}
        gone = [agent_id for agent_id in self._seen if agent_id not in here]
        for agent_id in gone:
            del self._seen[agent_id]
        return gone

    def again(self, own: str, now: float) -> StateRecord | None:
        """Return an agent's newest state as it may leave.

        None where it is gone, unreadable, or was over before the retention.
        """
        try:
            record = self._backend.load(own).record
        except (StateError, LookupError):
            return None
        return None if record is None or self._is_over(record, now) else self._as_sent(own, record)

    def _is_over(self, record: StateRecord, now: float) -> bool:
        is_old = record.last_activity < now - self._retention_seconds
        return is_old and (not record.active or record.agent_id in self._lost)

    def _take(self, agent: StoredAgent, found: Look, now: float) -> None:
        record = agent.record
        if record is None:
            return
        try:
            record.decode()
        except StateError:
            return
        own = agent.agent_id
        levels = level_names(record.ladder)
        shared = Shared(self._identity.agent_id(own), record.generation, record.seq, levels)
        before = self.agents.get(own)
        if before is not None and (before.generation, before.seq) > (record.generation, record.seq):
            # Another life under the same name: the database would take it for an older state.
            found.removed.append(shared.id)
        self.agents[own] = shared
        if record.active:
            beat = self._backend.directory.heartbeat_at(own)
            self._active[own] = agent._replace(heartbeat_at=beat)
            self._judge_one(own, now)
        else:
            self._active.pop(own, None)
            self._lost.discard(own)
            self.alive.pop(shared.id, None)
        if self._is_over(record, now):
            self._drop(own, found)
            return
        found.states[shared.id] = self._as_sent(own, record)
        self._late.pop(own, None)
        self._add_readings(own, record, found, now)

    def _as_sent(self, own: str, record: StateRecord) -> StateRecord:
        sent = redact(record, self._identity, self._names, self.agents[own].levels)
        sent.heartbeat_interval_seconds = max(sent.heartbeat_interval_seconds or 0, BEAT_SECONDS)
        if own in self._lost:
            sent.lost_after_seconds = LOST_AT_ONCE_SECONDS
        elif sent.lost_after_seconds is not None:
            sent.lost_after_seconds = max(sent.lost_after_seconds, LEAST_LOST_SECONDS)
        return sent

    def _drop(self, own: str, found: Look) -> None:
        shared = self.agents.pop(own, None)
        self._active.pop(own, None)
        self._late.pop(own, None)
        self._lost.discard(own)
        if shared is not None:
            self.alive.pop(shared.id, None)
            found.states.pop(shared.id, None)
            found.removed.append(shared.id)

    def _judge(self, found: Look, now: float) -> None:
        directory = self._backend.directory
        for own, agent in list(self._active.items()):
            was_lost = own in self._lost
            self._active[own] = agent._replace(heartbeat_at=directory.heartbeat_at(own))
            self._judge_one(own, now)
            if was_lost != (own in self._lost) and agent.record is not None:
                found.states[self.agents[own].id] = self._as_sent(own, agent.record)

    def _judge_one(self, own: str, now: float) -> None:
        """Note whether an active agent lives, or is lost: others cannot see its process."""
        agent, shared = self._active[own], self.agents[own]
        beats = {} if agent.heartbeat_at is None else {own: agent.heartbeat_at}
        [one] = judge_stored([agent], beats, now)
        verdict = one.liveness.verdict if isinstance(one, ObservedAgent) else None
        if verdict == LOST:
            self._lost.add(own)
        else:
            self._lost.discard(own)
        if verdict == ALIVE:
            self.alive[shared.id] = shared.generation
        else:
            self.alive.pop(shared.id, None)

    def _add_readings(self, own: str, record: StateRecord, found: Look, now: float) -> None:
        """Add the points of an agent's ring that are new: more than one may be since a look."""
        points, newest = self._backend.directory.read_history(own), encode_point(record)
        if newest and newest not in _rows(points):
            # The ring is written after the state; where it cannot be, the state has the reading.
            since = self._late.setdefault(own, (record, now))[1]
            if 0 <= now - since < RING_SECONDS:
                return
            points = (points + newest)[-FULL_BYTES:]
        self._late.pop(own, None)
        shared = self.agents[own]
        new = _points_after(points, self._seen.get(shared.id))
        if not new:
            return
        sent = found.states.get(shared.id) or self._as_sent(own, record)
        names = {crc32(name.encode()) & 0xFF: shown for name, shown in shared.levels.items()}
        for number, point in enumerate(decode_points(new)):
            level = new[(number + 1) * POINT_BYTES - 1]
            found.readings.append(
                Reading(
                    shared.id,
                    point.at,
                    sent.host,
                    sent.model,
                    point.epoch,
                    names.get(level),
                    point.used_tokens,
                    sent.context_limit,
                )
            )
        found.seen[shared.id] = self._seen[shared.id] = new[-POINT_BYTES:]

    def events(
        self, cursor: str | None, limit: int, now: float
    ) -> tuple[list[dict[str, Any]], str]:
        """Return the next events as they may leave, and the cursor behind them.

        Args:
            cursor: As for `Backend.events`.
            limit: At most so many are read; fewer may be sent.
            now: Epoch seconds; what is older than the retention stays here.

        Raises:
            StateError: The journal cannot be read.
        """
        from ultramon.system.timestamps import format_time

        page = self._backend.events(cursor, limit)
        oldest = format_time(now - self._retention_seconds)
        sent = []
        for event in page.events:
            shared = self.agents.get(event["agentId"])
            levels = {} if shared is None else shared.levels
            redacted = redact_event(event, self._identity, levels)
            if redacted is not None and redacted["occurredAt"] >= oldest:
                sent.append(redacted)
        return sent, page.cursor


def _points_after(points: bytes, last: bytes | None) -> bytes:
    """Return the points of a ring behind the last one that was seen."""
    if last is None:
        return points
    rows = list(_rows(points))
    for number in range(len(rows), 0, -1):
        if rows[number - 1] == last:
            return points[number * POINT_BYTES :]
    # It was thinned out: those that are later are new.
    return b"".join(row for row in rows if row[:6] > last[:6])


def _rows(points: bytes) -> Iterator[bytes]:
    for start in range(0, len(points), POINT_BYTES):
        yield points[start : start + POINT_BYTES]
