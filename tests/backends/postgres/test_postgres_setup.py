"""Making a PostgreSQL store: older and restored ones, roles with their rights, and a pooler."""

from __future__ import annotations

import re
import secrets
import subprocess
import time

import psycopg
import pytest
from helpers import DATA
from helpers.pgbouncer import Pooler
from helpers.postgres_server import Server
from helpers.postgres_server import durable_postgres as postgres  # noqa: F401
from helpers.program import PROGRAM, environment, run

from ultramon import ContextConfig, Fleet, create_context_monitor, register
from ultramon.backends.postgres.admin.health import read_facts
from ultramon.backends.postgres.admin.roles import (
    ADMIN,
    GRANTS,
    MACHINE,
    READER,
    ROLES,
    WRITER,
    administrators_sql,
)
from ultramon.backends.postgres.admin.setup import migrate
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.backends.postgres.schema.tables import SCHEMA_VERSION
from ultramon.errors import AgentAlreadyRunningError, StateSchemaError, StateWriteError
from ultramon.notices.message import Draft
from ultramon.testing.contract.states import start
from ultramon.tokens import mint_token

DUMPS = sorted((DATA / "postgres").glob("version-*.sql"))
CONFIG = ContextConfig(context_window_tokens=200_000)
TABLES = (
    "c.relkind = 'r' AND c.relnamespace = (SELECT relnamespace FROM pg_class"
    " WHERE oid = 'ultramon.meta'::regclass)"
)
DENIED = "permission denied for table"


