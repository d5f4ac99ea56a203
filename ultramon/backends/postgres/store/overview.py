"""The overview of the agents in a PostgreSQL database: sorted and judged there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultramon.backends.overview import Page
from ultramon.backends.postgres.schema.state_columns import machine_of
from ultramon.backends.postgres.schema.text_columns import to_column
from ultramon.state.liveness import ALIVE, ENDED, LOST, STALE, judge
from ultramon.system import compact_json
from ultramon.system.processes import boot_seconds, is_process_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ultramon.backends.base import StoredAgent
    from ultramon.backends.postgres.connection.database import Connection, Database
    from ultramon.backends.postgres.store.states import States
    from ultramon.system.processes import MachineIdentity

_BATCH = 200
"""Agents read at once: some hundred kilobytes."""
_OF_RUN = "(%(run)s::text IS NULL OR a.run = %(run)s)"
_RATIO = "coalesce(a.usage_ratio, 0)"
_END = "%(skip)s + %(limit)s::bigint"

_MANY = 10_000
"""More silent agents are found sooner by reading all than one by one."""

# An agent that beat within the shortest limit of all is alive without a look at its state.
_SUSPECTS = f"""
    SELECT agent_id FROM ultramon.heartbeats WHERE at < (
        SELECT %(now)s - min(least(stale_after_seconds, lost_after_seconds))
        FROM ultramon.agents WHERE active)
    LIMIT {_MANY}
"""
_PROCESSES = """
    SELECT DISTINCT process FROM ultramon.agents
    WHERE active AND machine = %(machine)s AND process IS NOT NULL
"""
_GONE_AGENTS = f"""
    SELECT agent_id FROM ultramon.agents
    WHERE active AND machine = %(machine)s AND process = ANY (%(gone)s) LIMIT {_MANY}
"""

# An agent without a heartbeat of its own is alive until its machine is started anew. The name of
# that machine is in the whole state only.
_SILENT_SINCE_BOOT = """
    SELECT agent_id FROM ultramon.agents
    WHERE active AND stale_after_seconds IS NULL AND process IS NOT NULL AND machine <> %s
        AND last_heartbeat + skew_seconds < %s
"""

# Of those, `judged` says in SQL what `ultramon.state.liveness.judge` says. Which processes are gone
# only their own machine knows: that was asked before.
_PAGE = f"""
    WITH aged AS (
        SELECT a.*, a.machine = %(machine)s AS is_here, {_RATIO} AS ratio,
            greatest(0, %(now)s - coalesce(
                greatest(nullif(a.last_heartbeat, 0) + a.skew_seconds, h.at),
                a.started_at + %(skew)s)) AS age_seconds
        FROM ultramon.agents a LEFT JOIN ultramon.heartbeats h USING (agent_id)
        WHERE a.active AND {_OF_RUN} AND (%(suspects)s::text[] IS NULL
            OR a.agent_id = ANY (%(suspects)s))
    ), judged AS (
        SELECT agent_id, urgency, ratio, CASE
            WHEN is_here AND process = ANY (%(gone)s) THEN '{LOST}'
            WHEN agent_id = ANY (%(cut_off)s) THEN '{LOST}'
            WHEN stale_after_seconds IS NULL THEN '{ALIVE}'
            WHEN waiting AND (is_here OR age_seconds <= lost_after_seconds) THEN '{ALIVE}'
            WHEN age_seconds > lost_after_seconds THEN '{LOST}'
            WHEN age_seconds > stale_after_seconds THEN '{STALE}'
            ELSE '{ALIVE}' END AS verdict
        FROM aged
    ), silent AS MATERIALIZED (
        SELECT * FROM judged WHERE verdict <> '{ALIVE}'
    ), foremost AS (
        SELECT agent_id, ratio,
            CASE WHEN verdict = '{LOST}' THEN 0 WHEN urgency > 0 THEN 3 - urgency ELSE 3 END AS rank
        FROM silent
        UNION ALL (
            SELECT a.agent_id, {_RATIO}, CASE WHEN a.urgency > 0 THEN 3 - a.urgency ELSE 4 END
            FROM ultramon.agents a WHERE a.active AND {_OF_RUN}
                AND a.agent_id NOT IN (SELECT agent_id FROM silent)
            ORDER BY a.urgency DESC, {_RATIO} DESC, a.agent_id LIMIT {_END})
        UNION ALL (
            SELECT a.agent_id, {_RATIO}, 5
            FROM ultramon.agents a WHERE NOT a.active AND %(include_ended)s AND {_OF_RUN}
            ORDER BY {_RATIO} DESC, a.agent_id LIMIT {_END})
    )
    SELECT
        ARRAY(SELECT agent_id FROM foremost ORDER BY rank, ratio DESC, agent_id
            OFFSET %(skip)s LIMIT %(limit)s),
        (SELECT count(*) FROM ultramon.agents a WHERE a.active AND {_OF_RUN}),
        (SELECT count(*) FROM silent WHERE verdict = '{STALE}'),
        (SELECT count(*) FROM silent WHERE verdict = '{LOST}'),
        (SELECT count(*) FROM ultramon.agents a WHERE NOT a.active AND {_OF_RUN}),
        pg_snapshot_xmin(pg_current_snapshot())::text
