"""A backend in this process's memory: for tests, replays and trials. Gone with the process."""

from __future__ import annotations

import threading
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ultramon.backends.base import EventPage, Look, StoredAgent, Subscription
from ultramon.backends.looking import look_again
from ultramon.core import codec
from ultramon.core.journal import event_key
from ultramon.core.liveness import ALIVE, judge
from ultramon.core.record import decode_state, encode_state
from ultramon.core.statefile import encode_request, refuse_newer
from ultramon.core.times import format_time
from ultramon.errors import (
    AgentAlreadyRunningError,
    AgentNotFoundError,
    FencedError,
    StateCorruptError,
    StateError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.backends.base import Build
    from ultramon.core.liveness import HostIdentity
    from ultramon.core.record import StateRecord


class _Consumer:
    __slots__ = ("cursor", "holder", "lease_until", "memory")

    def __init__(self) -> None:
        self.cursor: str | None = None
        self.memory = "{}"
        self.holder: str | None = None
        self.lease_until = 0.0


class MemoryBackend:
    """States and events in dictionaries, by the same rules as files and with the same bytes."""

    def __init__(self) -> None:
        self.url = "memory:"
        self._lock = threading.RLock()
        self._states: dict[str, bytes] = {}
        self._generations: dict[str, int] = {}
        self._beats: dict[str, float] = {}
        self._events: dict[str, tuple[int, str]] = {}
        self._last_event = 0
        self._claims: dict[str, str] = {}
        self._consumers: dict[str, _Consumer] = {}
        self._requests: dict[str, bytes] = {}

    def start_agent(
        self, agent_id: str, build: Build, *, takeover: bool, now: float, host: HostIdentity
    ) -> bool:
        """See `Backend.start_agent`."""
        with self._lock:
            data = self._states.get(agent_id)
            stored = None
            if data is not None:
                with suppress(StateCorruptError):
                    stored = decode_state(data, agent_id)
            if stored is not None:
                refuse_newer(stored, agent_id)
            if stored is not None and not takeover:
                verdict = judge(stored, self._beats.get(agent_id), now, host).verdict
                if verdict == ALIVE:
                    raise AgentAlreadyRunningError(agent_id, stored.pid or 0, stored.hostname)
            record, events = build(stored, 1 if stored is None else stored.generation + 1)
            self._put(record, events)
            self._beats[agent_id] = now
        return True

    def record(
        self, record: StateRecord, events: Sequence[dict[str, Any]], *, durable: bool
    ) -> bool:
        """See `Backend.record`."""
        del durable
        with self._lock:
            held = self._generations.get(record.agent_id)
            if held != record.generation:
                raise FencedError(record.agent_id, record.generation, held)
            refuse_newer(decode_state(self._states[record.agent_id], "memory:"), record.agent_id)
            self._put(record, events)
        return True

    def _put(self, record: StateRecord, events: Sequence[dict[str, Any]]) -> None:
        record.pending = None
        self._states[record.agent_id] = encode_state(record, record.agent_id)
        self._generations[record.agent_id] = record.generation
        self.append_events(events)

    def heartbeat(self, beats: Sequence[tuple[str, int]], now: float) -> list[str]:
        """See `Backend.heartbeat`."""
        with self._lock:
            held = [beat for beat in beats if self._generations.get(beat[0]) == beat[1]]
            self._beats.update((agent_id, now) for agent_id, _ in held)
            return [beat[0] for beat in beats if beat not in held]

    def load(self, agent_id: str) -> StoredAgent:
        """See `Backend.load`."""
        with self._lock:
            data = self._states.get(agent_id)
            if data is None:
                raise AgentNotFoundError(agent_id)
            return StoredAgent(agent_id, decode_state(data, agent_id), self._beats.get(agent_id))

    def list_agents(self, run: str | None = None) -> list[StoredAgent]:
        """See `Backend.list_agents`."""
        return sorted(self.look(run, {}).changed, key=attrgetter("agent_id"))

    def look(self, run: str | None, seen: dict[str, Any]) -> Look:
        """See `Backend.look`."""
        with self._lock:
            # The bytes of a state are its version: each write makes others, with its own `seq`.
            return look_again(run, seen, self._states, self._beats, self._listed)

    def _listed(self, agent_id: str) -> StoredAgent | None:
        try:
            return self.load(agent_id)
        except AgentNotFoundError:
            return None
        except StateError as error:
            return StoredAgent(agent_id, None, self._beats.get(agent_id), error)

    def append_events(self, events: Sequence[dict[str, Any]]) -> None:
        """See `Backend.append_events`."""
        with self._lock:
            for event in events:
                if (key := event_key(event)) not in self._events:
                    self._last_event += 1
                    self._events[key] = (self._last_event, codec.dumps(event))

    def events(self, after: str | None = None, limit: int = 500) -> EventPage:
        """See `Backend.events`."""
        with self._lock:
            position = int(after or 0)
            page = [entry for entry in self._events.values() if entry[0] > position][:limit]
        if page:
            position = page[-1][0]
        return EventPage([codec.loads(text) for _, text in page], str(position))

    def change_mark(self) -> object:
        """See `Backend.change_mark`."""
        return self._last_event

    def subscribe(
        self, name: str, holder: str, *, now: float, lease_seconds: float
    ) -> Subscription | None:
        """See `Backend.subscribe`."""
        with self._lock:
            consumer = self._consumers.setdefault(name, _Consumer())
            if consumer.holder not in (None, holder) and consumer.lease_until > now:
                return None
            consumer.holder = holder
            consumer.lease_until = now + lease_seconds
            return Subscription(consumer.cursor, codec.loads(consumer.memory))

    def acknowledge(self, name: str, holder: str, cursor: str, memory: dict[str, Any]) -> bool:
        """See `Backend.acknowledge`."""
        text = codec.dumps(memory)
        with self._lock:
            consumer = self._consumers.get(name)
            if consumer is None or consumer.holder != holder:
                return False
            consumer.cursor, consumer.memory = cursor, text
        return True

    def unsubscribe(self, name: str, holder: str) -> None:
        """See `Backend.unsubscribe`."""
        with self._lock:
            consumer = self._consumers.get(name)
            if consumer is not None and consumer.holder == holder:
                consumer.holder = None

    def put_request(self, agent_id: str, request: dict[str, Any] | None) -> None:
        """See `Backend.put_request`."""
        with self._lock:
            if agent_id not in self._states:
                raise AgentNotFoundError(agent_id)
            if request is None:
                self._requests.pop(agent_id, None)
            else:
                self._requests[agent_id] = encode_request(request, self.url)

    def get_request(self, agent_id: str) -> dict[str, Any] | None:
        """See `Backend.get_request`."""
        data = self._requests.get(agent_id)
        request: dict[str, Any] | None = None if data is None else codec.loads(data)
        return request

    def claim_handoff(self, handoff_id: str, agent_id: str, successor_id: str) -> str:
        """See `Backend.claim_handoff`."""
        del agent_id
        with self._lock:
            return self._claims.setdefault(handoff_id, successor_id)

    def prune(self, *, ended_before: float, events_before: float, dry_run: bool) -> list[str]:
        """See `Backend.prune`."""
        with self._lock:
            pruned = [
                agent.agent_id
                for agent in self.list_agents()
                if agent.record
                and not agent.record.active
                and agent.record.last_activity < ended_before
            ]
            if dry_run:
                return pruned
            for agent_id in pruned:
                del self._states[agent_id], self._generations[agent_id]
                self._beats.pop(agent_id, None)
                self._requests.pop(agent_id, None)
            before = format_time(events_before)
            for key, (_, text) in list(self._events.items()):
                if codec.loads(text)["occurredAt"] < before:
                    del self._events[key]
        return pruned

    def close(self) -> None:
        """See `Backend.close`."""
