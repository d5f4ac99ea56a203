"""Whether a database can be trusted with a store, and how much is in it. Looks only."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from ultramon.backends.health import OK, PROBLEM, WARNING, Finding
from ultramon.backends.postgres.admin.roles import ADMIN, GRANTS, READER, WRITER, rights_of
from ultramon.backends.postgres.admin.setup import count_foreign, stored_version
from ultramon.backends.postgres.schema.tables import SCHEMA_VERSION
from ultramon.errors import StateError, StateSchemaError, StateWriteError
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.backends.postgres.connection.database import Connection, Database
    from ultramon.backends.postgres.outbox.outbox import Outbox

OLDEST_SERVER = 130_000
MAX_SKEW_SECONDS = 5.0
MAX_TAIL_SECONDS = 60.0
MAX_CONNECTIONS_RATIO = 0.8
_CA_ADVICE = "a CA of your own is named by sslrootcert=/path/to/ca.pem in the URL"
INIT, MIGRATE = "`ultramon backend init`", "`ultramon backend migrate`"


class Holder(NamedTuple):
    """The transaction that keeps newer events from being delivered: the oldest that writes."""

    pid: int | None
    """None for a prepared one, which belongs to no process."""
    application: str
    seconds: float | None
    """How long it has been running; None when this user may not see that."""


class Facts(NamedTuple):
    """What a server says about itself, and this connection to it."""

    version: int
    """As in ``server_version_num``: 150018 is 15.18."""
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    is_standby: bool
    is_read_only: bool
    encoding: str
    skew_seconds: float
    """How far its clock is ahead of this host's, give or take half the time of a question."""
    is_local: bool
    """Nothing of the connection leaves this host."""
    is_encrypted: bool
    ssl_mode: str
    is_pooled: bool
    """A pooler stands in front: the process that answers is not the one that was connected to."""
    connections: int
    max_connections: int
    user: str
    tables_version: int | None
    """0 = there are no tables, None = this user may not see them."""
    role: str | None = None
    """The highest role all of whose rights this user has."""
    lacks: tuple[str, ...] = ()
    """Rights that the next role has, and this user has not."""
    foreign: int = 0
    """See `ultramon.backends.postgres.admin.setup.count_foreign`."""
    holder: Holder | None = None


_SERVER = """
    SELECT extract(epoch FROM clock_timestamp())::float8, pg_backend_pid(),
        current_setting('server_version_num')::int, current_setting('fsync') = 'on',
        current_setting('full_page_writes') = 'on', current_setting('synchronous_commit'),
        pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
        current_setting('server_encoding'), current_user::text,
        (SELECT count(*)::int FROM pg_stat_activity WHERE datid IS NOT NULL),
        current_setting('max_connections')::int
"""
_MAY_LOOK = """
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
_HOLDER = """
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
    """Ask a server everything that `examine` judges.

    Raises:
        StateWriteError: It does not answer.
    """
    with _connected(database) as connection:
        before = time.time()
        row = connection.execute(_SERVER).fetchone()
        after = time.time()
        assert row is not None
        info = connection.info
        version = _tables_version(connection, database)
        role, lacks = _role(connection, database) if version else (None, ())
        # Of an older version too: `migrate` brings it up to date and numbers its rows at once.
        is_readable = 0 < (version or 0) <= SCHEMA_VERSION and role is not None
        return Facts(
            version=row[2],
            fsync=row[3],
            full_page_writes=row[4],
            synchronous_commit=row[5],
            is_standby=row[6],
            is_read_only=row[7],
            encoding=row[8],
            skew_seconds=row[0] - (before + after) / 2,
            is_local=info.host.startswith("/") or info.hostaddr in ("127.0.0.1", "::1"),
            is_encrypted=connection.pgconn.ssl_in_use,
            ssl_mode=info.get_parameters().get("sslmode", "prefer"),
            is_pooled=info.backend_pid != row[1],
            connections=row[10],
            max_connections=row[11],
            user=row[9],
            tables_version=version,
            role=role,
            lacks=lacks,
            foreign=count_foreign(connection, database) if is_readable else 0,
            holder=find_holder(connection),
        )