def asked(url, statement, *arguments):
    """Ask a store as its superuser; `ultramon.` is replaced by its schema."""
    schema = re.search(r"schema=(\w+)", url)[1]
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        cursor = connection.execute(statement.replace("ultramon.", f"{schema}."), arguments or None)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def empty(postgres):
    """Give the URL of a store that was not made yet."""
    schema = f"test_{secrets.token_hex(6)}"
    yield postgres.url(schema)
    asked(postgres.url(schema), f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.fixture(params=DUMPS, ids=lambda path: path.stem)
def version(request):
    """The dump of each version of the tables."""
    return request.param


@pytest.fixture
def dumped(version, empty):
    """Give the URL of a store that an older version wrote, as restored from its dump."""
    schema = re.search(r"schema=(\w+)", empty)[1]
    asked(empty, f"CREATE SCHEMA {schema}")
    asked(empty, version.read_text(encoding="utf-8"))
    return empty


@pytest.fixture
def opened():
    """Open stores, and close them in the end."""
    stores = []

    def open_store(url):
        stores.append(PostgresBackend(url))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def types(page):
    return [event["type"] for event in page.events]


def test_every_version_has_its_dump():
    """The files that upgrades are tested with are one for each version of the tables."""
    assert [path.stem for path in DUMPS] == [f"version-{n + 1}" for n in range(SCHEMA_VERSION)]


def test_an_older_store_keeps_its_rows(version, dumped, opened):
    """States, events, cursor, messages and all else stay, and what comes then is added."""
    store = opened(dumped)
    assert migrate(store.database).before == int(version.stem.partition("-")[2])
    first, second = store.list_agents()
    assert (first.agent_id, first.record.label, first.record.outcome) == (
        "scout-1",
        "night shift",
        "returned",
    )
    assert (second.agent_id, second.record.active) == ("scout-2", True)
    kept_since_version_3 = [150_000] if version.stem >= "version-3" else []
    assert [point.used_tokens for point in store.history("scout-1")] == kept_since_version_3
    assert len(store.events().events) == 5
    left = store.subscribe("audit/main", "somebody", now=time.time() + 60, lease_seconds=1.0)
    assert types(store.events(left.cursor)) == ["handoff_ready", "agent_stopped", "agent_started"]
    (message,) = store.queue.peek("scout-2", now=time.time())
    assert message.text == "stored long ago"
    assert store.registry.registrations("scout-1")[0].notify_id == "scout-1"
    assert store.credentials.find("0" * 64).agent_id == "scout-2"
    assert store.claim_handoff("handoff-1", "scout-1", "scout-3", now=1.0) == "scout-2"
    assert store.get_request("scout-2") == {"deadline": 1.0, "generation": 1}
    with create_context_monitor("scout-2", CONFIG, backend=store, takeover=True) as monitor:
        assert monitor.get_state().generation == 2
    ended_in_its_run = ["handoff_ready", "agent_lost"]
    assert types(store.events(left.cursor))[3:] == [
        *ended_in_its_run,
        "agent_started",
        "agent_stopped",
    ]


def test_a_restored_store_says_so_until_it_is_migrated(dumped, opened):
    """Events numbered by another server's transactions are not delivered; `check` finds them."""
    store = opened(dumped)
    if read_facts(store.database).tables_version == SCHEMA_VERSION:
        assert store.events().events == []
        done = run("backend", "check", dumped)
        assert (done.returncode, "6 events and cursors come from" in done.stdout) == (1, True)
    assert "Numbered 6 restored" in run("backend", "migrate", dumped).stdout
    assert run("backend", "check", dumped).returncode == 0
    assert len(store.events().events) == 5


def test_a_cursor_without_events_is_restored_too(dumped, opened):
    """A consumer that had read everything gets what comes next, even where nothing is left."""
    asked(dumped, "DELETE FROM ultramon.events")
    store = opened(dumped)
    migrate(store.database)
    with create_context_monitor("scout-9", CONFIG, backend=store):
        left = store.subscribe("audit/main", "somebody", now=time.time() + 60, lease_seconds=1.0)
        assert types(store.events(left.cursor)) == ["agent_started"]


def test_an_upgraded_and_a_new_store_are_alike(dumped, postgres_store, opened):
    """Whichever version a store began with, columns, constraints and indexes are the same."""

    def shape(url):
        columns = asked(
            url,
            "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,"
            f" a.attidentity, a.attcollation FROM pg_attribute a JOIN pg_class c ON {TABLES}"
            " AND c.oid = a.attrelid WHERE a.attnum > 0 ORDER BY 1, 2",
        )
        indexes = asked(
            url,
            "SELECT pg_get_indexdef(x.indexrelid) FROM pg_index x JOIN pg_class c ON"
            f" {TABLES} AND c.oid = x.indrelid ORDER BY 1",
        )
        schema = re.search(r"schema=(\w+)", url)[1]
        return columns, [definition.replace(schema, "") for (definition,) in indexes]

    migrate(opened(dumped).database)
    assert shape(dumped) == shape(postgres_store)


def test_a_newer_store_is_refused(postgres_store, opened):
    """Agents, commands and `migrate` say that ultramon must be upgraded, and change nothing."""
    asked(postgres_store, "UPDATE ultramon.meta SET value = '99' WHERE key = 'schema_version'")
    store = opened(postgres_store)
    for call in (
        lambda: create_context_monitor("scout-1", CONFIG, backend=store).start(),
        lambda: migrate(store.database),
        lambda: migrate(store.database, create_roles=True),
    ):
        with pytest.raises(StateSchemaError, match=r"version 99 was written by a newer.*upgrade"):
            call()
    assert "a newer ultramon made them" in run("backend", "check", postgres_store).stdout
    assert asked(postgres_store, "SELECT count(*) FROM ultramon.agents") == [(0,)]


def test_a_store_without_tables_says_what_makes_them(empty):
    """One line that names the command, for an agent and for a person."""
    done = run("status", ULTRAMON_BACKEND=empty)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "`ultramon backend init` makes its tables" in done.stderr
    with pytest.raises(StateSchemaError, match="ultramon backend init"):
        create_context_monitor("scout-1", CONFIG, backend=PostgresBackend(empty)).start()


def test_several_make_a_store_at_once(empty):
    """One makes the tables, the others find them; none fails."""
    command = [PROGRAM, "backend", "init", empty]
    running = [
        subprocess.Popen(
            command,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        for _ in range(5)
    ]
    outputs = [process.communicate(timeout=60) for process in running]
    assert [process.returncode for process in running] == [0] * 5, outputs
    assert sum("Made the tables" in output for output, _ in outputs) == 1
    assert sum("already" in output for output, _ in outputs) == 4


def test_every_table_has_its_grants(postgres_store):
    """A table that the roles do not know would be closed to agents: it fails here first."""
    rows = asked(postgres_store, f"SELECT c.relname FROM pg_class c WHERE {TABLES}")
    assert {name for (name,) in rows} == set(GRANTS)


@pytest.fixture
def as_user(postgres, postgres_store, opened):
    """Open a store that has roles, as a user who has one of them."""
    migrate(opened(postgres_store).database, create_roles=True)
    names = []

    def open_as(role):
        names.append(f"user_{secrets.token_hex(4)}")
        asked(postgres_store, f"CREATE ROLE {names[-1]} LOGIN IN ROLE {role}")
        return postgres_store.replace("//ultramon@", f"//{names[-1]}@")

    yield open_as
    for name in names:
        asked(postgres_store, f"DROP ROLE {name}")


def refusal(call):
    """The words with which the server refused."""
    with pytest.raises(StateWriteError) as caught:
        call()
    return str(caught.value)


def test_a_writer_runs_agents_and_orchestrators(as_user, opened):
    """Monitors, handoffs, notices, requests and a fleet; no credentials, nothing pruned."""
    url = as_user(WRITER)
    store = opened(url)
    fleet = Fleet("audit", backend=store)
    with create_context_monitor(
        "scout-1", CONFIG, run="audit", parent_id="boss", notify="parent", backend=store
    ) as monitor:
        monitor.plan(["a"])
        monitor.report_usage(input_tokens=150_000)
        fleet.request_return("scout-1")
        monitor.record_compaction(tokens_after=10_000)
        monitor.report_usage(input_tokens=180_000)
        monitor.update_heartbeat()
        assert DENIED in refusal(lambda: mint_token("scout-1", backend=store))
        monitor.hand_off()
    assert [event.name for event in fleet.poll()][-2:] == ["handoff_ready", "ended"]
    fleet.close()
    for message in store.queue.claim("boss", now=time.time()):
        assert store.queue.acknowledge(message.id, message.claim_token)
    assert store.claim_handoff("handoff-1", "scout-1", "scout-2", now=1.0) == "scout-2"
    assert DENIED in refusal(lambda: store.credentials.find("0" * 64))
    done = run("backend", "prune", "--older-than", "0s", ULTRAMON_BACKEND=url)
    assert (done.returncode, DENIED in done.stderr) == (1, True)
    assert run("backend", "check", url).returncode == 0


def test_a_reader_looks_and_changes_nothing(as_user, opened, postgres_store):
    """Tables, events and depths are shown; what messages say and credentials are not."""
    store = opened(postgres_store)
    with create_context_monitor("scout-1", CONFIG, backend=store):
        register("scout-1", "scout-1", backend=store)
        store.queue.queue_message(Draft("boss", "a secret"), now=time.time())
        url = as_user(READER)
        for arguments in (("status",), ("watch", "--once"), ("events",), ("explain", "scout-1")):
            done = run(*arguments, ULTRAMON_BACKEND=url)
            assert (done.returncode, "scout-1" in done.stdout) == (0, True), done.stderr
        assert "boss  1 ready" in run("queue", "depth", ULTRAMON_BACKEND=url).stdout
        assert "1 for boss" in run("backend", "stats", url).stdout
        checked = run("backend", "check", url)
        assert (checked.returncode, "may only look" in checked.stdout) == (0, True)
        reader = opened(url)
        assert DENIED in refusal(lambda: reader.queue.peek("boss", now=time.time()))
        assert DENIED in refusal(lambda: reader.put_request("scout-1", {}))


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        (READER, "SELECT text FROM ultramon.messages"),
        (READER, "SELECT facts FROM ultramon.messages"),
        (READER, "SELECT token_hash FROM ultramon.credentials"),
        (READER, "INSERT INTO ultramon.events (key) VALUES ('x')"),
        (READER, "UPDATE ultramon.heartbeats SET at = 0"),
        (WRITER, "SELECT token_hash FROM ultramon.credentials"),
        (WRITER, "DELETE FROM ultramon.agents"),
        (WRITER, "DELETE FROM ultramon.events"),
        (WRITER, "UPDATE ultramon.events SET payload = '{}'"),
        (WRITER, "UPDATE ultramon.meta SET value = '0'"),
        (WRITER, "TRUNCATE ultramon.messages"),
        (WRITER, "INSERT INTO ultramon.machines VALUES ('m0123abcd')"),
        (WRITER, "UPDATE ultramon.reading_days SET cost_usd = 0"),
        (MACHINE, "SELECT token_hash FROM ultramon.credentials"),
        (MACHINE, "SELECT notify_id FROM ultramon.registrations"),
        (MACHINE, "INSERT INTO ultramon.messages (recipient, text) VALUES ('boss', 'x')"),
        (MACHINE, "INSERT INTO ultramon.requests VALUES ('m0123abcd-1', '{}')"),
        (MACHINE, "UPDATE ultramon.reading_days SET cost_usd = 0"),
    ],
)
def test_what_a_role_may_not_is_refused_by_the_server(as_user, role, statement):
    """Whatever program the user of a role runs."""
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=DENIED):
        asked(as_user(role), statement)


