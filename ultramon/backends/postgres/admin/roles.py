"""The rights on a PostgreSQL store: group roles, their grants on each table, and row security.

A role belongs to the whole server, its rights to one store. Identity columns need no grant, and
functions run with the rights of their caller. Tables get no default privileges: a table of a later
version is closed until it is listed here.

Row security keeps machines from each other's rows, and all others from mirrored ones. The owner of
the tables passes it, and so does a superuser. A machine is known by its login (`session_user`),
which SET ROLE does not change.
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
MACHINE = "ultramon_machine"
"""Machines that mirror their agents: their own rows, and the messages to their agents."""
ROLES = (WRITER, READER, ADMIN, MACHINE)

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
    "machines": "SELECT",
    "readings": "SELECT, INSERT",
    "reading_days": "SELECT",
}
"""The rights of writers on each table; admins have all rights on all of them."""
_NOT_ALL_READ = {
    "messages": "SELECT (id, recipient, sender, category, priority, state, attempts, claimed_until,"
    " available_at, queued_at, expires_at)",
    "credentials": "",
}
"""The rights of readers where they are not SELECT."""
_MIRRORED = {
    "meta": "SELECT",
    "machines": _ALL,
    "agents": _ALL,
    "heartbeats": _ALL,
    "pruned_agents": "INSERT",
    "events": "SELECT, INSERT, DELETE",
    "readings": "SELECT, INSERT, DELETE",
    "reading_days": "SELECT, DELETE",
    "messages": "SELECT, UPDATE, DELETE",
    "message_losses": _KEEP,
}
"""The rights of machines, on their own rows alone."""
_OWN = "IN (SELECT m.machine_id FROM ultramon.machines m WHERE m.database_user = session_user)"
_OWN_ROWS = {
    "machines": "database_user = session_user",
    **dict.fromkeys(
        ("agents", "heartbeats", "events", "readings", "reading_days"), f"machine_id {_OWN}"
    ),
    # The id of a mirrored agent begins with that of its machine.
    "pruned_agents": f"split_part(agent_id, '-', 1) {_OWN}",
    "messages": f"split_part(recipient, '-', 1) {_OWN}",
    "message_losses": f"split_part(recipient, '-', 1) {_OWN}",
}
"""The rows that a machine may see and change, by table."""
_NOT_MIRRORED = {
    **dict.fromkeys(("agents", "heartbeats", "events", "readings"), "machine_id IS NULL"),
    **dict.fromkeys(
        ("registrations", "requests"),
        "NOT EXISTS (SELECT 1 FROM ultramon.agents a"
        " WHERE a.agent_id = {table}.agent_id AND a.machine_id IS NOT NULL)",
    ),
}
"""The rows that others may change, where these are not all, by table."""


class Roles(NamedTuple):
    """The roles of a store after its setup."""

    created: list[str]
    missing: list[str]
    """Roles that do not exist, because this user may create none."""


def rights_of(role: str, table: str) -> str:
    """Return the rights of a role on a table, as GRANT takes them; empty = none."""
    if role == READER:
        return _NOT_ALL_READ.get(table, "SELECT")
    if role == MACHINE:
        return _MIRRORED.get(table, "")
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


def _policies(roles: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return the policies by table and name; those of roles that exist."""
    found = {}
    for table in (*_OWN_ROWS, "registrations", "requests"):
        free = _NOT_MIRRORED.get(table, "true").format(table=table)
        # A condition that is no constant may keep the planner from an index: reading has none.
        found[table, "read"] = "FOR SELECT USING (true)"
        found[table, "add"] = f"FOR INSERT WITH CHECK ({free})"
        found[table, "change"] = f"FOR UPDATE USING ({free})"
        found[table, "delete"] = f"FOR DELETE USING ({free})"
        if ADMIN in roles:
            found[table, "admin"] = f"TO {ADMIN} USING (true)"
        if MACHINE in roles and table in _OWN_ROWS:
            own = _OWN_ROWS[table]
            found[table, "own_rows"] = f"TO {MACHINE} USING ({own})"
            found[table, "only_own_rows"] = f"AS RESTRICTIVE TO {MACHINE} USING ({own})"
    return found


def policies_sql(schema: str, roles: Sequence[str] = ROLES) -> dict[tuple[str, str], list[str]]:
    """Return the statements that make each policy of row security, by its table and name."""
    return {
        (table, name): [
            f'ALTER TABLE "{schema}".{table} ENABLE ROW LEVEL SECURITY',
            f'DROP POLICY IF EXISTS {name} ON "{schema}".{table}',
            f'CREATE POLICY {name} ON "{schema}".{table} {rule}'.replace(
                " ultramon.", f' "{schema}".'
            ),
        ]
        for (table, name), rule in _policies(roles).items()
    }


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
    policies = [one for made in policies_sql(schema).values() for one in made]
    statements = [*creation, *grants_sql(schema), *policies, *_ownership_sql(schema)]
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
    _set_up_policies(connection, present)
    may_own = "SELECT pg_has_role(%s, %s)"
    if ADMIN in present and connection.execute(may_own, (ADMIN, right)).fetchone() == (True,):
        connection.execute("; ".join(_ownership_sql(connection.address.schema)))
    return Roles(created, missing)


def _set_up_policies(connection: Connection, roles: Sequence[str]) -> None:
    """Make the policies that are missing: to make one anew would lock its table for a moment."""
    schema = connection.address.schema
    rows = connection.execute(
        "SELECT tablename::text, policyname::text FROM pg_policies WHERE schemaname = %s", (schema,)
    )
    wanted, existing = policies_sql(schema, roles), set(rows.fetchall())
    statements = [one for key, made in wanted.items() if key not in existing for one in made]
    if statements:
        connection.execute("; ".join(statements))
