"""Stores the entries of this machine's outbox, under the rules that hold when they arrive.

Events are facts and are stored; a state only if it is still the newest. Notices go to the
recipients that are registered now, not to those of the outage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultramon.backends.base import Save
from ultramon.backends.postgres.connection.database import CONNECT_SECONDS, DatabaseAwayError
from ultramon.backends.postgres.outbox.outbox import STATE
from ultramon.backends.toolkit import refuse_living
from ultramon.errors import AgentMirroredError, StateCorruptError
from ultramon.notices import router
from ultramon.state.record import decode_state
from ultramon.system.processes import process_started_at, this_machine
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ultramon.backends.postgres.connection.database import Connection, Database
    from ultramon.backends.postgres.outbox.outbox import Entry
    from ultramon.backends.postgres.store.batches import Batches
    from ultramon.backends.postgres.store.claims import Claims
    from ultramon.backends.postgres.store.event_log import EventLog
    from ultramon.backends.postgres.store.registry import PostgresRegistry
    from ultramon.backends.postgres.store.states import States
    from ultramon.state.record import StateRecord

    Events = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class OutboxDelivery:
    """The parts of a database that what waited in the outbox goes into."""

    database: Database
    states: States
    log: EventLog
    registry: PostgresRegistry
    claims: Claims
    batches: Batches
    put_message: Callable[[Connection, Entry], object]
    """Stores a message or a cancellation."""

    def deliver(self, entries: Sequence[Entry]) -> list[Entry]:
        """Store entries, messages and cancels in their order; idempotent.

        Returns:
            The entries that must stay: their owners live, and store them themselves.

        Raises:
            DatabaseAwayError: It takes nothing now.
            UltramonError: One of them can never be stored; some may be.
        """
        database = self.database
        kept = [(entry, _read(entry)) for entry in entries if entry.kind == STATE]
        staying, newest = [], []
        with database.transaction(timeout_seconds=CONNECT_SECONDS) as connection:
            rows = connection.execute(
                "SELECT agent_id, generation, seq FROM ultramon.agents WHERE agent_id = ANY(%s)",
                ([entry.agent_id for entry, _ in kept],),
            )
            held = {agent_id: (generation, seq) for agent_id, generation, seq in rows}
            for entry, save in kept:
                record = save.record
                generation, seq = held.get(record.agent_id, (None, 0))
                # Kept by a start that did not reach the database, which gives the generation.
                if not record.generation:
                    if not self._start(connection, record, save.events):
                        staying.append(entry)
                elif generation == record.generation and seq <= record.seq:
                    newest.append(save)
                else:
                    self._add_events(connection, record, generation, save.events)
            for entry in entries:
                if entry.kind != STATE:
                    self._put(connection, entry)
        for refusal in self.batches.store(newest, is_kept=True):
            # Taken over at this moment: the next time only its events are stored.
            if isinstance(refusal, AgentMirroredError):
                raise refusal
            if refusal is not None:
                raise DatabaseAwayError(database.address.shown, str(refusal))
        return staying

    def _put(self, connection: Connection, entry: Entry) -> None:
        try:
            self.put_message(connection, entry)
        except (KeyError, TypeError) as error:
            raise _unreadable(entry, error) from error

    def _add_events(
        self,
        connection: Connection,
        record: StateRecord,
        generation: int | None,
        events: Events,
    ) -> None:
        """Store the events of a state that is not the newest."""
        if generation is not None and generation != record.generation:
            events = _before_takeover(connection, record, generation, events)
        new = self.log.insert(connection, events)
        rows = self.registry.rows(connection, new, is_kept=True)
        router.route_noted(rows, new, [record])

    def _start(self, connection: Connection, record: StateRecord, events: Events) -> bool:
        """Store an agent that was never stored, once its owner can no longer do that itself.

        Returns:
            False while its owner may.
        """
        machine = this_machine()
        if record.hostname == machine.hostname and record.boot_id == machine.boot_id:
            started = None if record.pid is None else process_started_at(record.pid)
            if started is not None and started == record.pid_started_at:
                return False
        generation, stored = self.states.lock(connection, record.agent_id)
        former = stored.record
        is_stored = former is not None and former.start_id == record.start_id is not None
        if former is not None and not is_stored:
            refuse_living(former, stored.heartbeat_at, record.last_heartbeat, machine)
        record.generation = generation if is_stored else generation + 1
        # They were kept before the generation was known.
        for event in events:
            event["generation"] = record.generation
        # Its owner reached the database after all, and has stored newer states since.
        if former is not None and is_stored and _age_of(record) < _age_of(former):
            self._add_events(connection, record, generation, events)
            return True
        self.claims.confirm(connection, record)
        self.states.put(connection, record, record.last_heartbeat)
        new = self.log.insert(connection, events)
        rows = self.registry.rows(connection, new, is_kept=True)
        router.route(rows, record, new, record.last_heartbeat)
        return True


def _before_takeover(
    connection: Connection, record: StateRecord, generation: int, events: Events
) -> Events:
    """Return the events from before another owner took the agent over."""
    start = connection.execute(
        "SELECT occurred_at FROM ultramon.events WHERE agent_id = %s"
        " AND type = 'agent_started' AND starts_with(key, %s) ORDER BY id LIMIT 1",
        (record.agent_id, f"{record.agent_id}/{generation}/"),
    ).fetchone()
    taken_at = None if start is None else parse_time(start[0])
    if taken_at is None:
        return events
    return [event for event in events if (parse_time(event["occurredAt"]) or 0.0) <= taken_at]


def _read(entry: Entry) -> Save:
    try:
        return Save(decode_state(_document(entry), entry.agent_id), entry.body["events"], True)
    except (KeyError, AttributeError, UnicodeEncodeError) as error:
        raise _unreadable(entry, error) from error


def _age_of(record: StateRecord) -> tuple[int, float]:
    return record.seq, record.last_heartbeat


def is_unstarted(entry: Entry) -> bool:
    """Return whether an entry is of an agent that was not stored when it was kept."""
    return not decode_state(_document(entry), entry.agent_id).generation


def _document(entry: Entry) -> bytes:
    document: str = entry.body["state"]
    return document.encode("ascii")


def _unreadable(entry: Entry, error: Exception) -> StateCorruptError:
    return StateCorruptError("outbox", f"entry {entry.id} cannot be read: {error!r}")
