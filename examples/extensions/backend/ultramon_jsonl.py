"""A backend of one's own: everything in one append-only file of JSON lines.

One line is one step, so a killed writer leaves a whole step or a torn last line, which the next
writer cuts off. The file lock makes steps of several processes follow one another; every process
replays what the others appended. `docs/backends.md` has the rules, and `ultramon.testing` the
tests: this class passes them all (`tests/testing/test_testing_kit.py`). For POSIX systems.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ultramon import ConfigurationError, FencedError, HandoffTakenError
from ultramon.backends.base import Changes, Claim, EventPage, StoredAgent, Subscription
from ultramon.backends.lease_holder import is_gone
from ultramon.backends.store_time import bounded, skew
from ultramon.backends.toolkit import find_changes, is_over, refuse_living
from ultramon.errors import AgentNotFoundError, StateCorruptError, StateSchemaError, StateWriteError
from ultramon.state.event_keys import event_key
from ultramon.state.history import decode_points
from ultramon.state.history_ring import add_point, encode_point
from ultramon.state.record import SCHEMA, decode_state, encode_state
from ultramon.system.boot_clock import read_boot
from ultramon.system.ids import random_hex
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ultramon.backends.base import Build, Follow
    from ultramon.state.history import HistoryPoint
    from ultramon.state.record import StateRecord
    from ultramon.system.processes import MachineIdentity

    Event = dict[str, Any]


def open_url(url: str) -> JsonLinesBackend:
    """Open the store that ``jsonl:///path`` names; the entry point of a distribution."""
    return JsonLinesBackend(unquote(urlsplit(url).path))


