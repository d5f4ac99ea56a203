"""States, heartbeats and requests as rows of a PostgreSQL database."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ultramon.backends.base import Changes, StoredAgent
from ultramon.backends.local.state_files import KEPT_CORRUPT_FILES
from ultramon.backends.postgres.schema import functions
from ultramon.backends.postgres.schema.state_columns import (
    COLUMNS,
    READING,
    assignments,
    is_known_reading,
    row_of,
)
from ultramon.backends.postgres.schema.text_columns import to_column
from ultramon.backends.sql_rows import BELONGINGS
from ultramon.errors import AgentMirroredError, AgentNotFoundError, StateError
from ultramon.state.history import HistoryPoint, decode_points
from ultramon.state.history_ring import thin
from ultramon.state.record import decode_state, encode_request, encode_state
from ultramon.state.record_head import decode_head
from ultramon.system import compact_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ultramon.backends.postgres.connection.database import Connection, Database
    from ultramon.state.record import StateRecord

    Decode = Callable[[bytes, str], StateRecord]

_SELECT = (
    "SELECT a.agent_id, a.document, a.skew_seconds, h.at, a.generation, a.machine_id"
    " FROM ultramon.agents a LEFT JOIN ultramon.heartbeats h USING (agent_id)"
)
_PUT = (
    f"INSERT INTO ultramon.agents AS a ({', '.join(COLUMNS)})"
    f" VALUES ({', '.join(f'%({name})s' for name in COLUMNS)}) ON CONFLICT (agent_id) DO UPDATE"
    f" SET {assignments('a', 'excluded')},"
    " changed = pg_current_xact_id()"
)
_MEASURED = (
    f"INSERT INTO ultramon.readings (at, {READING}) SELECT measured_at, {READING}"
    " FROM json_populate_record(NULL::ultramon.agents, %s) AS g"
    " WHERE NOT EXISTS (SELECT 1 FROM ultramon.agents a WHERE a.agent_id = g.agent_id"
    f" AND {is_known_reading('a', 'g')})"
)
# One question and one answer: each further one would cost the way to the server and back.
_LOOK = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = '30s';"
    # One text for all of them: thousands of rows cost both sides four times as much.
    " SELECT string_agg(agent_id, ' '), string_agg(at::text, ' ')"
    " FROM ultramon.heartbeats WHERE changed >= '{since}';"
    " SELECT agent_id, document, skew_seconds, changed::text FROM ultramon.agents"
    " WHERE changed >= '{since}';"
    " SELECT DISTINCT p.agent_id FROM ultramon.pruned_agents p WHERE p.changed >= '{since}'"
    "  AND NOT EXISTS (SELECT 1 FROM ultramon.agents a WHERE a.agent_id = p.agent_id);"
    " SELECT pg_snapshot_xmin(pg_current_snapshot())::text; COMMIT"
)
_FORGOTTEN_SECONDS = 7 * 86_400.0
"""How long the names of deleted agents are kept for readers that look again."""

REQUESTS_SECONDS = 0.9
"""How long what was asked for is taken to be all; a little less than agents look again after."""
_UNASKED: tuple[dict[str, str], float] = {}, float("-inf")
SEEN = "agents"
BEATS = "beats"
SNAPSHOT = "snapshot"


class States:
    """The rows of agents.

    Args:
        database: Where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._requests = _UNASKED

    def lock(
        self, connection: Connection, agent_id: str, *, is_written: bool = True
    ) -> tuple[int, StoredAgent]:
        """Keep every other process from an agent until the transaction ends.

        Args:
            connection: Within a transaction.
            agent_id: The agent.
            is_written: False = its row is not changed, so that it may be a mirrored one.

        Returns:
            The generation that holds it, 0 for none, and what is stored: for nothing an agent with
            neither record nor problem.

        Raises:
            AgentMirroredError: It would be written, and is mirrored from a machine.
        """
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended('ultramon.' || %s, 0))", (agent_id,)
        )
        row = connection.execute(
            f"{_SELECT} WHERE a.agent_id = %s FOR UPDATE OF a", (agent_id,)
        ).fetchone()
        if row is None:
            # A row that this user may not write cannot be locked either.
            found = connection.execute(f"{_SELECT} WHERE a.agent_id = %s", (agent_id,))
            row = found.fetchone()
        if row is None:
            return 0, StoredAgent(agent_id, None, None)
        if is_written and row[5] is not None:
            raise AgentMirroredError(agent_id, row[5])
        return row[4], self.stored(row)

    def hold(self, connection: Connection, agent_id: str, lock: str = "FOR UPDATE") -> bool:
        """Lock the row of an agent until the transaction ends; return whether there is one.

        Raises:
            AgentMirroredError: Only its machine writes it.
        """
        # Row security hides a mirrored row from the lock: it is asked for twice.
        [(is_held, machine_id)] = connection.execute(
            "SELECT EXISTS (SELECT 1 FROM (SELECT 1 FROM ultramon.agents"
            f"  WHERE agent_id = %s {lock}) AS held),"
            " (SELECT machine_id FROM ultramon.agents WHERE agent_id = %s)",
            (agent_id, agent_id),
        )
        if machine_id is not None:
            raise AgentMirroredError(agent_id, machine_id)
        return bool(is_held)

    def refuse_mirrored(self, connection: Connection, agent_id: str) -> None:
        """Raise `AgentMirroredError` for an agent that only its machine writes."""
        for (machine_id,) in connection.execute(
            "SELECT machine_id FROM ultramon.agents WHERE agent_id = %s AND machine_id IS NOT NULL",
            (agent_id,),
        ):
            raise AgentMirroredError(agent_id, machine_id)

    def put(self, connection: Connection, record: StateRecord, now: float) -> None:
        """Store the first state of a new owner, and beat."""
        row = self.row(record)
        if row["used_tokens"] is not None:
            # Kept on this machine until now, or of an agent that is taken over.
            connection.execute(_MEASURED, (compact_json.dumps(row),))
        connection.execute(_PUT, row)
        connection.execute(
            "INSERT INTO ultramon.heartbeats (agent_id, generation, at) VALUES (%s, %s, %s)"
            " ON CONFLICT (agent_id) DO UPDATE SET generation = excluded.generation,"
            " at = excluded.at, changed = pg_current_xact_id()",
            (record.agent_id, record.generation, self._database.to_server(now)),
        )

    def set_aside(self, connection: Connection, agent_id: str, now: float) -> None:
        """Keep the document of a locked agent as evidence; the newest three are kept."""
        connection.execute(
            "INSERT INTO ultramon.corrupt_states (agent_id, document, at)"
            " SELECT agent_id, document, %s FROM ultramon.agents WHERE agent_id = %s",
            (self._database.to_server(now), agent_id),
        )
        connection.execute(
            "DELETE FROM ultramon.corrupt_states WHERE agent_id = %s AND id NOT IN"
            " (SELECT id FROM ultramon.corrupt_states WHERE agent_id = %s"
            "  ORDER BY id DESC LIMIT %s)",
            (agent_id, agent_id, KEPT_CORRUPT_FILES),
        )

    def row(self, record: StateRecord) -> dict[str, Any]:
        """Return the row of a state.

        Raises:
            StateWriteError: It is too large, or has no JSON form.
        """
        document = encode_state(record, self._path(record.agent_id))
        return row_of(record, document, self._database.skew_seconds)

    def thin_histories(self, connection: Connection, agent_ids: Sequence[str]) -> None:
        """Make room in the histories of agents that this transaction has written."""
        found = connection.execute(
            "SELECT agent_id, history FROM ultramon.agents WHERE agent_id = ANY(%s)",
            (list(agent_ids),),
        ).fetchall()
        connection.execute(
            "UPDATE ultramon.agents a SET history = u.history"
            " FROM unnest(%s::text[], %s::bytea[]) AS u (agent_id, history)"
            " WHERE a.agent_id = u.agent_id",
            ([row[0] for row in found], [thin(row[1]) for row in found]),
        )

    def stored(self, row: Sequence[Any]) -> StoredAgent:
        """Return the agent of a row; a state that cannot be read comes with its problem."""
        agent_id, document, skew_seconds, at = row[:4]
        beat = None if at is None else self._database.from_server(at)
        return self._agent(agent_id, document, skew_seconds, beat, decode_state)

    def _agent(
        self, agent_id: str, document: str, skew_seconds: float, beat: float | None, decode: Decode
    ) -> StoredAgent:
        try:
            record = decode(document.encode("ascii", "replace"), self._path(agent_id))
        except StateError as error:
            return StoredAgent(agent_id, None, beat, error)
        # The times by which an agent is judged move to the clock of this machine.
        difference = skew_seconds - self._database.skew_seconds
        if difference:
            record.last_heartbeat += difference
            record.last_activity += difference
        return StoredAgent(agent_id, record, beat)

    def _path(self, agent_id: str) -> str:
        return f"{self._database.address.shown}#{agent_id}"

    def load(self, agent_id: str) -> StoredAgent:
        rows = self._database.select(f"{_SELECT} WHERE a.agent_id = %s", to_column(agent_id))
        if not rows:
            raise AgentNotFoundError(agent_id)
        stored = self.stored(rows[0])
        if stored.problem is not None:
            raise stored.problem
        return stored

    def history(self, agent_id: str) -> list[HistoryPoint]:
        rows = self._database.select(
            "SELECT history, skew_seconds FROM ultramon.agents"
            " WHERE agent_id = %s AND history IS NOT NULL",
            to_column(agent_id),
        )
        # Like the times of a state, those of its readings move to the clock of this machine.
        for points, skew_seconds in rows:
            return decode_points(points, skew_seconds - self._database.skew_seconds)
        return []

    def list_agents(self, run: str | None = None) -> list[StoredAgent]:
        query = f"{_SELECT} WHERE %s::text IS NULL OR a.run = %s ORDER BY a.agent_id"
        wanted = to_column(run)
        return [self.stored(row) for row in self._database.select(query, wanted, wanted)]

    def read(self, agent_ids: Sequence[str]) -> list[StoredAgent]:
        """Return agents in the order of their ids as given, without those that are not stored."""
        rows = self._database.select(f"{_SELECT} WHERE a.agent_id = ANY (%s)", list(agent_ids))
        found = {row[0]: self.stored(row) for row in rows}
        return [found[agent_id] for agent_id in agent_ids if agent_id in found]

    def changes(self, run: str | None, seen: dict[str, Any]) -> Changes:
        """Return what changed. See `Backend.changes`.

        Rows carry the transaction that wrote them last. What was written by one that had not
        ended at the last look has a number from that look's oldest running one on, so that no
        commit is missed however late it comes.
        """
        known: dict[str, tuple[str, bool]] = seen.setdefault(SEEN, {})
        beats: dict[str, float] = seen.setdefault(BEATS, {})
        [(names, times)], rows, gone, [(seen_until,)] = self._ask_since(seen.get(SNAPSHOT, "0"))
        seen[SNAPSHOT] = seen_until
        if names is not None:
            at = (self._database.from_server(float(time)) for time in times.split(" "))
            beats.update(zip(names.split(" "), at, strict=True))
        changed, removed = [], []
        for agent_id, document, skew_seconds, mark in rows:
            before, shown = known.get(agent_id, ("", False))
            if before == mark:
                continue
            beat = beats.get(agent_id)
            agent = self._agent(agent_id, document, skew_seconds, beat, decode_head)
            wanted = agent.record is None or run in (None, agent.record.run)
            known[agent_id] = mark, wanted
            if wanted:
                changed.append(agent)
            elif shown:
                removed.append(agent_id)
        for (agent_id,) in gone:
            beats.pop(agent_id, None)
            _, shown = known.pop(agent_id, ("", False))
            if shown:
                removed.append(agent_id)
        return Changes(changed, removed, beats)

    def _ask_since(self, since: str) -> list[list[tuple[Any, ...]]]:
        """Return the beats, agents and names of deleted agents that changed, and the next mark."""
        answers = []
        with self._database.connection() as connection:
            cursor = connection.execute(_LOOK.format(since=since))
            while True:
                if cursor.description is not None:
                    answers.append(cursor.fetchall())
                if not cursor.nextset():
                    return answers

    def heartbeat(self, beats: Sequence[tuple[str, int]], now: float) -> list[str]:
        """Note that agents live. See `Backend.heartbeat`."""
        # Sorted: two processes that beat for the same agents must not wait for each other.
        held = dict(sorted(beats))
        at = self._database.to_server(now)
        rows = self._database.select(functions.BEAT, list(held), list(held.values()), at)
        refused = {agent_id for (agent_id,) in rows}
        return [agent_id for agent_id, _ in beats if agent_id in refused]

    def put_request(self, agent_id: str, request: dict[str, Any] | None) -> None:
        document = None
        if request is not None:
            document = encode_request(request, self._database.address.shown).decode("ascii")
        self._requests = _UNASKED
        with self._database.transaction() as connection:
            if not self.hold(connection, agent_id, "FOR KEY SHARE"):
                raise AgentNotFoundError(agent_id)
            if document is None:
                connection.execute("DELETE FROM ultramon.requests WHERE agent_id = %s", (agent_id,))
            else:
                connection.execute(
                    "INSERT INTO ultramon.requests VALUES (%s, %s)"
                    " ON CONFLICT (agent_id) DO UPDATE SET document = excluded.document",
                    (agent_id, document),
                )

    def get_request(self, agent_id: str) -> dict[str, Any] | None:
        """See `Backend.get_request`.

        One question a second serves all agents of this process: there are few requests.
        """
        requests, asked_at = self._requests
        if time.monotonic() - asked_at >= REQUESTS_SECONDS:
            requests = dict(
                self._database.select("SELECT agent_id, document FROM ultramon.requests")
            )
            self._requests = requests, time.monotonic()
        document = requests.get(agent_id)
        request: dict[str, Any] | None = None if document is None else compact_json.loads(document)
        return request

    def delete(self, connection: Connection, agent_id: str, now: float) -> None:
        """Delete a locked agent, and leave its name for readers that look again."""
        self._requests = _UNASKED
        for table, column in (*BELONGINGS, ("agents", "agent_id")):
            connection.execute(f"DELETE FROM ultramon.{table} WHERE {column} = %s", (agent_id,))
        connection.execute(
            "INSERT INTO ultramon.pruned_agents (agent_id, at) VALUES (%s, %s)",
            (agent_id, self._database.to_server(now)),
        )

    def forget_deleted(self, connection: Connection, now: float) -> None:
        """Forget the names of agents that were deleted long ago."""
        connection.execute(
            "DELETE FROM ultramon.pruned_agents WHERE at < %s",
            (self._database.to_server(now) - _FORGOTTEN_SECONDS,),
        )
