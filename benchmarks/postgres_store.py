"""A PostgreSQL server with many agents in it, and what its processes, log and tables have cost."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from fleet import template

from ultramon import create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.postgres.admin.setup import migrate
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.backends.postgres.schema.state_columns import COLUMNS
from ultramon.state.record import StateRecord
from ultramon.system.ids import random_hex

if TYPE_CHECKING:
    from helpers.postgres_server import Server

RUN = "load"
AGENTS_PER_BOSS = 100
SETTINGS = {
    "fsync": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "max_connections": "700",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "none",
}
# The tests know how to run a server; what comes from there is imported where it is used.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def agent(number: int) -> str:
    return f"agent-{number:06}"


def boss_of(number: int) -> str:
    return f"boss-{number // AGENTS_PER_BOSS:04}"


class Sample:
    """States and events like those of a real agent in the middle of its work."""

    def __init__(self, directory: str) -> None:
        with create_context_monitor("agent", run=RUN, backend=directory) as monitor:
            monitor.report_usage(input_tokens=180_000)
        events = LocalBackend(directory).events().events
        self._event = next(e for e in events if e["type"] == "context_threshold_reached")
        self.record = template()
        self.record.run = RUN
        self.record.active = True
        self.record.phase, self.record.outcome = "working", None
        self.record.hostname, self.record.boot_id = "elsewhere", "elsewhere"
        self.record.generation = 1

    def state(self, number: int, seq: int, *, is_critical: bool = False) -> StateRecord:
        """Return the next state of an agent."""
        record = copy(self.record)
        record.agent_id, record.parent_id, record.seq = agent(number), boss_of(number), seq
        record.last_heartbeat = record.last_activity = record.measured_at = time.time()
        record.epoch = seq if is_critical else 1
        record.estimated_tokens = 180_000 if is_critical else 20_000
        record.context_limit = 200_000
        record.usage_ratio = record.estimated_tokens / record.context_limit
        record.threshold_status = "critical" if is_critical else "normal"
        record.action = "force_return" if is_critical else "none"
        return record

    def crossing(self, number: int, seq: int) -> tuple[StateRecord, list[dict[str, Any]]]:
        """Return a state in a window of its own that is critical, and the event of that."""
        record = self.state(number, seq, is_critical=True)
        event = {
            **self._event,
            "eventId": random_hex(16),
            "agentId": record.agent_id,
            "source": f"agent:{record.agent_id}",
            "generation": record.generation,
            "epoch": record.epoch,
        }
        return record, [event]


class Cost(NamedTuple):
    """What a server has spent."""

    cpu_seconds: float
    wal_bytes: int
    disk_bytes: int


class Store:
    """A store with agents in it, in a server of its own."""

    def __init__(self, server: Server, backend: PostgresBackend) -> None:
        self.server = server
        self.backend = backend
        self.url = server.url()
        self._link: psycopg.Connection[tuple[Any, ...]] | None = None

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Ask the server; always over the same connection, as a new one costs it 10 ms."""
        if self._link is None:
            self._link = psycopg.connect(self.url.replace("schema=ultramon&", ""), autocommit=True)
        cursor = self._link.execute(query)
        return cursor.fetchall() if cursor.description else []

    @contextmanager
    def without_page_images(self) -> Iterator[None]:
        """Log changes alone, which no real server should; how many pages are new to it varies."""
        self.ask("ALTER SYSTEM SET full_page_writes = off")
        self.ask("SELECT pg_reload_conf()")
        self.settle()
        yield
        self.ask("ALTER SYSTEM RESET full_page_writes")
        self.ask("SELECT pg_reload_conf()")
        self.settle()

    def cost(self) -> Cost:
        """Return what was spent so far, by processes that have ended as well."""
        first = self.server.pid()
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile; its parent has its time
            if int(stat.parent.name) == first:
                ticks += sum(int(value) for value in fields[11:15])
            elif int(fields[1]) == first:
                ticks += sum(int(value) for value in fields[11:13])
        [(wal, disk)] = self.ask(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,"
            " (SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c"
            "  WHERE c.relnamespace = 'ultramon'::regnamespace AND c.relkind = 'r')"
        )
        return Cost(ticks / _CLOCK_TICKS, wal, disk)

    def fill(self, sample: Sample, agents: int) -> None:
        """Store agents that are all registered with a boss, as if they had started."""
        states, database = self.backend.states, self.backend.database
        bosses = -(-agents // AGENTS_PER_BOSS)
        now = time.time()
        with database.for_admin() as connection:
            cursor = connection.cursor()
            with cursor.copy(
                database.address.sql(f"COPY ultramon.agents ({', '.join(COLUMNS)}) FROM STDIN")
            ) as rows:
                for number in range(agents):
                    record = sample.state(number, 1)
                    rows.write_row(list(states.row(record).values()))
                for number in range(bosses):
                    record = sample.state(0, 1)
                    record.agent_id, record.parent_id = boss_of(number * AGENTS_PER_BOSS), None
                    rows.write_row(list(states.row(record).values()))
            names = [agent(number) for number in range(agents)]
            names += [boss_of(number * AGENTS_PER_BOSS) for number in range(bosses)]
            with cursor.copy(
                database.address.sql(
                    "COPY ultramon.heartbeats (agent_id, generation, at) FROM STDIN"
                )
            ) as rows:
                for name in names:
                    rows.write_row((name, 1, now))
            with cursor.copy(
                database.address.sql("COPY ultramon.registrations FROM STDIN")
            ) as rows:
                for number in range(agents):
                    boss = boss_of(number)
                    rows.write_row((agent(number), boss, "explicit", None, boss, now))
        self.settle()

    def settle(self) -> None:
        """Let the server finish what it would do anyway some time."""
        self.ask("VACUUM ANALYZE")
        self.ask("CHECKPOINT")

    def hot_share(self, table: str) -> float:
        """Return which share of a table's updates touched no index."""
        [(share,)] = self.ask(
            "SELECT n_tup_hot_upd::float8 / greatest(n_tup_upd, 1) FROM pg_stat_user_tables"
            f" WHERE schemaname = 'ultramon' AND relname = '{table}'"
        )
        return float(share)


@contextmanager
def running(**settings: str) -> Iterator[Store]:
    """Run a server with an empty store until the block ends."""
    from helpers.postgres_server import Server

    server = Server(**{**SETTINGS, **settings})
    try:
        server.start()
        backend = PostgresBackend(server.url())
        try:
            migrate(backend.database)
            yield Store(server, backend)
        finally:
            backend.close()
    finally:
        server.remove()