"""


@dataclass(frozen=True, slots=True)
class PostgresOverview:
    """Sorts and judges agents in the database.

    Attributes:
        database: Where they are.
        states: Reads them.
        deliver_kept: Stores what was kept on this machine during an outage.
    """

    database: Database
    states: States
    deliver_kept: Callable[[], object]

    def page(
        self,
        run: str | None,
        *,
        now: float,
        machine: MachineIdentity,
        limit: int | None = None,
        skip: int = 0,
        include_ended: bool = False,
    ) -> Page:
        self.deliver_kept()
        number = machine_of(machine.hostname, machine.boot_id)
        server_now = self.database.to_server(now)
        silent = self.database.select(_SILENT_SINCE_BOOT, number, server_now - boot_seconds())
        cut_off = [
            one.agent_id
            for one in self._read([agent_id for (agent_id,) in silent])
            if one.record and judge(one.record, one.heartbeat_at, now, machine).verdict == LOST
        ]
        with self.database.transaction(durable=False) as connection:
            values: dict[str, Any] = {
                "run": to_column(run),
                "now": server_now,
                "skew": self.database.skew_seconds,
                "machine": number,
                "cut_off": cut_off,
                "include_ended": include_ended,
                "skip": skip,
                "limit": limit,
            }
            processes = connection.execute(_PROCESSES, values)
            values["gone"] = [
                process for (process,) in processes if is_process_gone(*compact_json.loads(process))
            ]
            values["suspects"] = self._suspects(connection, values)
            [(agent_ids, active, stale, lost, ended, oldest_running)] = connection.execute(
                _PAGE, values
            )
        counts = {ALIVE: active - stale - lost, STALE: stale, LOST: lost, ENDED: ended}
        return Page(self._read(agent_ids), counts, f"{oldest_running}:0")

    def _suspects(self, connection: Connection, values: dict[str, Any]) -> list[str] | None:
        """Return the agents that may not be alive; None for too many."""
        found = connection.execute(_SUSPECTS, values).fetchall()
        if values["gone"]:
            found += connection.execute(_GONE_AGENTS, values).fetchall()
        agent_ids = [agent_id for (agent_id,) in found] + values["cut_off"]
        return None if len(agent_ids) >= _MANY else agent_ids

    def _read(self, agent_ids: Sequence[str]) -> Iterator[StoredAgent]:
        for start in range(0, len(agent_ids), _BATCH):
            yield from self.states.read(agent_ids[start : start + _BATCH])

    def find_by_prefix(self, prefix: str) -> list[str]:
        # No id holds a character from DEL on, and in the order of bytes that one comes last.
        first = to_column(prefix)
        return self._find(
            "agent_id >= %s AND agent_id < %s OR shown_id >= %s AND shown_id < %s",
            *(first, f"{first}\x7f") * 2,
        )

    def find_by_label(self, label: str) -> list[str]:
        return self._find("label = %s", to_column(label))

    def _find(self, condition: str, *values: str) -> list[str]:
        query = f"SELECT agent_id FROM ultramon.agents WHERE {condition} ORDER BY agent_id"
        return [agent_id for (agent_id,) in self.database.select(query, *values)]