def test_an_admin_does_everything(as_user, opened, postgres_store):
    """Tokens, pruning, and new versions of tables that another user made."""
    url = as_user(ADMIN)
    store = opened(url)
    with create_context_monitor("scout-1", CONFIG, backend=store):
        assert mint_token("scout-1", backend=store)
    assert (
        "1 agent deleted"
        in run("backend", "prune", "--older-than", "0s", ULTRAMON_BACKEND=url).stderr
    )
    asked(postgres_store, "UPDATE ultramon.meta SET value = '0' WHERE key = 'schema_version'")
    for table in set(GRANTS) - {"meta"}:
        asked(postgres_store, f"DROP TABLE ultramon.{table} CASCADE")
    for function in ("sum_readings", "sum_events"):
        asked(postgres_store, f"DROP FUNCTION ultramon.{function}")
    assert migrate(store.database).before == 0
    owners = asked(
        postgres_store,
        "SELECT relowner::regrole::text FROM pg_class WHERE oid = 'ultramon.agents'::regclass",
    )
    assert owners == [(ADMIN,)]


def test_a_stranger_is_told_what_he_lacks(as_user, postgres_store):
    """Without a role there is nothing to see, and `check` names the grant."""
    url = as_user("pg_monitor")
    checked = run("backend", "check", url)
    assert checked.returncode == 1
    assert re.search(
        r"problem +tables: \w+ may not see them; GRANT ultramon_writer TO", checked.stdout
    )
    assert "permission denied for schema" in run("status", ULTRAMON_BACKEND=url).stderr


