"""The contents of a PostgreSQL store in numbers; read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg.rows import dict_row

from ultramon.backends.postgres.admin.health import find_oldest_writer
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from ultramon.backends.postgres.connection.database import Database
    from ultramon.backends.postgres.outbox.outbox import Outbox

# Rows are the server's own estimate, like dead ones: counting all of them would read everything.
_TABLES = """
    SELECT c.relname::text AS name, pg_table_size(c.oid) AS "tableBytes",
        pg_indexes_size(c.oid) AS "indexBytes", coalesce(s.n_live_tup, 0) AS rows,
        coalesce(s.n_dead_tup, 0) AS "deadRows",
        extract(epoch FROM greatest(s.last_vacuum, s.last_autovacuum))::float8 AS "vacuumedAt"
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
    WHERE n.nspname = %s AND c.relkind = 'r'
    ORDER BY pg_total_relation_size(c.oid) DESC, c.relname
"""
_INDEXES = """
    SELECT i.relname::text AS name, t.relname::text AS table, pg_relation_size(i.oid) AS bytes
    FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
    JOIN pg_namespace n ON n.oid = t.relnamespace WHERE n.nspname = %s AND t.relkind = 'r'
    ORDER BY bytes DESC, i.relname
"""
_AGENTS = """
    SELECT count(*) AS stored, count(*) FILTER (WHERE active) AS active FROM ultramon.agents
"""
_EVENTS = """
    SELECT count(*) AS stored, min(occurred_at) AS "oldestAt", max(occurred_at) AS "newestAt"
    FROM ultramon.events
"""
_CONNECTIONS = """
    SELECT count(*)::int AS used,
        (count(*) FILTER (WHERE application_name LIKE 'ultramon%%'))::int AS "ofUltramon",
        current_setting('max_connections')::int AS max
    FROM pg_stat_activity WHERE datid IS NOT NULL
"""


def measure(database: Database, outbox: Outbox) -> dict[str, Any]:
    """Return sizes and counts, as ``backend stats --json`` prints them.

    Raises:
        StateWriteError: The database does not answer, or this user may not read it.
    """
    kept = outbox.kept()
    with database.connection() as connection:
        cursor = connection.cursor(row_factory=dict_row)

        def rows(query: str, *arguments: str) -> list[dict[str, Any]]:
            return cursor.execute(connection.address.sql(query), arguments).fetchall()

        tables = rows(_TABLES, connection.address.schema)
        for table in tables:
            table["vacuumedAt"] = table["vacuumedAt"] and format_time(table["vacuumedAt"])
        writer = find_oldest_writer(connection)
        return {
            "agents": rows(_AGENTS)[0],
            "events": rows(_EVENTS)[0],
            "tailHolder": writer and writer._asdict(),
            "connections": rows(_CONNECTIONS)[0],
            "tables": tables,
            "indexes": rows(_INDEXES, connection.address.schema),
            "outbox": {
                "states": kept.states,
                "messages": kept.messages,
                "refused": kept.refused,
                "oldestAt": kept.oldest_at and format_time(kept.oldest_at),
            },
        }