class JsonLinesBackend:
    """Keeps the `ultramon.backends.base.Backend` contract in one file."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.url = f"jsonl://{self.path}"
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._first_line = b""
        self._offset = 0
        self._states: dict[str, str] = {}
        self._beats: dict[str, float] = {}
        self._events: dict[int, str] = {}
        self._next_event = 1
        self._keys: set[str] = set()
        self._claims: dict[str, dict[str, Any]] = {}
        self._consumers: dict[str, dict[str, Any]] = {}
        self._requests: dict[str, str] = {}
        self._histories: dict[str, bytes] = {}
        self._boots: dict[str, float] = {}

    @contextmanager
    def _up_to_date(self) -> Iterator[None]:
        """Hold the file against every thread and process, with all that is in it replayed."""
        with self._lock:
            with self._translated():
                lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                with self._translated():
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    self._catch_up()
                yield
            finally:
                os.close(lock)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateWriteError(self.path, error.strerror or str(error)) from error

    def _catch_up(self) -> None:
        if not os.path.exists(self.path):
            self._rewrite()
        with open(self.path, "r+b") as file:
            if (first_line := file.readline()) != self._first_line:
                self._forget()
                self._first_line = first_line
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    file.truncate(self._offset)
                    break
                try:
                    self._replay(json.loads(line))
                except (ValueError, KeyError, TypeError) as error:
                    raise StateCorruptError(self.path, f"at byte {self._offset}: {error}") from None
                self._offset += len(line)

    def _replay(self, step: dict[str, Any]) -> None:
        self._states.update(step.get("states", {}))
        for agent_id, points in step.get("histories", {}).items():
            self._histories[agent_id] = bytes.fromhex(points)
        for agent_id, point in step.get("readings", {}).items():
            points = self._histories.get(agent_id, b"")
            self._histories[agent_id] = add_point(points, bytes.fromhex(point))
        self._beats.update(step.get("beats", {}))
        self._claims.update(step.get("claims", {}))
        self._consumers.update(step.get("consumers", {}))
        self._requests.update(step.get("requests", {}))
        self._boots.update(step.get("boots", {}))
        self._next_event = step.get("nextEvent", self._next_event)
        for number, event in step.get("events", []):
            self._events[number] = json.dumps(event)
            self._keys.add(event_key(event))
            self._next_event = number + 1

    def _append(self, *, durable: bool, **step: Any) -> None:
        line = json.dumps(step).encode() + b"\n"
        with self._translated(), open(self.path, "ab") as file:
            file.write(line)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        self._replay(json.loads(line))
        self._offset += len(line)

    def _skew_seconds(self) -> float:
        """Return how far the clock of this store, which none sets, is ahead of the wall clock."""
        boot = read_boot()
        if boot.boot_id not in self._boots:
            self._append(durable=False, boots={boot.boot_id: boot.offset_seconds})
        return skew(self._boots[boot.boot_id], boot.offset_seconds)

    def _numbered(self, events: Sequence[Event]) -> list[tuple[int, Event]]:
        new = {event_key(event): event for event in reversed(events)}
        fresh = [new[key] for key in reversed(new) if key not in self._keys]
        return list(enumerate(fresh, self._next_event))

    def _rewrite(self) -> None:
        """Replace the file by one that has only what is known now."""
        log = {"log": random_hex(8), "nextEvent": self._next_event}
        events = [(number, json.loads(text)) for number, text in self._events.items()]
        rest = {
            "states": self._states,
            "beats": self._beats,
            "claims": self._claims,
            "consumers": self._consumers,
            "requests": self._requests,
            "boots": self._boots,
            "histories": {agent_id: points.hex() for agent_id, points in self._histories.items()},
        }
        steps = [log, {**rest, "events": events, "nextEvent": self._next_event}]
        temporary = f"{self.path}.{random_hex(4)}.tmp"
        with open(temporary, "xb") as file:
            file.writelines(json.dumps(step).encode() + b"\n" for step in steps)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)

    def _stored(self, agent_id: str) -> StateRecord | None:
        text = self._states.get(agent_id)
        return None if text is None else decode_state(text.encode(), self.path)

    def _check_schema(self, stored: StateRecord) -> None:
        if stored.schema > SCHEMA:
            raise StateSchemaError(
                self.path, f"schema {stored.schema} is newer", "upgrade ultramon"
            )

    def start_agent(
        self, agent_id: str, build: Build, *, takeover: bool, now: float, machine: MachineIdentity
    ) -> bool:
        with self._up_to_date():
            try:
                stored = self._stored(agent_id)
            except StateCorruptError:
                stored = None  # its line stays in the file as evidence
            if stored is not None:
                self._check_schema(stored)
                if not takeover:
                    refuse_living(stored, self._beats.get(agent_id), now, machine)
            record, events = build(stored, 1 if stored is None else stored.generation + 1)
            confirmed = self._confirmed(record)
            self._store(record, events, durable=True, beats={agent_id: now}, claims=confirmed)
        return True

    def record(self, record: StateRecord, events: Sequence[Event], *, durable: bool) -> bool:
        with self._up_to_date():
            stored = self._stored(record.agent_id)
            if stored is None:
                raise FencedError(record.agent_id, record.generation, None)
            self._check_schema(stored)
            if stored.generation != record.generation:
                raise FencedError(record.agent_id, record.generation, stored.generation)
            self._store(record, events, durable=durable or bool(events))
        return True

    def _store(
        self, record: StateRecord, events: Sequence[Event], *, durable: bool, **more: Any
    ) -> None:
        record.pending = None
        text = encode_state(record, self.path).decode()
        states = {record.agent_id: text}
        readings = {record.agent_id: encode_point(record).hex()}
        numbered = self._numbered(events)
        self._append(durable=durable, states=states, readings=readings, events=numbered, **more)

    def heartbeat(self, beats: Sequence[tuple[str, int]], now: float) -> list[str]:
        with self._up_to_date():
            refused = []
            for agent_id, generation in beats:
                stored = self._stored(agent_id)
                if stored is None or stored.generation != generation:
                    refused.append(agent_id)
            held = {agent_id: now for agent_id, _ in beats if agent_id not in refused}
            self._append(durable=False, beats=held)
        return refused

    def load(self, agent_id: str) -> StoredAgent:
        with self._up_to_date():
            stored = self._stored(agent_id)
            if stored is None:
                raise AgentNotFoundError(agent_id)
            return StoredAgent(agent_id, stored, self._beats.get(agent_id))

    def history(self, agent_id: str) -> list[HistoryPoint]:
        with self._up_to_date():
            return decode_points(self._histories.get(agent_id, b""))

    def list_agents(self, run: str | None = None) -> list[StoredAgent]:
        return sorted(self.changes(run, {}).changed, key=attrgetter("agent_id"))

    def changes(self, run: str | None, seen: dict[str, Any]) -> Changes:
        with self._up_to_date():
            # The text of a state is its own mark: every write makes another one.
            return find_changes(run, seen, self._states, self._beats, self._listed)

    def _listed(self, agent_id: str) -> StoredAgent | None:
        try:
            record = self._stored(agent_id)
        except StateCorruptError as problem:
            return StoredAgent(agent_id, None, None, problem)
        if record is None:
            return None
        return StoredAgent(agent_id, record, self._beats.get(agent_id))

    def append_events(self, events: Sequence[Event], records: Sequence[StateRecord] = ()) -> None:
        with self._up_to_date():
            self._append(durable=True, events=self._numbered(events))

    def append_following(self, agent_id: str, follow: Follow) -> None:
        with self._up_to_date():
            known = [event for _, event in self._behind(None) if event["agentId"] == agent_id]
            self._append(durable=True, events=self._numbered(follow(known)))

    def events(self, after: str | None = None, limit: int = 500) -> EventPage:
        with self._up_to_date():
            return _page(self._behind(after)[:limit], after)

    def committed_events(
        self, after: str | None = None, *, run: str | None = None, agent_id: str | None = None
    ) -> EventPage:
        with self._up_to_date():
            found = [
                (number, event)
                for number, event in self._behind(after)
                if run in (None, event["run"]) and agent_id in (None, event["agentId"])
            ]
            return _page(found, after)

    def _behind(self, after: str | None) -> list[tuple[int, Event]]:
        if after is not None and not re.fullmatch("[0-9]{1,18}", after):
            raise ConfigurationError("after", after, "a cursor of this file")
        first = int(after or 0)
        return [
            (number, json.loads(text)) for number, text in self._events.items() if number > first
        ]

    def change_mark(self) -> object:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_ino, found.st_size

    def subscribe(
        self, name: str, holder: str, *, now: float, lease_seconds: float
    ) -> Subscription | None:
        with self._up_to_date():
            kept = self._consumers.get(name, {"cursor": None, "memory": "{}", "holder": None})
            other, at = kept["holder"], now + self._skew_seconds()
            if other not in (None, holder) and kept["leaseUntil"] > at and not is_gone(other):
                until = bounded(kept["leaseUntil"], kept["leaseSeconds"], at)
                if until < kept["leaseUntil"]:
                    ended = {name: {**kept, "leaseUntil": until}}
                    self._append(durable=False, consumers=ended)
                return None
            lease = {"holder": holder, "leaseUntil": at + lease_seconds}
            lease["leaseSeconds"] = lease_seconds
            self._append(durable=False, consumers={name: {**kept, **lease}})
            return Subscription(kept["cursor"], json.loads(kept["memory"]))

    def acknowledge(self, name: str, holder: str, cursor: str, memory: dict[str, Any]) -> bool:
        return self._as_holder(name, holder, cursor=cursor, memory=json.dumps(memory))

    def unsubscribe(self, name: str, holder: str) -> None:
        self._as_holder(name, holder, holder=None)

    def _as_holder(self, name: str, by: str, /, **changes: Any) -> bool:
        with self._up_to_date():
            kept = self._consumers.get(name)
            if kept is None or kept["holder"] != by:
                return False
            self._append(durable=True, consumers={name: {**kept, **changes}})
        return True

    def put_request(self, agent_id: str, request: dict[str, Any] | None) -> None:
        with self._up_to_date():
            if agent_id not in self._states:
                raise AgentNotFoundError(agent_id)
            self._append(durable=True, requests={agent_id: json.dumps(request)})

    def get_request(self, agent_id: str) -> dict[str, Any] | None:
        with self._up_to_date():
            request: dict[str, Any] | None = json.loads(self._requests.get(agent_id, "null"))
        return request

    def claim_handoff(
        self,
        handoff_id: str,
        agent_id: str,
        successor_id: str,
        *,
        now: float,
        claimant: str | None = None,
    ) -> str:
        with self._up_to_date():
            held = self._claims.get(handoff_id, {"number": 0, "status": "released"})
            mine = held["status"] == "pending" and held["successorId"] == successor_id
            if mine or held["status"] == "released":
                held = {
                    "agentId": agent_id,
                    "successorId": successor_id,
                    "claimedAt": now + self._skew_seconds(),
                    "claimant": claimant,
                    "number": held["number"] + 1,
                    "status": "pending",
                }
                self._append(durable=True, claims={handoff_id: held})
            return str(held["successorId"])

    def _confirmed(self, record: StateRecord) -> dict[str, Any]:
        """Return the claim that a first state confirms, or refuse the state."""
        handoff_id = record.continues_handoff_id
        if handoff_id is None:
            return {}
        held = self._claims.get(handoff_id)
        if held is None:
            held = {"agentId": record.predecessor_id, "successorId": record.agent_id, "number": 1}
        elif held["status"] == "released":
            raise HandoffTakenError(held["agentId"], None)
        elif held["successorId"] != record.agent_id:
            raise HandoffTakenError(held["agentId"], held["successorId"])
        return {handoff_id: {**held, "status": "confirmed"}}

    def pending_claims(self) -> list[Claim]:
        with self._up_to_date():
            offers = [json.loads(text) for text in self._events.values()]
            offers = [event for event in offers if event["type"] == "handoff_ready"]
            last = {event["handoff"]["handoffId"]: event for event in offers}
            skew_seconds = self._skew_seconds()
            return [
                Claim(
                    handoff_id,
                    held["agentId"],
                    held["successorId"],
                    held["claimedAt"] - skew_seconds,
                    held["claimant"],
                    held["number"],
                    last.get(handoff_id),
                )
                for handoff_id, held in self._claims.items()
                if held["status"] == "pending"
            ]

    def settle_claim(self, claim: Claim, handoff_ready: Event | None) -> bool:
        with self._up_to_date():
            held = self._claims[claim.handoff_id]
            if held["number"] != claim.number or held["status"] != "pending":
                return False
            status = "confirmed" if handoff_ready is None else "released"
            events = [] if handoff_ready is None else self._numbered([handoff_ready])
            claims = {claim.handoff_id: {**held, "status": status}}
            self._append(durable=True, claims=claims, events=events)
            return True

    def prune(
        self,
        *,
        agents_before: float,
        events_before: float,
        now: float,
        machine: MachineIdentity,
        dry_run: bool,
    ) -> list[str]:
        with self._up_to_date():
            pruned = []
            for agent_id in sorted(self._states):
                agent = self._listed(agent_id)
                if agent is not None and is_over(agent, agents_before, now, machine):
                    pruned.append(agent_id)
            if dry_run:
                return pruned
            for agent_id in pruned:
                del self._states[agent_id]
                self._beats.pop(agent_id, None)
                self._requests.pop(agent_id, None)
                self._histories.pop(agent_id, None)
            for number, text in list(self._events.items()):
                if (parse_time(json.loads(text)["occurredAt"]) or 0.0) < events_before:
                    del self._events[number]
            with self._translated():
                self._rewrite()
            # The next look reads the new file from its beginning, as other processes will.
            self._first_line = b""
        return pruned

    def close(self) -> None:
        """Nothing is held open between two calls."""


def _page(found: Sequence[tuple[int, Event]], after: str | None) -> EventPage:
    cursors = [str(number) for number, _ in found]
    return EventPage(
        [event for _, event in found], cursors[-1] if cursors else after or "0", cursors
    )