@contextmanager
def _connected(database: Database) -> Iterator[Connection]:
    """Open a connection beside the pool, which would not say why it cannot open one."""
    address = database.address
    try:
        with psycopg.connect(
            address.conninfo, autocommit=True, prepare_threshold=None
        ) as connection:
            yield connection
    except psycopg.OperationalError as error:
        reason = " ".join(str(error).split())
        advice = _CA_ADVICE if "certificate verify failed" in reason else ""
        raise StateWriteError(address.shown, f"no connection: {reason}", advice) from error
    except psycopg.Error as error:
        reason = str(error).partition("\n")[0]
        raise StateWriteError(address.shown, f"the database refused: {reason}") from error


def _tables_version(connection: Connection, database: Database) -> int | None:
    row = connection.execute(_MAY_LOOK, (database.address.schema,)).fetchone()
    if row == (False,):
        return None
    try:
        return stored_version(connection, database)
    except StateSchemaError:
        return SCHEMA_VERSION + 1


def _role(connection: Connection, database: Database) -> tuple[str | None, tuple[str, ...]]:
    """Return the highest role whose rights this user has, and what it lacks of the next."""
    lacks: tuple[str, ...] = ()
    for role in (ADMIN, WRITER, READER):
        wanted = [(table, right) for table in GRANTS for right in rights_of(role, table)]
        places, names = zip(*wanted, strict=True)
        schema = database.address.schema
        rows = connection.execute(_LACKING, (list(places), list(names), schema)).fetchall()
        if not rows:
            return role, lacks
        lacks = tuple(name for (name,) in rows)
    return None, lacks


def find_holder(connection: Connection) -> Holder | None:
    """Return the oldest transaction that writes, in whichever database of the server."""
    row = connection.execute(_HOLDER).fetchone()
    return None if row is None else Holder(*row)


def examine_store(database: Database, outbox: Outbox) -> Iterator[Finding]:
    """Judge what waits on this host, and the server, which may not answer."""
    try:
        yield _judge_outbox(outbox)
        yield from examine(read_facts(database))
    except StateError as error:
        yield Finding("store", PROBLEM, str(error))


def _judge_outbox(outbox: Outbox) -> Finding:
    kept = outbox.kept()
    if kept.oldest_at is not None:
        since = format_time(kept.oldest_at)
        waiting = f"waiting on this host: states {kept.states:,}, messages {kept.messages:,}"
        cure = "the next agent that runs here while the database answers stores them"
        return Finding("outbox", WARNING, f"{waiting}, since {since}", cure)
    if kept.refused:
        message = f"the database refused {kept.refused:,} entries for good"
        return Finding("outbox", WARNING, message, f"they stay in {outbox.path} for you to see")
    return Finding("outbox", OK, "nothing waits on this host")


def examine(facts: Facts) -> list[Finding]:
    """Judge what a server says about itself."""
    return [*_durability(facts), *_access(facts), *_store(facts)]


def refusals(facts: Facts) -> list[Finding]:
    """Return what makes a server unfit for any store, whatever is in it."""
    return [found for found in _durability(facts) if found.status == PROBLEM]


def _durability(facts: Facts) -> Iterator[Finding]:
    major = facts.version // 10_000
    if facts.version < OLDEST_SERVER:
        yield Finding("server", PROBLEM, f"PostgreSQL {major} is too old", "13 or newer is needed")
    else:
        yield Finding("server", OK, f"PostgreSQL {major}.{facts.version % 10_000}")
    for name, is_on in (("fsync", facts.fsync), ("full_page_writes", facts.full_page_writes)):
        if is_on:
            yield Finding(name, OK, "on")
            continue
        lost = "a crash of its machine can destroy everything that is stored"
        yield Finding(name, PROBLEM, f"off: {lost}", f"set {name} = on in postgresql.conf")
    if facts.synchronous_commit == "off":
        yield Finding(
            "synchronous_commit",
            WARNING,
            "off: a crash takes back the last half second, events and notices too",
            "set synchronous_commit = on for this user, database or server; heartbeats are"
            " committed without it anyway",
        )
    else:
        yield Finding("synchronous_commit", OK, facts.synchronous_commit)


