"""How much is in a PostgreSQL store, and what keeps it busy. Looks only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.backends.postgres.admin.health import find_holder
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from ultramon.backends.postgres.connection.database import Connection, Database

# Rows are the server's own estimate, like dead ones: counting all of them would read everything.
_TABLES = """
    SELECT c.relname::text, pg_table_size(c.oid), pg_indexes_size(c.oid),
        coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
        extract(epoch FROM greatest(s.last_vacuum, s.last_autovacuum))::float8
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
    WHERE n.nspname = %s AND c.relkind = 'r'
    ORDER BY pg_total_relation_size(c.oid) DESC, c.relname
"""
_INDEXES = """
    SELECT i.relname::text, t.relname::text, pg_relation_size(i.oid)
    FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
    JOIN pg_namespace n ON n.oid = t.relnamespace WHERE n.nspname = %s AND t.relkind = 'r'
    ORDER BY pg_relation_size(i.oid) DESC, i.relname
"""
_CONNECTIONS = """
    SELECT count(*)::int, (count(*) FILTER (WHERE application_name LIKE 'ultramon%%'))::int,
        current_setting('max_connections')::int
    FROM pg_stat_activity WHERE datid IS NOT NULL
"""


def measure(database: Database) -> dict[str, Any]:
    """Return sizes and counts, as ``backend stats --json`` prints them.

    Raises:
        StateWriteError: The database does not answer, or this user may not look.
    """
    schema = (database.address.schema,)
    with database.connection() as connection:
        tables = [
            {
                "name": name,
                "tableBytes": table_bytes,
                "indexBytes": index_bytes,
                "rows": rows,
                "deadRows": dead_rows,
                "vacuumedAt": None if vacuumed_at is None else format_time(vacuumed_at),
            }
            for name, table_bytes, index_bytes, rows, dead_rows, vacuumed_at in _rows(
                connection, _TABLES, schema
            )
        ]
        indexes = [
            {"name": name, "table": table, "bytes": size}
            for name, table, size in _rows(connection, _INDEXES, schema)
        ]
        ((stored, active),) = _rows(
            connection,
            database.sql("SELECT count(*), count(*) FILTER (WHERE active) FROM ultramon.agents"),
        )
        ((events, oldest, newest),) = _rows(
            connection,
            database.sql(
                "SELECT count(*), min(occurred_at), max(occurred_at) FROM ultramon.events"
            ),
        )
        ((used, ours, most),) = _rows(connection, _CONNECTIONS)
        holder = find_holder(connection)
    return {
        "agents": {"stored": stored, "active": active},
        "events": {"stored": events, "oldestAt": oldest, "newestAt": newest},
        "tailHolder": None if holder is None else holder._asdict(),
        "connections": {"used": used, "ofUltramon": ours, "max": most},
        "tables": tables,
        "indexes": indexes,
    }


def _rows(
    connection: Connection, query: str, arguments: tuple[Any, ...] = ()
) -> list[tuple[Any, ...]]:
    return connection.execute(query, arguments).fetchall()
