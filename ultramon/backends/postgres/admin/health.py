"""Examines a PostgreSQL server and its store: safe settings, access, tables, rows.

Nothing is written but what waits on this machine.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from psycopg.rows import dict_row

from ultramon.backends.local.event_rows import read_event
from ultramon.backends.local.row_shapes import MAX_SHOWN, is_object
from ultramon.backends.postgres.admin.roles import (
    ADMIN,
    GRANTS,
    MACHINE,
    READER,
    WRITER,
    rights_of,
)
from ultramon.backends.postgres.admin.setup import count_foreign, stored_version
from ultramon.backends.postgres.connection.database import DatabaseAwayError
from ultramon.backends.postgres.schema.tables import SCHEMA_VERSION
from ultramon.errors import StateError, StateSchemaError, StateWriteError
from ultramon.system.findings import OK, PROBLEM, WARNING, Finding
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.backends.postgres.backend import PostgresBackend
    from ultramon.backends.postgres.connection.database import Connection, Database

# The first with `xid8` and snapshots of it, by which events are ordered.
OLDEST_SERVER = 130_000
MAX_SKEW_SECONDS = 5.0
MAX_TAIL_SECONDS = 60.0
MAX_CONNECTIONS_RATIO = 0.8
_DELIVERY_SECONDS = 5.0
_PAGE_ROWS = 1_000
_TEXTS = (
    ("events", "id", "payload", "0", lambda text: read_event(text) is not None),
    ("messages", "id", "facts", "0", is_object),
    ("consumers", "name", "memory", "", is_object),
)
_INIT, _MIGRATE = "`ultramon backend init`", "`ultramon backend migrate`"


class OldestWriter(NamedTuple):
    """The oldest transaction that writes: it keeps newer events from being delivered."""

    pid: int | None
    """None for a prepared one, which belongs to no process."""
    application: str
    seconds: float | None
    """Its age; None when this user may not see that."""


class Facts(NamedTuple):
    """The settings of a server, this connection to it, and the state of the store."""

    version: int
    """As in ``server_version_num``: 150018 is 15.18."""
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    is_standby: bool
    is_read_only: bool
    encoding: str
    skew_seconds: float
    """How far its clock is ahead of this machine's, give or take half the time of a question."""
    is_local: bool
    """Whether the connection stays on this machine."""
    is_encrypted: bool
    ssl_mode: str
    is_pooled: bool
    """Behind a pooler: the process that answers is not the one that was connected to."""
    connections: int
    max_connections: int
    user: str
    tables_version: int | None
    """0 = there are no tables, None = this user may not see them."""
    role: str | None = None
    """The highest role all of whose rights this user has."""
    lacks: tuple[str, ...] = ()
    """Rights of the next role that this user has not."""
    foreign: int = 0
    """Events and cursors with transaction numbers of another server, from a dump."""
    oldest_writer: OldestWriter | None = None


_SERVER = """
    SELECT extract(epoch FROM clock_timestamp())::float8 AS now, pg_backend_pid() AS pid,
        current_setting('server_version_num')::int AS version,
        current_setting('fsync') = 'on' AS fsync,
        current_setting('full_page_writes') = 'on' AS full_page_writes,
        current_setting('synchronous_commit') AS synchronous_commit,
        pg_is_in_recovery() AS is_standby,
        current_setting('transaction_read_only') = 'on' AS is_read_only,
        current_setting('server_encoding') AS encoding, current_user::text AS user,
        (SELECT count(*)::int FROM pg_stat_activity WHERE datid IS NOT NULL) AS connections,
        current_setting('max_connections')::int AS max_connections
"""
_MAY_READ = """
    SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
    FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
    WHERE n.nspname = %s AND c.relname = 'meta'
"""
_LACKING = """
    SELECT w.name || ' on ' || w.place FROM unnest(%s::text[], %s::text[]) AS w (place, name)
    JOIN pg_namespace n ON n.nspname = %s
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.place
    WHERE NOT CASE w.name WHEN 'DELETE' THEN has_table_privilege(c.oid, w.name)
        ELSE has_any_column_privilege(c.oid, w.name) END
"""
# Only transactions that write have a number, in whichever database of the server they run.
_OLDEST_WRITER = """
    SELECT pid, name, seconds FROM (
        SELECT pid, application_name AS name, age(backend_xid) AS distance,
            extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
        FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
        UNION ALL
        SELECT NULL, 'prepared transaction ' || gid, age(transaction),
            extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts
    ) AS writing ORDER BY distance DESC LIMIT 1
"""


