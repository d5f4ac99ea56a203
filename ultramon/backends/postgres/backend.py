"""The backend for many machines: every rule of `ultramon.backends.base` in one database."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from time import time as wall_clock
from typing import TYPE_CHECKING, Any

from psycopg import errors as pg

from ultramon.backends.base import Save
from ultramon.backends.local.event_rows import EVENT_COLUMNS, event_row, keyed
from ultramon.backends.machines import Machine
from ultramon.backends.postgres.connection.address import parse_address
from ultramon.backends.postgres.connection.database import (
    LONG_SILENCE_SECONDS,
    MAX_CONNECTIONS,
    Database,
    DatabaseAwayError,
)
from ultramon.backends.postgres.outbox.outbox import Outbox
from ultramon.backends.postgres.schema import functions
from ultramon.backends.postgres.schema.functions import as_rows
from ultramon.backends.postgres.schema.text_columns import from_column
from ultramon.backends.postgres.store.batches import Batches
from ultramon.backends.postgres.store.claims import Claims
from ultramon.backends.postgres.store.credentials import PostgresCredentials
from ultramon.backends.postgres.store.event_log import EventLog
from ultramon.backends.postgres.store.message_rows import MessageRows
from ultramon.backends.postgres.store.mirror import Mirror
from ultramon.backends.postgres.store.outbox_delivery import OutboxDelivery, is_unstarted
from ultramon.backends.postgres.store.overview import PostgresOverview
from ultramon.backends.postgres.store.queue import PostgresQueue
from ultramon.backends.postgres.store.reading_sums import ReadingSums
from ultramon.backends.postgres.store.registry import PostgresRegistry
from ultramon.backends.postgres.store.states import States
from ultramon.backends.toolkit import is_over, refuse_living
from ultramon.errors import StateError, StateSchemaError, StateWriteError, UltramonError
from ultramon.notices import router
from ultramon.state.event_keys import event_key
from ultramon.state.record import encode_state, refuse_newer
from ultramon.system import compact_json
from ultramon.system.environment import state_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.backends.base import Build, Changes, Follow, StoredAgent
    from ultramon.backends.postgres.connection.database import Connection
    from ultramon.state.record import StateRecord
    from ultramon.system.processes import MachineIdentity

_BATCH = 1_000
"""Events stored in one step at most: a hundred thousand at once would block the others."""

_STARTED = "agent_started"
"""No recipient is notified of it."""

START_TIMEOUT_SECONDS = 1.0
"""How long the start of an agent waits for the database, or for another start of it."""
DELIVERY_SECONDS = 1.0
"""How long a look at agents waits for what was kept on this machine to be stored."""

_log = logging.getLogger("ultramon.backend")
_alive: weakref.WeakSet[PostgresBackend] = weakref.WeakSet()


class PostgresBackend:
    """Agents, events and messages in a PostgreSQL database, version 13 or newer.

    Args:
        url: See `ultramon.backends.postgres.connection.address.parse_address`.
        max_connections: Of this process, at most.

    Attributes:
        whole_url: The URL with its password: for child processes, never for text.

    Raises:
        ConfigurationError: It is no such URL.
    """

    def __init__(self, url: str, max_connections: int = MAX_CONNECTIONS) -> None:
        address = parse_address(url)
        self.url = address.shown
        self.whole_url = url
        self.database = Database(address, max_connections)
        self.states = states = States(self.database)
        self.overview = PostgresOverview(self.database, states, self.deliver_kept)
        self.log = log = EventLog(self.database)
        self.messages = MessageRows(self.database, log)
        self.registry = PostgresRegistry(self.database, self.messages, states)
        self.claims = claims = Claims(self.database, log, self.registry)
        self.credentials = PostgresCredentials(self.database)
        self.reading_sums = ReadingSums(self.database)
        self.batches = Batches(self.database, states, self.messages)
        self.outbox = Outbox(self.url, state_directory)
        delivery = OutboxDelivery(
            self.database,
            states,
            log,
            self.registry,
            claims,
            self.batches,
            lambda connection, entry: self.queue.store(connection, entry, is_kept=True),
        )
        self.queue = PostgresQueue(self.database, self.messages, self.outbox, delivery.deliver)
        self._sender = self.queue.sender
        self._kept: dict[str, set[str]] = {}
        self._lacks_enter = False
        # Verbs of `Backend` that one part carries out alone.
        self.history = states.history
        self.put_request, self.get_request = states.put_request, states.get_request
        self.events, self.change_mark = log.events, log.change_mark
        self.committed_events = log.committed_events
        self.last_cursor = log.last_cursor
        self.subscribe, self.acknowledge = log.subscribe, log.acknowledge
        self.unsubscribe = log.unsubscribe
        self.claim_handoff, self.pending_claims = claims.claim_handoff, claims.pending_claims
        self.settle_claim = claims.settle_claim
        _alive.add(self)

    def mirror(self, machine_id: str) -> Mirror:
        """Return the writer of a machine's rows, see `Mirror`."""
        return Mirror(self.database, self.states, machine_id)

    def machines(self) -> list[Machine]:
        """Return the machines that mirror their agents here, by id.

        Raises:
            StateError: The database does not answer, or this user may not read it.
        """
        rows = self.database.select(
            "SELECT machine_id, name, sent_fields, retention_seconds, last_seen"
            " FROM ultramon.machines ORDER BY machine_id"
        )
        from_server = self.database.from_server
        return [
            Machine(
                one,
                from_column(name),
                tuple(sent.split(",")) if sent else (),
                kept,
                from_server(at),
            )
            for one, name, sent, kept, at in rows
        ]

    def after_fork(self) -> None:
        """Leave threads, locks and connections to the parent in a forked copy."""
        self.database.after_fork()
        self.outbox.after_fork()
        self.queue.after_fork()

    @property
    def start_seconds(self) -> float | None:
        """The longest time that `start_agent` takes; None before the first connection."""
        # An agent that is known is asked for twice.
        longest = 2 * START_TIMEOUT_SECONDS + DELIVERY_SECONDS
        return longest if self.database.was_connected else None

    def limit_waits(self, seconds: float) -> None:
        """Have this process wait no longer than that to learn that the database does not answer.

        For screens: a person would take them for dead. An agent waits longer, rather than do
        without its store.
        """
        self.database.look_seconds = seconds

    def deliver_kept(self, within_seconds: float = DELIVERY_SECONDS) -> bool:
        """Store what processes of this machine have kept during an outage, whichever they were.

        Every look at agents does so first: one whose end waits here would be taken for lost.

        Args:
            within_seconds: How long to wait for that; what is left follows later.

        Returns:
            Whether no entry is left that could be stored now.
        """
        if self.database.look_seconds is not None and not self._is_answering():
            return False
        return self._sender.deliver(within_seconds)

    def _is_answering(self) -> bool:
        """Return whether the database answers, where something waits to be stored there."""
        try:
            if self.outbox.may_wait():
                with self.database.connection(is_checked=False):
                    pass
        except DatabaseAwayError:
            return False
        except StateError as error:
            _log.info("what may wait on this machine cannot be read: %s", error)
        return True

    def is_kept(self, agent_id: str) -> bool:
        """Return whether a state of an agent waits on this machine: it cannot be judged then."""
        try:
            return self.outbox.may_wait() and bool(self.outbox.states_of(agent_id))
        except StateError as error:
            _log.info("what may wait on this machine cannot be read: %s", error)
            return False

    def start_agent(
        self, agent_id: str, build: Build, *, takeover: bool, now: float, machine: MachineIdentity
    ) -> bool:
        """See `Backend.start_agent`; waits a second for a database that does not answer.

        An agent that starts during an outage is kept on this machine, and stored from there if its
        owner ends before it could do that itself; under the same start where that was stored.
        """
        self.deliver_kept()
        try:
            self._start_agent(agent_id, build, takeover=takeover, now=now, machine=machine)
        except DatabaseAwayError:
            self._keep(*build(None, 0))
            raise
        self._forget_kept(agent_id)
        return True

    def _start_agent(
        self, agent_id: str, build: Build, *, takeover: bool, now: float, machine: MachineIdentity
    ) -> None:
        if not takeover and self._enter(build, now):
            return
        with self.database.transaction(within_seconds=START_TIMEOUT_SECONDS) as connection:
            generation, stored = self.states.lock(connection, agent_id)
            if stored.problem is not None:
                self._set_aside(connection, agent_id, stored.problem)
            if stored.record is not None:
                refuse_newer(stored.record, f"{self.url}#{agent_id}")
                if not takeover:
                    refuse_living(stored.record, stored.heartbeat_at, now, machine)
            record, events = build(stored.record, generation + 1)
            record.pending = None
            self.claims.confirm(connection, record)
            self.states.put(connection, record, now)
            new = self.log.insert(connection, events)
            router.route(self.registry.rows(connection), record, new, record.last_heartbeat)

    def _enter(self, build: Build, now: float) -> bool:
        """Store an agent that is not stored yet in one question to the database.

        Returns:
            False where it has to be started the long way: it is stored or registered, it continues
            a handoff, or an earlier version of ultramon set the store up.
        """
        if self._lacks_enter:
            return False
        # Before it is known whether the agent is new: else `build` is called again.
        record, events = build(None, 1)
        is_plain = all(event["type"] == _STARTED for event in events)
        if record.continues_handoff_id is not None or not is_plain:
            return False
        record.pending = None
        with self.database.connection(within_seconds=START_TIMEOUT_SECONDS) as connection:
            rows = [event_row(key, event) for key, event in keyed(events).items()]
            arguments = (
                compact_json.dumps(self.states.row(record)),
                as_rows(EVENT_COLUMNS.split(", "), rows),
                self.database.to_server(now),
            )
            try:
                [(has_entered,)] = connection.execute(functions.ENTER, arguments)
            except pg.UndefinedFunction:
                self._lacks_enter = True
                return False
        return bool(has_entered)

    def _set_aside(self, connection: Connection, agent_id: str, problem: StateError) -> None:
        """Keep an unreadable state as evidence before it is replaced."""
        if isinstance(problem, StateSchemaError):
            raise problem
        self.states.set_aside(connection, agent_id, wall_clock())
        _log.warning("agent %s: %s; set aside", agent_id, problem)

    def record(
        self, record: StateRecord, events: Sequence[dict[str, Any]], *, durable: bool
    ) -> bool:
        """See `Backend.record`.

        While the database does not answer, events and durable states are kept on this machine, and
        the error is raised all the same, so that the caller retries with its newest state.
        """
        [refusal] = self.record_together([Save(record, events, durable)])
        if refusal is not None:
            raise refusal
        return True

    def record_together(self, saves: Sequence[Save]) -> list[UltramonError | None]:
        """See `RecordsTogether.record_together`. During an outage as `record`, for each."""
        try:
            refusals = self.batches.store(saves)
        except DatabaseAwayError:
            for save in saves:
                if save.events or save.durable:
                    self._keep(save.record, save.events)
            raise
        except StateWriteError as error:
            if len(saves) == 1:
                return [error]
            # One that the database cannot take must not keep the others back.
            return [refusal for save in saves for refusal in self.record_together([save])]
        for save, refusal in zip(saves, refusals, strict=True):
            if refusal is None:
                self._forget_kept(save.record.agent_id)
        if any(save.durable for save in saves):
            self._deliver_soon()
        return refusals

    def _keep(self, record: StateRecord, events: Sequence[dict[str, Any]]) -> None:
        """Keep a state on this machine, unless it came before with the same events."""
        keys = {event_key(event) for event in events}
        if keys and keys == self._kept.get(record.agent_id):
            return
        document = encode_state(record, self.url).decode("ascii")
        self.outbox.put_state(record.agent_id, document, events)
        self._kept[record.agent_id] = keys
        self._sender.wake()

    def _forget_kept(self, agent_id: str) -> None:
        """Drop what was kept of an agent before its owner could be stored: now it is."""
        if self._kept.pop(agent_id, None) is None:
            return
        entries = self.outbox.states_of(agent_id)
        self.outbox.forget([entry for entry in entries if is_unstarted(entry)])
        self._sender.wake()

    def heartbeat(self, beats: Sequence[tuple[str, int]], now: float) -> list[str]:
        lost = self.states.heartbeat(beats, now)
        self._deliver_soon()
        return lost

    def _deliver_soon(self) -> None:
        try:
            if not self.outbox.may_wait():
                return
        except StateError as error:  # this machine's disk, not what the caller asks for
            _log.info("what may wait on this machine cannot be read: %s", error)
        self._sender.wake()

    def load(self, agent_id: str) -> StoredAgent:
        self.deliver_kept()
        return self.states.load(agent_id)

    def list_agents(self, run: str | None = None) -> list[StoredAgent]:
        self.deliver_kept()
        return self.states.list_agents(run)

    def changes(self, run: str | None, seen: dict[str, Any]) -> Changes:
        self.deliver_kept()
        return self.states.changes(run, seen)

    def append_events(
        self, events: Sequence[dict[str, Any]], records: Sequence[StateRecord] = ()
    ) -> None:
        for start in range(0, len(events), _BATCH):
            with self.database.transaction() as connection:
                new = self.log.insert(connection, events[start : start + _BATCH])
                router.route_noted(self.registry.rows(connection), new, records)

    def append_following(self, agent_id: str, follow: Follow) -> None:
        with self.database.transaction() as connection:
            self.states.lock(connection, agent_id, is_written=False)
            known = self.log.events_about(connection, agent_id)
            new = self.log.insert(connection, follow(known))
            router.route_noted(self.registry.rows(connection), new, ())

    def prune_readings(
        self, *, readings_before: float, sums_before: float, now: float, dry_run: bool
    ) -> dict[str, int]:
        """Delete old readings and sums, and what machines no longer want to be kept.

        Args:
            readings_before: Epoch seconds; readings since then stay.
            sums_before: Epoch seconds; the sums of its day and of later ones stay.
            now: Epoch seconds.
            dry_run: Delete nothing, and leave what machines want out.

        Returns:
            How many rows were, or would be, deleted, by table.
        """
        deleted = self.reading_sums.prune(readings_before, sums_before, dry_run=dry_run)
        for machine in () if dry_run else self.machines():
            for table, count in self.mirror(machine.machine_id).prune(now).items():
                deleted[table] = deleted.get(table, 0) + count
        return deleted

    def prune(
        self,
        *,
        agents_before: float,
        events_before: float,
        now: float,
        machine: MachineIdentity,
        dry_run: bool,
    ) -> list[str]:
        pruned = [
            agent.agent_id
            for agent in self.list_agents()
            if is_over(agent, agents_before, now, machine)
            and (dry_run or self._prune_agent(agent.agent_id, agents_before, now, machine))
        ]
        if not dry_run:
            with self.database.transaction(silence_seconds=LONG_SILENCE_SECONDS) as connection:
                self.log.prune(connection, events_before)
                self.messages.prune(connection, events_before)
                self.states.forget_deleted(connection, now)
        return pruned

    def _prune_agent(
        self, agent_id: str, before: float, now: float, machine: MachineIdentity
    ) -> bool:
        with self.database.transaction() as connection:
            # An administrator deletes mirrored agents too; row security keeps all others from it.
            _, stored = self.states.lock(connection, agent_id, is_written=False)
            # It may have been started again, or have beaten, since it was listed.
            if not is_over(stored, before, now, machine):
                return False
            self.states.delete(connection, agent_id, now)
        return True

    def close(self) -> None:
        self.queue.close()
        self.database.close()
        self.outbox.close()


def _after_fork() -> None:
    for backend in list(_alive):
        backend.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close() -> None:
    for backend in list(_alive):
        backend.close()
