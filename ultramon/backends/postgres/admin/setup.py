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


class Made(NamedTuple):
    """What `initialize` found and did."""

    before: int
    """The version of the tables it found; 0 = there were none."""
    after: int
    roles: Roles


def initialize(database: Database) -> Made:
    """Make schema, tables and roles as one step, or bring them up to date; see `migrate`.

    Roles are created where this user may create any; those that are there get their rights.
    """
    with database.unchecked() as connection, connection.transaction():
        before = _bring_up_to_date(connection, database)
        roles = set_up_roles(connection, database.address.schema, create=True)
    return Made(before, SCHEMA_VERSION, roles)


def migrate(database: Database) -> tuple[int, int]:
    """Bring the tables up to date as one step; several processes may try at once.

    Roles that are there get their rights on what is new. Rows that were restored from the dump of
    another server get numbers that this one knows, so that no event stays unseen.

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
    found = connection.execute(
        "SELECT 1 FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid"
        " WHERE n.nspname = %s AND c.relname = 'meta'",
        (database.address.schema,),
    ).fetchone()
    if found is None:
        return 0
    row = connection.execute(
        database.sql("SELECT value FROM ultramon.meta WHERE key = 'schema_version'")
    ).fetchone()
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
    if before == 0:
        found = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,))
        # Who owns a schema may lack the right to make one, even if it is there.
        if found.fetchone() is None:
            _create_schema(connection, database)
        connection.execute(
            sql(
                "CREATE TABLE IF NOT EXISTS ultramon.meta"
                " (key text PRIMARY KEY, value text NOT NULL)"
            )
        )
    for step in MIGRATIONS[before:]:
        connection.execute(sql(step))
    # Every time: they belong to this version of ultramon, not to that of the tables.
    for function in FUNCTIONS:
        connection.execute(sql(function))
    if before < SCHEMA_VERSION:
        connection.execute(
            sql(
                "INSERT INTO ultramon.meta VALUES ('schema_version', %s)"
                " ON CONFLICT (key) DO UPDATE SET value = excluded.value"
            ),
            (str(SCHEMA_VERSION),),
        )
    if before and count_foreign(connection, database):
        _adopt(connection, database)
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
    """Return how many events and cursors another server's transactions numbered.

    They come from a dump. Nobody sees such an event, and behind such a cursor no new one.
    """
    row = connection.execute(
        database.sql(
            f"SELECT (SELECT count(*) FROM ultramon.events WHERE txid {_FOREIGN})"
            f" + (SELECT count(*) FROM ultramon.consumers WHERE {_TXID_OF_CURSOR} {_FOREIGN})"
        )
    ).fetchone()
    assert row is not None
    return int(row[0])


def _adopt(connection: Connection, database: Database) -> None:
    """Number restored rows as this transaction's.

    All events then come in the order of their ids. A consumer may have read them in another one: it
    goes on before the first that it had not read, and may get some twice.
    """
    sql = database.sql
    # A writer with an older number must not add an event behind the cursors that are set here.
    connection.execute(
        sql(
            "LOCK TABLE ultramon.agents, ultramon.messages, ultramon.events"
            " IN SHARE ROW EXCLUSIVE MODE"
        )
    )
    connection.execute(
        sql(
            "UPDATE ultramon.consumers c SET cursor = (SELECT pg_current_xact_id()::text || ':' ||"
            " coalesce(min(e.id) FILTER (WHERE (e.txid, e.id) >"
            f"  ({_TXID_OF_CURSOR}, split_part(c.cursor, ':', 2)::bigint)) - 1, max(e.id))"
            f" FROM ultramon.events e) WHERE {_TXID_OF_CURSOR} {_FOREIGN}"
        )
    )
    for table, column in (
        ("events", "txid"),
        ("agents", "changed"),
        ("heartbeats", "changed"),
        ("pruned_agents", "changed"),
    ):
        connection.execute(
            sql(
                f"UPDATE ultramon.{table} SET {column} = pg_current_xact_id()"
                f" WHERE {column} {_FOREIGN}"
            )
        )