def read_facts(database: Database) -> Facts:
    """Return the facts that `examine` judges.

    Raises:
        StateWriteError: The server does not answer.
    """
    try:
        with database.for_admin() as connection:
            return _read_facts(connection, database)
    except DatabaseAwayError as error:
        if "certificate verify failed" not in error.reason:
            raise
        advice = "a CA of your own is named by sslrootcert=/path/to/ca.pem in the URL"
        raise StateWriteError(error.path, error.reason, advice) from error


def _read_facts(connection: Connection, database: Database) -> Facts:
    before = time.time()
    settings = connection.cursor(row_factory=dict_row).execute(_SERVER).fetchone()
    assert settings is not None
    now = (before + time.time()) / 2
    info = connection.info
    version = _tables_version(connection, database)
    role, lacks = _role(connection) if version else (None, ())
    # Rows of an older version count too: `migrate` brings them up to date and numbers them at once.
    is_readable = 0 < (version or 0) <= SCHEMA_VERSION and role is not None
    return Facts(
        skew_seconds=settings.pop("now") - now,
        is_local=info.host.startswith("/") or info.hostaddr in ("127.0.0.1", "::1"),
        is_encrypted=connection.pgconn.ssl_in_use,
        ssl_mode=info.get_parameters().get("sslmode", "prefer"),
        is_pooled=info.backend_pid != settings.pop("pid"),
        tables_version=version,
        role=role,
        lacks=lacks,
        foreign=count_foreign(connection) if is_readable else 0,
        oldest_writer=find_oldest_writer(connection),
        **settings,
    )


def _tables_version(connection: Connection, database: Database) -> int | None:
    if connection.execute(_MAY_READ, (connection.address.schema,)).fetchone() == (False,):
        return None
    try:
        return stored_version(connection, database)
    except StateSchemaError:
        return SCHEMA_VERSION + 1


def _role(connection: Connection) -> tuple[str | None, tuple[str, ...]]:
    """Return the highest role whose rights this user has, and the missing rights of the next."""
    lacks: tuple[str, ...] = ()
    for role in (ADMIN, WRITER, READER, MACHINE):
        rights = {table: rights_of(role, table).partition(" (")[0] for table in GRANTS}
        wanted = [(table, one) for table in GRANTS for one in rights[table].split(", ") if one]
        tables, names = map(list, zip(*wanted, strict=True))
        found = connection.execute(_LACKING, (tables, names, connection.address.schema))
        missing = tuple(name for (name,) in found)
        if not missing:
            return role, lacks
        lacks = missing
    return None, lacks


def find_oldest_writer(connection: Connection) -> OldestWriter | None:
    """Return the oldest transaction that writes, in whichever database of the server."""
    row = connection.execute(_OLDEST_WRITER).fetchone()
    return None if row is None else OldestWriter(*row)


def examine_store(store: PostgresBackend) -> Iterator[Finding]:
    """Deliver the outbox; judge it, the server, which may not answer, and all rows."""
    try:
        yield _judge_outbox(store)
        yield from examine(read_facts(store.database))
    except StateError as error:
        yield Finding("store", PROBLEM, str(error))
    yield from _examine_rows(store.database)