def _access(facts: Facts) -> Iterator[Finding]:
    if facts.is_standby or facts.is_read_only:
        kind = "a standby" if facts.is_standby else "read-only"
        cure = "let agents use the primary, e.g. by target_session_attrs=read-write in the URL"
        yield Finding("writing", WARNING, f"this server is {kind}: agents can store nothing", cure)
    if facts.encoding != "UTF8":
        cure = "make the database with ENCODING 'UTF8'"
        message = f"the database is {facts.encoding}: texts beyond it are refused"
        yield Finding("encoding", WARNING, message, cure)
    skew = facts.skew_seconds
    if abs(skew) > MAX_SKEW_SECONDS:
        where = "ahead of" if skew > 0 else "behind"
        message = f"the server's is {abs(skew):.1f} s {where} this host's; the server's counts"
        yield Finding("clock", WARNING, message, "let both hosts follow a time server")
    else:
        yield Finding("clock", OK, f"{abs(skew):.1f} s apart")
    yield _encryption(facts)
    ratio = facts.connections / facts.max_connections
    used = f"{facts.connections} of {facts.max_connections} are in use"
    if ratio > MAX_CONNECTIONS_RATIO:
        cure = "put PgBouncer in transaction mode in front of many processes, or raise it"
        yield Finding("max_connections", WARNING, used, cure)
    else:
        yield Finding("max_connections", OK, used)
    if facts.is_pooled:
        message = "one stands in front; nothing here needs a session of its own"
        cure = "PgBouncer: pool_mode = transaction (statement mode breaks transactions)"
        yield Finding("pooler", OK, message, cure)


def _encryption(facts: Facts) -> Finding:
    if facts.is_local:
        return Finding("encryption", OK, "the connection stays on this host")
    if not facts.is_encrypted:
        cure = "take sslmode out of the URL: verify-full is the default"
        return Finding("encryption", WARNING, "none: everybody on the way can read it", cure)
    if facts.ssl_mode != "verify-full":
        cure = "use sslmode=verify-full, with sslrootcert=/path/to/ca.pem for a CA of your own"
        message = f"sslmode={facts.ssl_mode}: anybody may pretend to be the server"
        return Finding("encryption", WARNING, message, cure)
    return Finding("encryption", OK, "TLS, the server's certificate is checked")


def _store(facts: Facts) -> Iterator[Finding]:
    version = facts.tables_version
    if version is None:
        cure = f"GRANT {WRITER} TO {facts.user} (or {READER}, {ADMIN})"
        yield Finding("tables", PROBLEM, f"{facts.user} may not see them", cure)
        return
    if version == 0:
        yield Finding("tables", PROBLEM, "there are none", INIT)
    elif version < SCHEMA_VERSION:
        message = f"version {version}, this ultramon needs {SCHEMA_VERSION}"
        yield Finding("tables", PROBLEM, message, MIGRATE)
    elif version > SCHEMA_VERSION:
        message = f"a newer ultramon made them, this one knows version {SCHEMA_VERSION}"
        yield Finding("tables", PROBLEM, message, "upgrade ultramon on this host")
    else:
        yield Finding("tables", OK, f"version {version}")
        yield _rights(facts)
    if facts.foreign:
        message = f"{facts.foreign} events and cursors come from a dump of another server"
        yield Finding("restored rows", PROBLEM, f"{message}: events stay unseen", MIGRATE)
    yield judge_holder(facts.holder)


def _rights(facts: Facts) -> Finding:
    if facts.role in (ADMIN, WRITER):
        return Finding("rights", OK, f"{facts.user} has those of {facts.role}")
    shown = ", ".join(facts.lacks[:3]) + (", …" if len(facts.lacks) > 3 else "")
    if facts.role == READER:
        message = f"{facts.user} may only look: no agent can run as it ({shown})"
        return Finding("rights", WARNING, message, f"GRANT {WRITER} TO {facts.user} for agents")
    return Finding("rights", PROBLEM, f"{facts.user} lacks {shown}", f"{INIT} by an administrator")


def judge_holder(holder: Holder | None) -> Finding:
    """Judge what holds the delivery of events back."""
    if holder is None:
        return Finding("event tail", OK, "nothing holds it back")
    who = holder.application if holder.pid is None else f"process {holder.pid} of the server"
    if holder.pid is not None and holder.application:
        who += f" ({holder.application})"
    if holder.seconds is None:
        cure = "GRANT pg_read_all_stats TO this user to see since when"
        return Finding("event tail", OK, f"held back by {who}", cure)
    message = f"held back by {who} for {holder.seconds:.0f} s"
    if holder.seconds <= MAX_TAIL_SECONDS:
        return Finding("event tail", OK, message)
    end = (
        "ROLLBACK PREPARED" if holder.pid is None else f"SELECT pg_terminate_backend({holder.pid})"
    )
    return Finding("event tail", WARNING, f"{message}: no newer event is delivered", end)
