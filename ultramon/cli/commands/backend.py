"""`ultramon backend init|migrate|check|repair|stats`: the store that agents share."""

from __future__ import annotations

from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.exit_codes import CommandFailed, ExitCode
from ultramon.cli.output import plural, print_result, sanitize_values, say
from ultramon.cli.selection import open_store, state_dir_given, store_options
from ultramon.cli.views.findings import finding_line, print_findings
from ultramon.cli.views.store_stats import stats_lines
from ultramon.system.findings import OK, WARNING, Finding
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ultramon.backends.base import Backend
    from ultramon.backends.postgres.backend import PostgresBackend
    from ultramon.backends.queue import Queue

_SHOWN_RECIPIENTS = 10
_URL_HELP = """\
URL is postgresql://user@host/database, file:///directory or memory:; the default is the store of
ULTRAMON_BACKEND. Put a password into PGPASSWORD or ~/.pgpass: everybody on this machine can read a
command line. It is never printed."""


def store_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``[URL]``, ``--state-dir`` and ``--json``, and explain the URL in the help."""
    # Python 3.13 takes the indentation out of docstrings, older ones do not.
    command.__doc__ = f"{cleandoc(command.__doc__ or '')}\n\n{_URL_HELP}"
    return click.argument("url", required=False)(store_options(command))


@click.command(
    "init", epilog="Example: ultramon backend init postgresql://localhost/agents --print-sql"
)
@click.option(
    "--print-sql",
    is_flag=True,
    help="Change nothing; print what an administrator runs to make the roles.",
)
@store_argument
def init(*, url: str | None, print_sql: bool, state_dir: str | None, json: bool) -> None:
    """Create the tables of a PostgreSQL database; files need none.

    Also creates roles for agents, dashboards and admins, if this user may. It can be run any number
    of times.
    """
    backend = _open(url, state_dir)
    if not print_sql:
        _set_up(backend, with_roles=True, as_json=json)
        return
    store = _postgres(backend)
    if store is None:
        raise CommandFailed(f"{backend.url} has no roles: only PostgreSQL has")
    from ultramon.backends.postgres.admin.roles import administrators_sql

    click.echo(administrators_sql(store.database.address.schema), nl=False)


@click.command("migrate", epilog="Example: ultramon backend migrate postgresql://localhost/agents")
@store_argument
def migrate(*, url: str | None, state_dir: str | None, json: bool) -> None:
    """Bring a store of an older version up to date.

    Needed after an upgrade, and after restoring a dump of a database. Files are brought up to date
    when they are used.
    """
    _set_up(_open(url, state_dir), with_roles=False, as_json=json)


@click.command("check", epilog="Example: ultramon backend check postgresql://localhost/agents")
@store_argument
def check(*, url: str | None, state_dir: str | None, json: bool) -> ExitCode:
    """Check whether a store can be trusted, and what to do if not.

    Fails when there is a problem; warnings alone do not fail. What was kept on this machine while a
    database was away is stored first.
    """
    backend = _open(url, state_dir)
    problems, warnings = print_findings(_examine(backend), as_json=json, url=backend.url)
    if problems or (warnings and not json):
        say(f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}")
    return ExitCode.FAILURE if problems else ExitCode.OK


@click.command("repair", epilog="Example: ultramon backend repair")
@store_argument
def repair(*, url: str | None, state_dir: str | None, json: bool) -> None:
    """Store what can be read of a damaged journal in its place, and say what cannot.

    Agents may run on: they wait for it, and consumers continue where they were. The damaged journal
    is kept beside the new one as journal.sqlite3.corrupt-….
    """
    from ultramon.backends.health import repair_local
    from ultramon.backends.local.backend import LocalBackend

    backend = _open(url, state_dir)
    if not isinstance(backend, LocalBackend):
        raise CommandFailed(f"{backend.url} has no journal on this machine")
    done = repair_local(backend)
    if done is None:
        facts = {"url": backend.url, "repaired": False}
        print_result(facts, f"{backend.url}: nothing to repair", as_json=json)
        return
    facts = {
        "url": backend.url,
        "repaired": True,
        "keptAs": done.kept_as,
        "rows": done.rows,
        "unreadableRows": done.bad,
        "damagedTables": done.damaged,
    }
    print_result(facts, sanitize(f"{backend.url}: {done.words()}"), as_json=json)


@click.command("stats", epilog="Example: ultramon backend stats")
@store_argument
def stats(*, url: str | None, state_dir: str | None, json: bool) -> None:
    """Show sizes, waiting messages, and what holds events back."""
    from ultramon.system.clock import SYSTEM_CLOCK

    backend = _open(url, state_dir)
    queue: Queue | None = getattr(backend, "queue", None)
    depths = [] if queue is None else queue.depth(now=SYSTEM_CLOCK.now())
    waiting = {one.recipient: one.ready + one.waiting + one.claimed for one in depths}
    top = sorted(waiting.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN_RECIPIENTS]
    measured = {
        **_measure(backend),
        "messages": {
            "waiting": sum(waiting.values()),
            "dead": sum(one.dead for one in depths),
            "recipients": [{"agentId": who, "waiting": number} for who, number in top if number],
        },
    }
    facts = {"url": backend.url, **sanitize_values(measured)}
    print_result(facts, *stats_lines(measured), as_json=json)


def _open(url: str | None, state_dir: str | None) -> Backend:
    if url is None:
        # The store as it is: what an outage left on this machine is counted, not delivered.
        return open_store(state_dir, delivers=False)
    if state_dir_given(state_dir) is not None:
        raise click.UsageError("give either a URL or --state-dir")
    from ultramon.backends.opening import open_backend

    return open_backend(url)


def _postgres(backend: Backend) -> PostgresBackend | None:
    """Return a PostgreSQL store, None for another store."""
    if not backend.url.startswith("postgresql:"):
        return None
    from ultramon.backends.postgres.backend import PostgresBackend

    return backend if isinstance(backend, PostgresBackend) else None


def _set_up(backend: Backend, *, with_roles: bool, as_json: bool) -> None:
    store = _postgres(backend)
    if store is None:
        _set_up_local(backend, is_init=with_roles, as_json=as_json)
        return
    from ultramon.backends.postgres.admin.health import examine, read_facts, refusals
    from ultramon.backends.postgres.admin.setup import migrate
    from ultramon.backends.postgres.schema.tables import SCHEMA_VERSION

    database = store.database
    facts = read_facts(database)
    refused = refusals(facts)
    if refused:
        raise CommandFailed("; ".join(finding_line(one) for one in refused))
    if with_roles:
        before, roles = migrate(database, create_roles=True)
        made = {"rolesCreated": roles.created, "rolesMissing": roles.missing}
    else:
        before, made = migrate(database).before, {}
    schema = database.address.schema
    if before == 0:
        lines = [f"Made the tables of version {SCHEMA_VERSION} in the schema {schema}"]
    elif before < SCHEMA_VERSION:
        lines = [f"Brought the tables in {schema} from version {before} to {SCHEMA_VERSION}"]
    else:
        lines = [f"The tables in the schema {schema} have version {SCHEMA_VERSION} already"]
    if facts.foreign:
        lines.append(f"Numbered {facts.foreign} restored events and cursors anew")
    if made.get("rolesCreated"):
        lines.append(f"Created the roles {', '.join(made['rolesCreated'])}")
    result = {"url": backend.url, "versionBefore": before, "version": SCHEMA_VERSION, **made}
    print_result(result, *lines, as_json=as_json)
    if made.get("rolesMissing"):
        say(
            f"Warning: no roles {', '.join(made['rolesMissing'])}: {facts.user} may create none; "
            "an administrator can run what `ultramon backend init --print-sql` prints"
        )
    for finding in examine(facts):
        if finding.status == WARNING and finding.check != "rights":
            say(f"Warning: {finding_line(finding)}")


def _set_up_local(backend: Backend, *, is_init: bool, as_json: bool) -> None:
    from ultramon.backends.health import migrate_local
    from ultramon.backends.local.backend import LocalBackend

    before = after = None
    words = f"{backend.url}: there is nothing to make"
    if isinstance(backend, LocalBackend):
        if is_init:
            backend.directory.prepare()
        before, after = migrate_local(backend) or (None, None)
        words = f"{backend.url}: ready; its journal is made with the first event"
    if after is not None:
        words = f"{backend.url}: its journal has version {after}"
        words += " already" if before == after else f", it had {before}"
    facts = {"url": backend.url, "versionBefore": before, "version": after}
    print_result(facts, words, as_json=as_json)


def _examine(backend: Backend) -> Iterable[Finding]:
    from ultramon.backends.health import examine_foreign, examine_local
    from ultramon.backends.local.backend import LocalBackend
    from ultramon.backends.memory import MemoryBackend

    store = _postgres(backend)
    if store is not None:
        from ultramon.backends.postgres.admin.health import examine_store

        return examine_store(store)
    if isinstance(backend, LocalBackend):
        return examine_local(backend)
    if not isinstance(backend, MemoryBackend):
        return examine_foreign(backend)
    return [Finding("store", OK, f"{backend.url} ends with its process and shares nothing")]


def _measure(backend: Backend) -> dict[str, Any]:
    from ultramon.backends.health import measure_local
    from ultramon.backends.local.backend import LocalBackend

    store = _postgres(backend)
    if store is not None:
        from ultramon.backends.postgres.admin.sizes import measure

        return measure(store.database, store.outbox)
    if isinstance(backend, LocalBackend):
        return measure_local(backend)
    agents = [agent.record for agent in backend.list_agents() if agent.record is not None]
    active = sum(record.active for record in agents)
    return {"agents": {"stored": len(agents), "active": active}}