def _examine_rows(database: Database) -> Iterator[Finding]:
    """Yield a warning for each table with rows that are passed over; nothing while it is away."""
    for table, key, column, first, is_right in _TEXTS:
        query = (
            f"SELECT {key}, {column} FROM ultramon.{table} WHERE {key} > %s"
            f" ORDER BY {key} LIMIT {_PAGE_ROWS}"
        )
        bad: list[str] = []
        last: object = first
        try:
            while page := database.select(query, last):
                last = page[-1][0]
                bad += [f"{number}" for number, text in page if not is_right(text)]
        except StateError:
            return  # the check of the server says why
        if bad:
            shown = ", ".join(bad[:MAX_SHOWN]) + (", …" if bad[MAX_SHOWN:] else "")
            message = f"{table}: {column} of {len(bad):,} rows cannot be read; passed over: {shown}"
            cure = f"look at them by their {key}, and delete them when they are understood"
            yield Finding("rows", WARNING, message, cure)


def _judge_outbox(store: PostgresBackend) -> Finding:
    before = store.outbox.kept()
    store.deliver_kept(_DELIVERY_SECONDS)
    kept = store.outbox.kept()
    if kept.oldest_at is not None:
        waiting = f"waiting on this machine: states {kept.states:,}, messages {kept.messages:,}"
        cure = "every ultramon process on this machine stores them while the database answers"
        return Finding("outbox", WARNING, f"{waiting}, since {format_time(kept.oldest_at)}", cure)
    if kept.refused:
        message = f"the database refused {kept.refused:,} entries for good"
        cure = f"they stay in {store.outbox.path}"
        return Finding("outbox", WARNING, message, cure)
    if before.oldest_at is not None:
        waited = f"states {before.states:,}, messages {before.messages:,}"
        since = format_time(before.oldest_at)
        return Finding("outbox", OK, f"stored what waited on this machine since {since}: {waited}")
    return Finding("outbox", OK, "nothing waits on this machine")


def examine(facts: Facts) -> list[Finding]:
    """Judge the facts about a server and its store."""
    return [*_durability(facts), *_access(facts), *_store(facts)]


def refusals(facts: Facts) -> list[Finding]:
    """Return the findings that make a server unfit for any store."""
    return [found for found in _durability(facts) if found.status == PROBLEM]


def _durability(facts: Facts) -> Iterator[Finding]:
    major, minor = divmod(facts.version, 10_000)
    if facts.version < OLDEST_SERVER:
        yield Finding("server", PROBLEM, f"PostgreSQL {major} is too old", "13 or newer is needed")
    else:
        yield Finding("server", OK, f"PostgreSQL {major}.{minor}")
    for name, is_on in (("fsync", facts.fsync), ("full_page_writes", facts.full_page_writes)):
        if is_on:
            yield Finding(name, OK, "on")
        else:
            message = "off: a crash of its machine can destroy everything that is stored"
            yield Finding(name, PROBLEM, message, f"set {name} = on in postgresql.conf")
    name, setting = "synchronous_commit", facts.synchronous_commit
    if setting == "off":
        setting = "off: a crash takes back the last half second, events and notices too"
        cure = f"set {name} = on for this user, database or server; heartbeats never wait for it"
        yield Finding(name, WARNING, setting, cure)
    else:
        yield Finding(name, OK, setting)


def _access(facts: Facts) -> Iterator[Finding]:
    if facts.is_standby or facts.is_read_only:
        kind = "a standby" if facts.is_standby else "read-only"
        cure = "let agents use the primary, e.g. by target_session_attrs=read-write in the URL"
        yield Finding("writing", WARNING, f"this server is {kind}: agents can store nothing", cure)
    if facts.encoding != "UTF8":
        message = f"the database is {facts.encoding}: texts beyond it are refused"
        yield Finding("encoding", WARNING, message, "make the database with ENCODING 'UTF8'")
    apart = f"{abs(facts.skew_seconds):.1f} s"
    if abs(facts.skew_seconds) > MAX_SKEW_SECONDS:
        where = "ahead of" if facts.skew_seconds > 0 else "behind"
        message = f"the server's is {apart} {where} this machine's; the server's counts"
        yield Finding("clock", WARNING, message, "let both machines follow a time server")
    else:
        yield Finding("clock", OK, f"{apart} apart")
    yield _encryption(facts)
    used = f"{facts.connections} of {facts.max_connections} are in use"
    if facts.connections / facts.max_connections > MAX_CONNECTIONS_RATIO:
        cure = "put PgBouncer in transaction mode in front of many processes, or raise it"
        yield Finding("max_connections", WARNING, used, cure)
    else:
        yield Finding("max_connections", OK, used)
    if facts.is_pooled:
        message = "one stands in front; nothing here needs a connection of its own"
        cure = "PgBouncer: pool_mode = transaction (statement mode breaks transactions)"
        yield Finding("pooler", OK, message, cure)


