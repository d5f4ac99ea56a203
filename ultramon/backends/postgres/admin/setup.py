"""Makes the tables of a store, and brings older ones up to date in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from psycopg import errors as pg

from ultramon.backends.postgres.admin.roles import Roles, set_up_roles
from ultramon.backends.postgres.schema.functions import FUNCTIONS
from ultramon.backends.postgres.schema.tables import MIGRATIONS, SCHEMA_VERSION
from ultramon.errors import StateWriteError

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
    """The result of `migrate`."""

    before: int
    """The version of the tables it found; 0 = there were none."""
    roles: Roles
    """Empty when nothing changed for them."""


def migrate(database: Database, *, create_roles: bool = False) -> Made:
    """Bring the tables up to date as one step; several processes may try at once.

    Existing roles get their rights on new tables. Rows that were restored from the dump of another
    server get numbers that this one knows, so that no event stays unseen.

    Args:
        database: Its schema is made as well if there is none.
        create_roles: Create missing roles, if this user may, and give each its rights in any case.

    Raises:
        StateSchemaError: A newer ultramon made them.
        StateWriteError: The database does not answer, or this user may not.
    """
    roles = Roles([], [])
    with database.for_admin() as connection, connection.transaction():
        before = _bring_up_to_date(connection, database)
        if create_roles or before < SCHEMA_VERSION:
            roles = set_up_roles(connection, create=create_roles)
    return Made(before, roles)


def stored_version(connection: Connection, database: Database) -> int:
    """Return the version of the tables; 0 = there are none.

    Raises:
        StateSchemaError: A newer ultramon made them.
    """
    if connection.execute("SELECT to_regclass('ultramon.meta')").fetchone() == (None,):
        return 0
    row = connection.execute(
        "SELECT value FROM ultramon.meta WHERE key = 'schema_version'"
    ).fetchone()
    version = 0 if row is None else int(row[0])
    database.refuse_newer(version)
    return version


def _bring_up_to_date(connection: Connection, database: Database) -> int:
    """Take every missing step; return the version that was found."""
    schema = connection.address.schema
    connection.execute(
        "SELECT pg_advisory_xact_lock(hashtextextended('ultramon schema ' || %s, 0))", (schema,)
    )
    before = stored_version(connection, database)
    if before == 0:
        found = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,))
        # The owner of a schema may lack the right to make one, even if it exists.
        if found.fetchone() is None:
            _create_schema(connection, database)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS ultramon.meta (key text PRIMARY KEY, value text NOT NULL)"
        )
    # Functions every time: they belong to this version of ultramon, not to that of the tables.
    for step in (*MIGRATIONS[before:], *FUNCTIONS):
        connection.execute(step)
    if before < SCHEMA_VERSION:
        connection.execute(
            f"INSERT INTO ultramon.meta VALUES ('schema_version', '{SCHEMA_VERSION}')"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        )
    if before and count_foreign(connection):
        _renumber(connection)
    return before


def _create_schema(connection: Connection, database: Database) -> None:
    schema = connection.address.schema
    try:
        connection.execute(f'CREATE SCHEMA "{schema}"')
    except pg.InsufficientPrivilege as error:
        raise StateWriteError(
            database.address.shown,
            f"the database refused: {str(error).partition(chr(10))[0]}",
            f'an administrator can run: CREATE SCHEMA "{schema}" AUTHORIZATION'
            f' "{connection.info.user}"',
        ) from error


def count_foreign(connection: Connection) -> int:
    """Return the number of events and cursors that carry transaction numbers of another server.

    They come from a dump. No consumer sees such an event, and none behind such a cursor.
    """
    [(count,)] = connection.execute(
        f"SELECT (SELECT count(*) FROM ultramon.events WHERE txid {_FOREIGN})"
        f" + (SELECT count(*) FROM ultramon.consumers WHERE {_TXID_OF_CURSOR} {_FOREIGN})"
    )
    return int(count)


def _renumber(connection: Connection) -> None:
    """Number restored rows as this transaction's.

    All events then come in the order of their ids. A consumer may have read them in another order:
    it continues before the first that it had not read, and may get some twice.
    """
    # A writer with an older number must not add an event behind the cursors that are set here.
    connection.execute(
        "LOCK TABLE ultramon.agents, ultramon.messages, ultramon.events IN SHARE ROW EXCLUSIVE MODE"
    )
    connection.execute(
        "UPDATE ultramon.consumers c SET cursor = (SELECT pg_current_xact_id()::text || ':' ||"
        " coalesce(min(e.id) FILTER (WHERE (e.txid, e.id) >"
        f"  ({_TXID_OF_CURSOR}, split_part(c.cursor, ':', 2)::bigint)) - 1, max(e.id))"
        f" FROM ultramon.events e) WHERE {_TXID_OF_CURSOR} {_FOREIGN}"
    )
    for table, column in _NUMBERED.items():
        connection.execute(
            f"UPDATE ultramon.{table} SET {column} = pg_current_xact_id() WHERE {column} {_FOREIGN}"
        )
