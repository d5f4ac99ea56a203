"""The rows of one machine whose files stay the truth: it writes them, all others only read them.

What is stored here is as the machine sends it: it has taken out what shall not leave it.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import time as wall_clock
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.backends.local.event_rows import EVENT_COLUMNS, event_row, keyed
from ultramon.backends.postgres.connection.database import LONG_SILENCE_SECONDS
from ultramon.backends.postgres.schema import functions
from ultramon.backends.postgres.schema.functions import as_rows
from ultramon.backends.postgres.schema.text_columns import to_column
from ultramon.errors import ConfigurationError, StateWriteError
from ultramon.state.event_keys import event_key
from ultramon.system import compact_json
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ultramon.backends.postgres.connection.database import Connection, Database
    from ultramon.backends.postgres.store.states import States
    from ultramon.state.record import StateRecord

_BEAT = ("agent_id", "generation", "at")
_EVENT = EVENT_COLUMNS.split(", ")
_PARTS = ("readings", "reading_days", "events", "agents", "machines")
"""The tables with rows of a machine; beats go with their agents."""
_DELETE_OLD = {
    "readings": "at < %(before)s",
    "reading_days": "day < (to_timestamp(%(before)s) AT TIME ZONE 'UTC')::date",
    "events": "occurred_at < %(before_text)s",
}


class Reading(NamedTuple):
    """One reading of a mirrored agent's window, and what was used since the one before."""

    agent_id: str
    at: float
    """Epoch seconds, by this machine's clock."""
    host: str
    model: str | None
    epoch: int
    level: str | None
    used_tokens: int
    """In the window."""
    limit_tokens: int | None
    input_tokens: int | None = None
    """Since the agent's reading before, read from no cache; None = not known, as for the others."""
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class SentRows(NamedTuple):
    """The rows of a batch."""

    agents: list[dict[str, Any]]
    beats: list[tuple[str, int, float]]
    events: list[tuple[str, ...]]
    """With the columns `EVENT_COLUMNS`."""
    readings: list[Reading]

    def by_table(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each row with the name of its table, as columns and values."""
        yield from (("agents", row) for row in self.agents)
        yield from (("heartbeats", dict(zip(_BEAT, row, strict=True))) for row in self.beats)
        yield from (("events", dict(zip(_EVENT, row, strict=True))) for row in self.events)
        yield from (("readings", row._asdict()) for row in self.readings)


class KnownState(NamedTuple):
    """What is stored of an agent's state."""

    generation: int
    seq: int
    digest: bytes
    """SHA-256 of its document."""


class WaitingNotice(NamedTuple):
    """A notice to an agent of this machine."""

    id: int
    recipient: str
    sender: str
    facts: str
    """JSON, as its writer stored it."""


class MirroredState(NamedTuple):
    """The state of an agent, with the ids and texts that shall be seen."""

    record: StateRecord
    heartbeat_at: float | None = None
    """Epoch seconds, by this machine's clock; None = it never beat."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """Writes the rows of one machine, as a user with the role ``ultramon_machine``.

    Attributes:
        database: Where they are.
        states: Makes the rows of agents.
        machine_id: ``m`` and 8 to 32 hexadecimal digits. The id of each of its agents begins with
            it and a hyphen.
    """

    database: Database
    states: States
    machine_id: str

    def announce(
        self, *, name: str | None, sent_fields: Iterable[str], retention_seconds: float | None
    ) -> int:
        """Enter this machine, or say anew what it sends.

        Args:
            name: Shown to people; None = its id is.
            sent_fields: The names of the texts that it sends.
            retention_seconds: How long its rows are kept, see `prune`; None = until it erases them.

        Returns:
            The position of the last batch that is stored, 0 at first.

        Raises:
            StateWriteError: The database refused, e.g. because another user has this machine's id.
        """
        now = self.database.to_server(wall_clock())
        rows = self.database.select(
            "INSERT INTO ultramon.machines AS m (machine_id, name, sent_fields, retention_seconds,"
            " first_seen, last_seen) VALUES (%s, %s, %s, %s, %s, %s)"
            " ON CONFLICT (machine_id) DO UPDATE SET name = excluded.name,"
            " sent_fields = excluded.sent_fields, retention_seconds = excluded.retention_seconds,"
            " last_seen = excluded.last_seen WHERE m.database_user = session_user"
            " RETURNING position",
            *(self.machine_id, to_column(name), ",".join(sorted(sent_fields))),
            *(retention_seconds, now, now),
        )
        if not rows:
            raise StateWriteError(
                self.database.address.shown, f"machine {self.machine_id} belongs to another user"
            )
        return int(rows[0][0])

    def store(
        self,
        position: int,
        states: Sequence[MirroredState] = (),
        events: Sequence[dict[str, Any]] = (),
        readings: Sequence[Reading] = (),
        beats: Sequence[tuple[str, int, float]] = (),
        *,
        after: int | None = None,
        durable: bool = True,
    ) -> int:
        """Store a batch as one step, unless it is stored already.

        So a batch may be sent again whose answer was lost. Events are stored once under their key.

        Args:
            position: Of this batch: more than that of all before.
            states: Newest states; one that is older than the stored one is passed over.
            events: Of this machine's agents.
            readings: Oldest first.
            beats: Agents with their generation and time, by this machine's clock; those that are
                not stored are passed over.
            after: The position that is stored now, as the caller knows; where that is another one,
                nothing is stored. None = any that is lower.
            durable: False = a crash of the server may undo the last second of such batches, the
                position among them.

        Returns:
            The position of the last batch that is stored now.

        Raises:
            ConfigurationError: A row is not of an agent of this machine.
            StateWriteError: The database does not answer, or refused.
        """
        rows = self.rows(states, events, readings, beats, shift=self.database.to_server)
        arguments = (
            self.machine_id,
            position,
            self.database.to_server(wall_clock()),
            compact_json.dumps(rows.agents),
            as_rows(_BEAT, rows.beats),
            as_rows(_EVENT, rows.events),
            as_rows(Reading._fields, rows.readings),
            after,
        )
        with self.database.transaction(durable=durable) as connection:
            [(stored, full)] = connection.execute(functions.MIRROR, arguments)
            if full:
                self.states.thin_histories(connection, full)
        if stored is None:
            raise StateWriteError(
                self.database.address.shown, f"machine {self.machine_id} is not entered"
            )
        return int(stored)

    def rows(
        self,
        states: Sequence[MirroredState],
        events: Sequence[dict[str, Any]],
        readings: Sequence[Reading],
        beats: Sequence[tuple[str, int, float]] = (),
        *,
        shift: Callable[[float], float] = float,
    ) -> SentRows:
        """Return the rows that `store` sends; without `shift` no database is asked.

        Args:
            states: As for `store`, like `events`, `readings` and `beats`.
            events: See `states`.
            readings: See `states`.
            beats: See `states`.
            shift: Moves a time of this machine's clock to the server's.

        Raises:
            ConfigurationError: A row is not of an agent of this machine.
        """
        self._check(states, events, readings)
        beaten = [(agent_id, generation, shift(at)) for agent_id, generation, at in beats]
        beaten += [
            (state.record.agent_id, state.record.generation, shift(state.heartbeat_at))
            for state in states
            if state.heartbeat_at is not None
        ]
        return SentRows(
            [self.states.row(state.record) for state in states],
            beaten,
            [event_row(key, event) for key, event in keyed(events).items()],
            [_row(reading, shift(reading.at)) for reading in readings],
        )

    def _check(
        self,
        states: Sequence[MirroredState],
        events: Sequence[dict[str, Any]],
        readings: Sequence[Reading],
    ) -> None:
        own = f"{self.machine_id}-"
        found = [state.record.agent_id for state in states]
        found += [event["agentId"] for event in events]
        found += [reading.agent_id for reading in readings]
        # An event may bring a key of its own along, which is no agent's.
        found += [event_key(event) for event in events]
        for name in found:
            if not name.startswith(own):
                raise ConfigurationError("agent id", name, f"one that begins with {own}")

    def known(self) -> dict[str, KnownState]:
        """Return what is stored of each agent of this machine, by its id."""
        rows = self.database.select(
            "SELECT agent_id, generation, seq, sha256(convert_to(document, 'UTF8'))"
            " FROM ultramon.agents WHERE machine_id = %s",
            self.machine_id,
        )
        return {row[0]: KnownState(*row[1:]) for row in rows}

    def remove(self, agent_ids: Sequence[str]) -> None:
        """Delete agents that their machine has no longer; their events and readings stay."""
        with self.database.transaction() as connection:
            gone = connection.execute(
                "DELETE FROM ultramon.agents WHERE machine_id = %s AND agent_id = ANY(%s)"
                " RETURNING agent_id",
                (self.machine_id, list(agent_ids)),
            )
            self._forget(connection, [agent_id for (agent_id,) in gone])

    def notices(self, limit: int) -> list[WaitingNotice]:
        """Return the oldest notices that wait for agents of this machine, without their texts.

        Only of children that are registered for their parent. They wait until `forget_notices`.
        """
        at = self.database.to_server(wall_clock())
        rows = self.database.select(functions.NOTICES, self.machine_id, at, limit)
        return [WaitingNotice(*row) for row in rows]

    def forget_notices(self, ids: Sequence[int]) -> None:
        """Delete notices that have arrived on this machine."""
        self.database.change("DELETE FROM ultramon.messages WHERE id = ANY(%s)", list(ids))

    def counts(self) -> dict[str, int]:
        """Return how many rows of this machine are stored, by table."""
        with self.database.connection() as connection:
            return {table: self._count(connection, table) for table in _PARTS}

    def _count(self, connection: Connection, table: str) -> int:
        [(count,)] = connection.execute(
            f"SELECT count(*) FROM ultramon.{table} WHERE machine_id = %s", (self.machine_id,)
        )
        return int(count)

    def prune(self, now: float) -> dict[str, int]:
        """Delete this machine's rows that are older than it lets them become.

        Agents go that ended, or were last heard of, before then.

        Args:
            now: Epoch seconds.

        Returns:
            The number of deleted rows, by table; empty where there is no limit.
        """
        with self.database.transaction(silence_seconds=LONG_SILENCE_SECONDS) as connection:
            found = connection.execute(
                "SELECT retention_seconds FROM ultramon.machines WHERE machine_id = %s",
                (self.machine_id,),
            ).fetchone()
            if found is None or found[0] is None:
                return {}
            before = self.database.to_server(now) - found[0]
            values = {
                "machine": self.machine_id,
                "before": before,
                "before_text": format_time(before),
            }
            gone = connection.execute(
                "DELETE FROM ultramon.agents a WHERE machine_id = %(machine)s AND"
                " greatest(last_heartbeat + skew_seconds, (SELECT at FROM ultramon.heartbeats h"
                "  WHERE h.agent_id = a.agent_id)) < %(before)s RETURNING agent_id",
                values,
            ).fetchall()
            deleted = {"agents": self._forget(connection, [agent_id for (agent_id,) in gone])}
            for table, is_old in _DELETE_OLD.items():
                deleted[table] = connection.execute(
                    f"DELETE FROM ultramon.{table} WHERE machine_id = %(machine)s AND {is_old}",
                    values,
                ).rowcount
        return deleted

    def erase(self) -> dict[str, int]:
        """Delete all rows of this machine, and the messages to its agents.

        Returns:
            The number of deleted rows, by table.
        """
        deleted = {}
        with self.database.transaction(silence_seconds=LONG_SILENCE_SECONDS) as connection:
            # Readers that look again learn from these names that they are gone.
            gone = connection.execute(
                "SELECT agent_id FROM ultramon.agents WHERE machine_id = %s", (self.machine_id,)
            )
            self._forget(connection, [agent_id for (agent_id,) in gone])
            # No id holds a character from DEL on.
            deleted["messages"] = connection.execute(
                "DELETE FROM ultramon.messages WHERE recipient >= %s AND recipient < %s",
                (f"{self.machine_id}-", f"{self.machine_id}-\x7f"),
            ).rowcount
            for table in _PARTS:
                deleted[table] = connection.execute(
                    f"DELETE FROM ultramon.{table} WHERE machine_id = %s", (self.machine_id,)
                ).rowcount
        return deleted

    def _forget(self, connection: Connection, agent_ids: list[str]) -> int:
        connection.execute(
            "INSERT INTO ultramon.pruned_agents (agent_id, at) SELECT u.agent_id, %s"
            " FROM unnest(%s::text[]) AS u (agent_id)",
            (self.database.to_server(wall_clock()), agent_ids),
        )
        return len(agent_ids)


def _row(reading: Reading, at: float) -> Reading:
    return reading._replace(
        at=at,
        host=to_column(reading.host),
        model=to_column(reading.model),
        level=to_column(reading.level),
    )