def _encryption(facts: Facts) -> Finding:
    if facts.is_local:
        return Finding("encryption", OK, "the connection stays on this machine")
    if not facts.is_encrypted:
        cure = "take sslmode out of the URL: verify-full is the default"
        return Finding("encryption", WARNING, "none: every machine on the way can read it", cure)
    if facts.ssl_mode != "verify-full":
        cure = "use sslmode=verify-full, with sslrootcert=/path/to/ca.pem for a CA of your own"
        message = f"sslmode={facts.ssl_mode}: another machine may pretend to be the server"
        return Finding("encryption", WARNING, message, cure)
    return Finding("encryption", OK, "TLS, the server's certificate is checked")


def _store(facts: Facts) -> Iterator[Finding]:
    version, user = facts.tables_version, facts.user
    if version is None:
        cure = f"GRANT {WRITER} TO {user} (or {READER}, {ADMIN})"
        yield Finding("tables", PROBLEM, f"{user} may not see them", cure)
        return
    if version == 0:
        yield Finding("tables", PROBLEM, "there are none", _INIT)
    elif version < SCHEMA_VERSION:
        message = f"version {version}, this ultramon needs {SCHEMA_VERSION}"
        yield Finding("tables", PROBLEM, message, _MIGRATE)
    elif version > SCHEMA_VERSION:
        message = f"a newer ultramon made them, this one knows version {SCHEMA_VERSION}"
        yield Finding("tables", PROBLEM, message, "upgrade ultramon on this machine")
    else:
        yield Finding("tables", OK, f"version {version}")
        yield _rights(facts)
    if facts.foreign:
        message = f"{facts.foreign} events and cursors come from a dump of another server"
        yield Finding("restored rows", PROBLEM, f"{message}: events stay unseen", _MIGRATE)
    yield _event_tail(facts.oldest_writer)


def _rights(facts: Facts) -> Finding:
    user, role = facts.user, facts.role
    shown = ", ".join(facts.lacks[:3]) + (", …" if len(facts.lacks) > 3 else "")
    if role is None:
        return Finding("rights", PROBLEM, f"{user} lacks {shown}", f"{_INIT} by an administrator")
    if role == MACHINE:
        return Finding("rights", OK, f"{user} mirrors agents of its own machines only")
    if role == READER:
        message = f"{user} may only look: no agent can run as it ({shown})"
        return Finding("rights", WARNING, message, f"GRANT {WRITER} TO {user} for agents")
    return Finding("rights", OK, f"{user} has those of {role}")


def _event_tail(writer: OldestWriter | None) -> Finding:
    """Judge whether a transaction holds the delivery of events back."""
    if writer is None:
        return Finding("event tail", OK, "nothing holds it back")
    pid, who = writer.pid, writer.application
    if pid is not None:
        who = f"process {pid} of the server" + (f" ({who})" if who else "")
    if writer.seconds is None:
        cure = "GRANT pg_read_all_stats TO this user to see since when"
        return Finding("event tail", OK, f"held back by {who}", cure)
    message = f"held back by {who} for {writer.seconds:.0f} s"
    if writer.seconds <= MAX_TAIL_SECONDS:
        return Finding("event tail", OK, message)
    cure = "ROLLBACK PREPARED" if pid is None else f"SELECT pg_terminate_backend({pid})"
    return Finding(
        "event tail", WARNING, f"{message}: newer events reach supervised runs only", cure
    )
