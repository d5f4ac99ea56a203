"""The rights on a PostgreSQL store: three group roles, and their grants on each table.

A role belongs to the whole server, its rights to one store. Identity columns need no grant, and
functions run with the rights of their caller. Tables get no default privileges: a table of a later
version is closed until it is listed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.backends.postgres.connection.database import Connection

WRITER = "ultramon_writer"
"""Agents and orchestrators: states, events, messages, registrations; no credentials, no pruning."""
READER = "ultramon_reader"
"""Dashboards: read everything but credentials and the texts of messages."""
ADMIN = "ultramon_admin"
"""People and the HTTP server: everything, pruning, tokens and new versions of the tables too."""
ROLES = (WRITER, READER, ADMIN)

_ALL = "SELECT, INSERT, UPDATE, DELETE"
_KEEP = "SELECT, INSERT, UPDATE"
GRANTS = {
    "meta": "SELECT",
    "agents": _KEEP,
    "heartbeats": _KEEP,
    "pruned_agents": "SELECT",
    "corrupt_states": "SELECT, INSERT, DELETE",
    "requests": _ALL,
    "events": "SELECT, INSERT",
    "handoff_claims": _KEEP,
    "consumers": _KEEP,
    "messages": _ALL,
    "message_losses": _KEEP,
    "senders": _KEEP,
    "registrations": _ALL,
    "announcements": _ALL,
    "credentials": "",
}
"""The rights of writers on each table; admins have all rights on all of them."""
_NOT_ALL_READ = {
    "messages": "SELECT (id, recipient, sender, category, priority, state, attempts, claimed_until,"
    " available_at, queued_at, expires_at)",
    "credentials": "",
}
"""The rights of readers where they are not SELECT."""


class Roles(NamedTuple):
    """The roles of a store after its setup."""

    created: list[str]
    missing: list[str]
    """Roles that do not exist, because this user may create none."""


def rights_of(role: str, table: str) -> str:
    """Return the rights of a role on a table, as GRANT takes them; empty = none."""
    if role == READER:
        return _NOT_ALL_READ.get(table, "SELECT")
    return _ALL if role == ADMIN else GRANTS[table]


def grants_sql(schema: str, roles: Sequence[str] = ROLES) -> list[str]:
    """Return the statements that give some of the roles exactly their rights on a store."""
    statements = []
    for role in roles:
        is_admin = role == ADMIN
        statements.append(f'GRANT {"ALL" if is_admin else "USAGE"} ON SCHEMA "{schema}" TO {role}')
        for table in GRANTS:
            rights = "ALL" if is_admin else rights_of(role, table)
            statements.append(f'REVOKE ALL ON "{schema}".{table} FROM {role}')
            if rights:
                statements.append(f'GRANT {rights} ON "{schema}".{table} TO {role}')
    return statements


def _ownership_sql(schema: str) -> list[str]:
    # Every admin can then bring the tables up to date, not only the user who made them.
    owned = [f'SCHEMA "{schema}"', *(f'TABLE "{schema}".{table}' for table in GRANTS)]
    return [
        *(f"ALTER {name} OWNER TO {ADMIN}" for name in owned),
        "DO $$ DECLARE name text; BEGIN FOR name IN SELECT oid::regprocedure::text FROM pg_proc"
        f" WHERE pronamespace = '\"{schema}\"'::regnamespace"
        f" LOOP EXECUTE 'ALTER ROUTINE ' || name || ' OWNER TO {ADMIN}'; END LOOP; END $$",
    ]


def _create_sql(role: str) -> str:
    # Another store of the same server may be creating it at this moment.
    return (
        f"DO $$ BEGIN CREATE ROLE {role} NOLOGIN;"
        " EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
    )


def administrators_sql(schema: str) -> str:
    """Return the psql script for an administrator where the user of a store may create no roles.

    It can be run any number of times, once the tables exist.
    """
    creation = [_create_sql(role) for role in ROLES]
    statements = [*creation, *grants_sql(schema), *_ownership_sql(schema)]
    return "".join(f"{statement};\n" for statement in ("BEGIN", *statements, "COMMIT"))


def set_up_roles(connection: Connection, *, create: bool) -> Roles:
    """Give the roles their rights on a store, within the transaction that made its tables.

    Args:
        connection: Of a user that owns the tables.
        create: Create missing roles, if this user may.
    """
    [(may_create, right, existing)] = connection.execute(
        "SELECT rolsuper OR rolcreaterole,"
        # Since 16 the creator of a role is its member, and may all the same not act as it.
        " CASE WHEN current_setting('server_version_num')::int >= 160000"
        "  THEN 'SET' ELSE 'MEMBER' END,"
        " ARRAY(SELECT rolname::text FROM pg_roles WHERE rolname = ANY(%s))"
        " FROM pg_roles WHERE rolname = current_user",
        (list(ROLES),),
    )
    missing = [role for role in ROLES if role not in existing]
    created, missing = (missing, []) if create and may_create else ([], missing)
    present = [role for role in ROLES if role not in missing]
    if present:
        statements = [*map(_create_sql, created), *grants_sql(connection.address.schema, present)]
        connection.execute("; ".join(statements))
    may_own = "SELECT pg_has_role(%s, %s)"
    if ADMIN in present and connection.execute(may_own, (ADMIN, right)).fetchone() == (True,):
        connection.execute("; ".join(_ownership_sql(connection.address.schema)))
    return Roles(created, missing)
