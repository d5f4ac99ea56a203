"""Who may do what in a PostgreSQL store: three group roles, and the grants of each to each table.

A role is of the whole server, its rights are per store. Identity columns need no grant of their
own, and functions do what their caller may. Tables get no default privileges: a table of a later
version is closed until it stands here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.backends.postgres.connection.database import Connection

WRITER = "ultramon_writer"
"""Agents and orchestrators: states, events, messages, registrations; no credentials, no pruning."""
READER = "ultramon_reader"
"""Dashboards: everything but credentials and what messages say; changes nothing."""
ADMIN = "ultramon_admin"
"""People and the HTTP server: everything, pruning, tokens and new versions of the tables too."""
ROLES = (WRITER, READER, ADMIN)

_ALL = "SELECT, INSERT, UPDATE, DELETE"
_KEEP = "SELECT, INSERT, UPDATE"
_SEEN_OF_MESSAGES = (
    "SELECT (id, recipient, sender, category, priority, state, attempts, claimed_until,"
    " available_at, queued_at, expires_at)"
)
GRANTS: dict[str, tuple[str, str]] = {
    "meta": ("SELECT", "SELECT"),
    "agents": (_KEEP, "SELECT"),
    "heartbeats": (_KEEP, "SELECT"),
    "pruned_agents": ("SELECT", "SELECT"),
    "corrupt_states": ("SELECT, INSERT, DELETE", "SELECT"),
    "requests": (_ALL, "SELECT"),
    "events": ("SELECT, INSERT", "SELECT"),
    "handoff_claims": (_KEEP, "SELECT"),
    "consumers": (_KEEP, "SELECT"),
    "messages": (_ALL, _SEEN_OF_MESSAGES),
    "message_losses": (_KEEP, "SELECT"),
    "senders": (_KEEP, "SELECT"),
    "registrations": (_ALL, "SELECT"),
    "announcements": (_ALL, "SELECT"),
    "credentials": ("", ""),
}
"""What writers and readers may do with each table; admins may do everything with all."""


class Roles(NamedTuple):
    """What became of the roles of a store."""

    created: list[str]
    missing: list[str]
    """Those that are not there, because this user may create none."""
    user: str


def rights_of(role: str, table: str) -> list[str]:
    """Return what a role may do with a table, e.g. ``["SELECT", "INSERT"]``."""
    granted = _ALL if role == ADMIN else GRANTS[table][role == READER]
    return granted.partition(" (")[0].split(", ") if granted else []


def grants_sql(schema: str, roles: Sequence[str] = ROLES) -> list[str]:
    """Return the statements that give some of the roles exactly their rights on a store."""
    statements = []
    for role in roles:
        if role == ADMIN:
            statements.append(f'GRANT ALL ON SCHEMA "{schema}" TO {ADMIN}')
            statements += [f'GRANT ALL ON "{schema}".{table} TO {ADMIN}' for table in GRANTS]
            continue
        statements.append(f'GRANT USAGE ON SCHEMA "{schema}" TO {role}')
        for table, rights in GRANTS.items():
            granted = rights[role == READER]
            statements.append(f'REVOKE ALL ON "{schema}".{table} FROM {role}')
            if granted:
                statements.append(f'GRANT {granted} ON "{schema}".{table} TO {role}')
    return statements


def _ownership_sql(schema: str) -> list[str]:
    # Every admin can then bring the tables up to date, not only the user who made them.
    owned = [f'TABLE "{schema}".{table}' for table in GRANTS]
    return [
        *(f"ALTER {name} OWNER TO {ADMIN}" for name in (f'SCHEMA "{schema}"', *owned)),
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
    """Return what an administrator runs in psql where the user of a store may create no roles.

    It can be run any number of times, once the tables are there.
    """
    creation = [_create_sql(role) for role in ROLES]
    statements = [*creation, *grants_sql(schema), *_ownership_sql(schema)]
    return "".join(f"{statement};\n" for statement in ("BEGIN", *statements, "COMMIT"))


def set_up_roles(connection: Connection, schema: str, *, create: bool) -> Roles:
    """Give the roles their rights on a store, within the transaction that made its tables.

    Args:
        connection: Of a user that owns the tables.
        schema: That holds them.
        create: Create the roles that are not there, where this user may.
    """
    row = connection.execute(
        "SELECT current_user::text, rolsuper OR rolcreaterole,"
        " current_setting('server_version_num')::int,"
        " ARRAY(SELECT rolname::text FROM pg_roles WHERE rolname = ANY(%s))"
        " FROM pg_roles WHERE rolname = current_user",
        (list(ROLES),),
    ).fetchone()
    assert row is not None
    user, may_create, version, there = row
    missing = [role for role in ROLES if role not in there]
    created = missing if create and may_create else []
    present = [role for role in ROLES if role in (*there, *created)]
    statements = [*map(_create_sql, created), *grants_sql(schema, present)]
    if statements:
        connection.execute("; ".join(statements))
    if ADMIN in present and _may_hand_over(connection, version):
        connection.execute("; ".join(_ownership_sql(schema)))
    return Roles(created, [role for role in missing if role not in created], user)


def _may_hand_over(connection: Connection, version: int) -> bool:
    """Return whether this user may make the admins the owners of its tables."""
    # Since 16 who creates a role is its member, and may all the same not act as it.
    right = "SET" if version >= 160_000 else "MEMBER"
    row = connection.execute("SELECT pg_has_role(%s, %s)", (ADMIN, right)).fetchone()
    return row == (True,)