def test_who_may_create_no_roles_gets_the_script_for_it():
    """Tables are made all the same; what the script makes gives agents their rights."""
    server = Server()
    server.start()
    try:
        url = server.url("ultramon").replace("//ultramon@", "//owner@")
        asked(server.url(), "CREATE ROLE owner LOGIN")
        refused = run("backend", "init", url)
        assert refused.returncode == 1
        assert 'CREATE SCHEMA "ultramon" AUTHORIZATION "owner"' in refused.stderr
        asked(server.url(), 'CREATE SCHEMA "ultramon" AUTHORIZATION "owner"')
        done = run("backend", "init", url)
        assert done.stdout.startswith("Made the tables")
        assert f"no roles {', '.join(ROLES)}: owner may create none" in done.stderr
        script = run("backend", "init", url, "--print-sql").stdout
        assert script == administrators_sql("ultramon")
        for _ in range(2):
            asked(server.url(), script)
        asked(server.url(), f"CREATE ROLE worker LOGIN IN ROLE {WRITER}")
        store = PostgresBackend(url.replace("//owner@", "//worker@"))
        with create_context_monitor("scout-1", CONFIG, backend=store):
            pass
        store.close()
        assert run("backend", "init", server.url()).stderr == ""
    finally:
        server.remove()


def test_agents_run_behind_the_documented_pooler(postgres, postgres_store, opened):
    """PgBouncer in transaction mode, configured as on the page; `check` sees that it is there."""
    pooler = Pooler(postgres)
    try:
        pooler.wait()
        url = pooler.url(re.search(r"schema=(\w+)", postgres_store)[1])
        store = opened(url)
        fleet = Fleet("audit", backend=store)
        with create_context_monitor("scout-1", CONFIG, run="audit", backend=store) as monitor:
            monitor.report_usage(input_tokens=180_000)
            monitor.hand_off()
        assert [event.name for event in fleet.poll()][-1] == "ended"
        fleet.close()
        checked = run("backend", "check", url)
        assert (checked.returncode, "ok       pooler: one stands in front" in checked.stdout) == (
            0,
            True,
        )
        store.close()
    finally:
        pooler.remove()


def test_a_store_that_an_earlier_version_set_up_starts_agents(postgres_store, opened):
    """It lacks the function of new agents: they are started as that version did."""
    backend = opened(postgres_store)
    backend.database.change("DROP FUNCTION ultramon.enter")
    records = [start(backend, f"scout-{number}") for number in range(2)]
    assert [backend.load(record.agent_id).record.seq for record in records] == [0, 0]
    with pytest.raises(AgentAlreadyRunningError):
        start(backend, "scout-0")
