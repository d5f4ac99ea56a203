"""Makes the tables of a store, and brings older ones up to date in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from psycopg import errors as pg

from ultramon.backends.postgres.admin.roles import Roles, set_up_roles
from ultramon.backends.postgres.schema.functions import FUNCTIONS
from ultramon.backends.postgres.schema.tables import MIGRATIONS, SCHEMA_VERSION
from ultramon.errors import StateSchemaError, StateWriteError

if TYPE_CHECKING:
    from ultramon.backends.postgres.connection.database import Connection, Database

# Numbers of transactions that this server has not given yet: a dump of another one brings them.
_FOREIGN = ">= pg_snapshot_xmax(pg_current_snapshot())"
_TXID_OF_CURSOR = "split_part(cursor, ':', 1)::xid8"
_NUMBERED = {
    "events": "txid",
    "agents": "changed",
    "heartbeats": "changed",
    "pruned_agents": "changed",
}
"""The columns that hold numbers of transactions, by table."""


class Made(NamedTuple):
    """The result of `initialize`."""

    before: int
    """The version of the tables it found; 0 = there were none."""
    after: int
    roles: Roles


def initialize(database: Database) -> Made:
    """Make schema, tables and roles as one step, or bring them up to date; see `migrate`.

    Roles are created if this user may create any; existing ones get their rights.
    """
    with database.unchecked() as connection, connection.transaction():
        before = _bring_up_to_date(connection, database)
        roles = set_up_roles(connection, database.address.schema, create=True)
    return Made(before, SCHEMA_VERSION, roles)


def migrate(database: Database) -> tuple[int, int]:
    """Bring the tables up to date as one step; several processes may try at once.

    Existing roles get their rights on new tables. Rows that were restored from the dump of another
    server get numbers that this one knows, so that no event stays unseen.

    Returns:
        The versions before (0 = there were none) and after.

    Raises:
        StateSchemaError: A newer ultramon made them.
        StateWriteError: The database does not answer, or this user may not.
    """
    with database.unchecked() as connection, connection.transaction():
        before = _bring_up_to_date(connection, database)
        if before < SCHEMA_VERSION:
            set_up_roles(connection, database.address.schema, create=False)
    return before, SCHEMA_VERSION


def stored_version(connection: Connection, database: Database) -> int:
    """Return the version of the tables; 0 = there are none.

    Raises:
        StateSchemaError: A newer ultramon made them.
    """
    meta = database.sql("ultramon.meta")
    if connection.execute("SELECT to_regclass(%s)", (meta,)).fetchone() == (None,):
        return 0
    row = connection.execute(f"SELECT value FROM {meta} WHERE key = 'schema_version'").fetchone()
    version = 0 if row is None else int(row[0])
    if version > SCHEMA_VERSION:
        raise StateSchemaError(
            database.address.shown,
            f"version {version} was written by a newer ultramon, this one knows {SCHEMA_VERSION}",
            "upgrade ultramon",
        )
    return version


def _bring_up_to_date(connection: Connection, database: Database) -> int:
    """Take every missing step; return the version that was found."""
    sql, schema = database.sql, database.address.schema
    connection.execute(
        "SELECT pg_advisory_xact_lock(hashtextextended('ultramon schema ' || %s, 0))", (schema,)
    )
    before = stored_version(connection, database)
    steps = list(MIGRATIONS[before:])
    if before == 0:
        found = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,))
        # The owner of a schema may lack the right to make one, even if it exists.
        if found.fetchone() is None:
            _create_schema(connection, database)
        meta = (
            "CREATE TABLE IF NOT EXISTS ultramon.meta (key text PRIMARY KEY, value text NOT NULL)"
        )
        steps.insert(0, meta)
    # Functions every time: they belong to this version of ultramon, not to that of the tables.
    for step in (*steps, *FUNCTIONS):
        connection.execute(sql(step))
    if before < SCHEMA_VERSION:
        connection.execute(
            sql(
                f"INSERT INTO ultramon.meta VALUES ('schema_version', '{SCHEMA_VERSION}')"
                " ON CONFLICT (key) DO UPDATE SET value = excluded.value"
            )
        )
    if before and count_foreign(connection, database):
        _renumber(connection, database)
    return before


def _create_schema(connection: Connection, database: Database) -> None:
    schema = database.address.schema
    try:
        connection.execute(f'CREATE SCHEMA "{schema}"')
    except pg.InsufficientPrivilege as error:
        raise StateWriteError(
            database.address.shown,
            f"the database refused: {str(error).partition(chr(10))[0]}",
            f'an administrator can run: CREATE SCHEMA "{schema}" AUTHORIZATION'
            f' "{connection.info.user}"',
        ) from error


def count_foreign(connection: Connection, database: Database) -> int:
    """Return the number of events and cursors that carry transaction numbers of another server.

    They come from a dump. No consumer sees such an event, and none behind such a cursor.
    """
    row = connection.execute(
        database.sql(
            f"SELECT (SELECT count(*) FROM ultramon.events WHERE txid {_FOREIGN})"
            f" + (SELECT count(*) FROM ultramon.consumers WHERE {_TXID_OF_CURSOR} {_FOREIGN})"
        )
    ).fetchone()
    assert row is not None
    return int(row[0])


def _renumber(connection: Connection, database: Database) -> None:
    """Number restored rows as this transaction's.

    All events then come in the order of their ids. A consumer may have read them in another order:
    it continues before the first that it had not read, and may get some twice.
    """
    statements = [
        # A writer with an older number must not add an event behind the cursors that are set here.
        "LOCK TABLE ultramon.agents, ultramon.messages, ultramon.events"
        " IN SHARE ROW EXCLUSIVE MODE",
        "UPDATE ultramon.consumers c SET cursor = (SELECT pg_current_xact_id()::text || ':' ||"
        " coalesce(min(e.id) FILTER (WHERE (e.txid, e.id) >"
        f"  ({_TXID_OF_CURSOR}, split_part(c.cursor, ':', 2)::bigint)) - 1, max(e.id))"
        f" FROM ultramon.events e) WHERE {_TXID_OF_CURSOR} {_FOREIGN}",
        *(
            f"UPDATE ultramon.{table} SET {column} = pg_current_xact_id() WHERE {column} {_FOREIGN}"
            for table, column in _NUMBERED.items()
        ),
    ]
    for statement in statements:
        connection.execute(database.sql(statement))
