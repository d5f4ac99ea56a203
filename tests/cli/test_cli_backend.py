"""`ultramon backend` over real servers, files and memory; its judgement over facts as data."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import time
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from helpers.postgres_network import is_drained, wait_until
from helpers.postgres_server import Server, free_port
from helpers.postgres_server import durable_postgres as postgres  # noqa: F401
from helpers.program import NOTHING, run

from ultramon import ContextConfig, Fleet, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.postgres.admin.health import Facts, OldestWriter, examine, refusals
from ultramon.backends.postgres.admin.setup import migrate
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.backends.postgres.schema.tables import SCHEMA_VERSION
from ultramon.cli.exit_codes import ExitCode
from ultramon.notices.message import Draft
from ultramon.system.environment import state_directory

GOOD = Facts(
    version=150_018,
    fsync=True,
    full_page_writes=True,
    synchronous_commit="on",
    is_standby=False,
    is_read_only=False,
    encoding="UTF8",
    skew_seconds=0.1,
    is_local=False,
    is_encrypted=True,
    ssl_mode="verify-full",
    is_pooled=False,
    connections=3,
    max_connections=100,
    user="worker",
    tables_version=SCHEMA_VERSION,
    role="ultramon_writer",
)
JUDGEMENTS = [
    ({"version": 120_022}, "problem", "server", "13 or newer"),
    ({"fsync": False}, "problem", "fsync", "set fsync = on"),
    ({"full_page_writes": False}, "problem", "full_page_writes", "set full_page_writes = on"),
    ({"synchronous_commit": "off"}, "warning", "synchronous_commit", "the last half second"),
    ({"is_standby": True}, "warning", "writing", "a standby"),
    ({"is_read_only": True}, "warning", "writing", "read-only"),
    ({"encoding": "SQL_ASCII"}, "warning", "encoding", "ENCODING 'UTF8'"),
    ({"skew_seconds": 5.1}, "warning", "clock", "5.1 s ahead of"),
    ({"skew_seconds": -60.0}, "warning", "clock", "60.0 s behind"),
    ({"skew_seconds": -5.0}, "ok", "clock", "5.0 s apart"),
    ({"is_encrypted": False}, "warning", "encryption", "take sslmode out"),
    ({"is_encrypted": False, "is_local": True}, "ok", "encryption", "on this machine"),
    ({"ssl_mode": "require"}, "warning", "encryption", "pretend to be the server"),
    ({"connections": 81}, "warning", "max_connections", "PgBouncer in transaction mode"),
    ({"is_pooled": True}, "ok", "pooler", "pool_mode = transaction"),
    ({"tables_version": 0}, "problem", "tables", "ultramon backend init"),
    ({"tables_version": SCHEMA_VERSION + 1}, "problem", "tables", "upgrade ultramon"),
    ({"tables_version": None}, "problem", "tables", "GRANT ultramon_writer TO worker"),
    ({"role": "ultramon_reader", "lacks": ("a", "b", "c", "d")}, "warning", "rights", "a, b, c, …"),
    ({"role": None, "lacks": ("SELECT on agents",)}, "problem", "rights", "SELECT on agents"),
    ({"foreign": 3}, "problem", "restored rows", "ultramon backend migrate"),
    (
        {"oldest_writer": OldestWriter(7, "etl", 3.0)},
        "ok",
        "event tail",
        "process 7 of the server (etl)",
    ),
    (
        {"oldest_writer": OldestWriter(7, "", 61.0)},
        "warning",
        "event tail",
        "pg_terminate_backend(7)",
    ),
    (
        {"oldest_writer": OldestWriter(None, "prepared x", 61.0)},
        "warning",
        "event tail",
        "ROLLBACK PREPARED",
    ),
    (
        {"oldest_writer": OldestWriter(7, "etl", 61.0)},
        "warning",
        "event tail",
        "process 7 of the server (etl) for 61 s: newer events reach supervised runs only",
    ),
    ({"oldest_writer": OldestWriter(7, "etl", None)}, "ok", "event tail", "pg_read_all_stats"),
]


@pytest.fixture(scope="module")
def unsafe():
    """A server whose settings lose data, with neither tables nor roles."""
    server = Server(fsync="off", full_page_writes="off", synchronous_commit="off")
    server.start()
    yield server
    server.remove()


def backend(*arguments, **changes):
    return run("backend", *arguments, **changes)


def found(done):
    """The findings of a check in JSON, by what was checked."""
    return {one["check"]: one for one in json.loads(done.stdout)["findings"]}


def test_a_good_server_is_no_reason_to_warn():
    """Every answer is ok, and has no cure."""
    assert {(one.status, one.cure) for one in examine(GOOD)} == {("ok", None)}


@pytest.mark.parametrize(("change", "status", "check", "words"), JUDGEMENTS)
def test_each_fact_is_judged_alone(change, status, check, words):
    """One bad fact changes one answer, which says what to do."""
    findings = examine(GOOD._replace(**change))
    others = {one.status for one in findings if one.check != check}
    (judged,) = [one for one in findings if one.check == check]
    assert (judged.status, others) == (status, {"ok"})
    assert words in f"{judged.message}; {judged.cure}"
    unfit = status == "problem" and check in ("server", "fsync", "full_page_writes")
    assert refusals(GOOD._replace(**change)) == ([judged] if unfit else [])


def test_a_server_that_loses_data_is_refused(unsafe):
    """`check` fails and names each setting; `init` makes nothing there."""
    done = backend("check", "--json", ULTRAMON_BACKEND=unsafe.url())
    assert done.returncode == ExitCode.FAILURE
    statuses = {name: one["status"] for name, one in found(done).items()}
    assert statuses["fsync"] == statuses["full_page_writes"] == "problem"
    assert statuses["synchronous_commit"] == "warning"
    refused = backend("init", unsafe.url())
    assert (refused.returncode, refused.stdout) == (ExitCode.FAILURE, "")
    assert "set fsync = on in postgresql.conf" in refused.stderr
    assert found(backend("check", "--json", unsafe.url()))["tables"]["status"] == "problem"


def test_init_says_what_it_did_and_can_be_repeated(postgres):
    """The first makes the tables, the second finds them; `check` then finds nothing wrong."""
    url = postgres.url("made_by_init")
    try:
        first, second = backend("init", url), backend("init", url)
        assert first.stdout.startswith(f"Made the tables of version {SCHEMA_VERSION} in the schema")
        assert "have version" in second.stdout
        assert (first.returncode, second.returncode) == (0, 0)
        assert first.stderr == second.stderr == ""
        done = backend("check", url)
        assert (done.returncode, done.stderr) == (0, "")
        assert {line.split()[0] for line in done.stdout.splitlines()} == {"ok"}
        facts = json.loads(backend("migrate", "--json", url).stdout)
        assert (facts["versionBefore"], facts["version"]) == (SCHEMA_VERSION, SCHEMA_VERSION)
    finally:
        with psycopg.connect(postgres.url().partition("?")[0], autocommit=True) as connection:
            connection.execute("DROP SCHEMA made_by_init CASCADE")


def test_a_password_is_never_printed(postgres, postgres_store):
    """Neither where the server answers, nor where it does not, nor to name the store."""
    url = postgres_store.replace("ultramon@", "ultramon:pass%2Fw0rd@")
    dead = url.replace(f":{postgres.port}/", f":{free_port()}/")
    calls = [backend(action, url, "--json") for action in ("init", "migrate", "check", "stats")]
    calls += [backend(action, dead) for action in ("init", "check")]
    assert [done.returncode for done in calls] == [0, 0, 0, 0, 1, 1]
    assert "onnection refused" in calls[4].stderr
    for done in calls:
        assert not {"pass%2Fw0rd", "pass/w0rd"} & set(done.stdout + done.stderr)
        assert "w0rd" not in done.stdout + done.stderr


def test_a_child_is_given_the_password(postgres_store):
    """A fleet's children open the same store, though its URL is shown without the password."""
    url = postgres_store.replace("ultramon@", "ultramon:word@")
    store = PostgresBackend(url)
    assert "word" not in store.url
    assert Fleet("audit", backend=store).env("worker-1")["ULTRAMON_BACKEND"] == url
    store.close()


@contextmanager
def writing(url):
    """A transaction that has written and does not end, of a program named etl."""
    with psycopg.connect(url.partition("?")[0], application_name="etl") as connection:
        connection.execute("SELECT pg_current_xact_id()")
        yield connection.info.backend_pid


def test_stats_show_sizes_depth_and_who_holds_events_back(postgres_store):
    """What is stored, what waits for whom, and the process whose transaction is the oldest."""
    store = PostgresBackend(postgres_store)
    with create_context_monitor(
        "scout-1", ContextConfig(context_window_tokens=1_000), backend=store
    ):
        for number in range(3):
            store.queue.queue_message(Draft("boss", f"message {number}"), now=time.time())
        store.queue.queue_message(Draft("scout-1", "hello"), now=time.time())
        with writing(postgres_store) as pid:
            stats = json.loads(backend("stats", "--json", postgres_store).stdout)
            shown = backend("stats", postgres_store).stdout
    store.close()
    assert stats["agents"] == {"stored": 1, "active": 1}
    assert stats["events"]["stored"] == 1
    assert stats["messages"]["recipients"] == [
        {"agentId": "boss", "waiting": 3},
        {"agentId": "scout-1", "waiting": 1},
    ]
    assert (stats["tailHolder"]["pid"], stats["tailHolder"]["application"]) == (pid, "etl")
    assert {"agents", "events", "messages"} <= {one["name"] for one in stats["tables"]}
    assert all(one["bytes"] > 0 for one in stats["indexes"])
    assert f"held back by process {pid} of the server, etl" in shown
    assert "3 for boss" in shown


def test_what_waits_on_this_machine_is_shown_while_the_database_is_away():
    """And after it has come back, that nothing waits any more."""
    server = Server()
    try:
        server.start()
        migrate(PostgresBackend(server.url()).database)
        store = PostgresBackend(server.url())
        monitor = create_context_monitor("scout-1", backend=store).start()
        server.stop("immediate")
        monitor.plan(["a"])
        monitor.update_heartbeat()
        wait_until(lambda: store.outbox.kept().states)
        here = {"ULTRAMON_STATE_DIR": state_directory()}
        done = backend("check", server.url(), **here)
        assert done.returncode == ExitCode.FAILURE
        outbox, away = done.stdout.splitlines()
        assert outbox.startswith(
            "warning  outbox: waiting on this machine: states 1, messages 0, sin"
        )
        assert away.startswith("problem  store: ")
        assert "Connection refused" in away
        server.start()
        wait_until(lambda: is_drained(store))
        checked, measured = (backend(what, server.url(), **here) for what in ("check", "stats"))
        assert "ok       outbox: nothing waits on this machine" in checked.stdout
        assert "on this machine nothing waits" in measured.stdout
        monitor.stop()
        store.close()
    finally:
        server.remove()


def test_a_database_that_only_reads_is_a_warning(postgres, postgres_store):
    """As on a standby: looking works, storing does not."""
    url = postgres_store + "&options=-c%20default_transaction_read_only%3Don"
    done = backend("check", "--json", url)
    assert (done.returncode, found(done)["writing"]["status"]) == (0, "warning")
    assert run("status", ULTRAMON_BACKEND=url).stderr == NOTHING


COMMANDS = [
    (("status", "--json"), '"agentId":"scout-1"'),
    (("watch", "--once"), "scout-1"),
    (("events",), "agent_started"),
    (("explain", "scout", "--details"), "agent scout-1"),
    (("context", "night"), "75%"),
    (("queue", "messages", "scout-1"), "hello"),
    (("queue", "depth"), "scout-1  1 ready"),
    (("queue", "clear", "scout-1"), "Cleared scout-1"),
    (("backend", "prune", "--dry-run", "--older-than", "0s"), "scout-1"),
]


def test_every_command_reaches_the_database(postgres_store, tmp_path):
    """ULTRAMON_BACKEND is enough; --state-dir names another store and wins."""
    store = PostgresBackend(postgres_store)
    config = ContextConfig(context_window_tokens=200_000)
    with create_context_monitor("scout-1", config, label="night", backend=store) as monitor:
        monitor.report_usage(input_tokens=150_000)
        store.queue.queue_message(Draft("scout-1", "hello"), now=time.time())
    store.close()
    for arguments, words in COMMANDS:
        more = ("--all",) if arguments[0] in ("status", "watch") else ()
        done = run(*arguments, *more, ULTRAMON_BACKEND=postgres_store)
        assert (done.returncode, words in done.stdout) == (0, True), (arguments, done.stderr)
    files = run("status", "--state-dir", tmp_path, ULTRAMON_BACKEND=postgres_store)
    assert (files.stdout, files.stderr) == ("", NOTHING)


def test_files_need_no_setup(tmp_path):
    """`init` makes the directory, `migrate` finds nothing to do, `check` and `stats` look."""
    directory = tmp_path / "state"
    where = ("--state-dir", directory)
    assert "is made when the first agent starts" in backend("check", *where).stdout
    assert not directory.exists()
    assert "ready; its journal is made with the first event" in backend("init", *where).stdout
    assert directory.stat().st_mode & 0o777 == 0o700
    store = LocalBackend(str(directory))
    with create_context_monitor("scout-1", backend=store):
        store.queue.queue_message(Draft("boss", "hello"), now=time.time())
    store.close()
    assert "its journal has version" in backend("migrate", *where).stdout
    checked = backend("check", *where)
    assert (checked.returncode, checked.stdout.count("ok  ")) == (0, 3)
    stats = json.loads(backend("stats", "--json", *where).stdout)
    assert (stats["agents"]["stored"], stats["agents"]["active"]) == (1, 0)
    assert stats["events"]["stored"] == 2
    assert stats["messages"]["recipients"] == [{"agentId": "boss", "waiting": 1}]
    assert stats["journal"]["bytes"] > 0


def test_a_damaged_journal_is_a_problem(tmp_path):
    """`check` fails and says which file it is; it changes nothing."""
    store = LocalBackend(str(tmp_path / "state"))
    with create_context_monitor("scout-1", backend=store):
        pass
    store.close()
    journal = tmp_path / "state" / "journal.sqlite3"
    journal.write_bytes(b"not a database at all, but long enough to be read as one" * 100)
    before = journal.read_bytes()
    done = backend("check", f"file://{tmp_path / 'state'}")
    assert done.returncode == ExitCode.FAILURE
    assert f"problem  journal: {journal}" in done.stdout
    assert done.stderr == "1 problem, 0 warnings\n"
    assert journal.read_bytes() == before


def test_a_copy_by_hard_links_is_a_warning(tmp_path):
    """`check` says that it is no backup, and does not fail."""
    store = LocalBackend(str(tmp_path / "state"))
    with create_context_monitor("scout-1", backend=store):
        pass
    store.close()
    subprocess.run(["cp", "-al", tmp_path / "state", tmp_path / "copy"], check=True)
    done = backend("check", f"file://{tmp_path / 'state'}")
    assert done.returncode == ExitCode.OK
    assert (
        f"warning  backup: {tmp_path / 'state' / 'journal.sqlite3'} has a second name"
        in done.stdout
    )
    assert done.stderr == "0 problems, 1 warning\n"


def test_a_damaged_journal_is_repaired(tmp_path):
    """`repair` says what it kept and where the damaged one is; a sound one is left alone."""
    state = tmp_path / ("a directory with a long name " * 8) / "state"
    where = ("--state-dir", state)
    store = LocalBackend(str(state))
    with create_context_monitor("scout-1", backend=store):
        store.queue.queue_message(Draft("boss", "hello"), now=time.time())
        store.queue.queue_message(Draft("boss", "damaged"), now=time.time())
    assert "nothing to repair" in backend("repair", *where).stdout
    journal = state / "journal.sqlite3"
    with closing(sqlite3.connect(journal, isolation_level=None)) as stranger:
        stranger.execute("UPDATE messages SET text = cast(x'ff' AS text) WHERE id = 2")
    checked = backend("check", *where)
    assert checked.returncode == ExitCode.OK
    assert "1 rows cannot be read and are passed over: messages 2: text is no" in checked.stdout
    done = backend("repair", *where)
    assert f"set aside as {journal}.corrupt-" in done.stdout
    kept = f"kept {len(store.events().events)} events, 1 messages, 1 boots; "
    assert f"{kept}1 rows could not be read: messages 2: " in done.stdout
    assert "journal: version" in backend("check", *where).stdout
    assert [message.text for message in store.queue.claim("boss", now=time.time())] == ["hello"]
    store.close()
    journal.write_bytes(b"no database")
    repaired = json.loads(backend("repair", "--json", *where).stdout)
    assert (repaired["repaired"], repaired["damagedTables"]) == (True, ["all tables"])
    assert Path(repaired["keptAs"]).read_bytes() == b"no database"


def test_a_row_that_something_else_changed_is_passed_over(postgres_store, postgres):
    """In PostgreSQL: events behind it arrive, its consumer begins anew, and `check` names both."""
    store = PostgresBackend(postgres_store)
    with create_context_monitor("scout-1", backend=store):
        pass
    store.subscribe("main", "me", now=time.time(), lease_seconds=1.0)
    first, last = store.events().events
    store.database.change("UPDATE ultramon.events SET payload = '{' WHERE id = 1")
    store.database.change("UPDATE ultramon.consumers SET memory = '[]', cursor = '1:1'")
    page = store.events()
    assert (page.events, len(page.cursors)) == ([last], 1)
    assert store.subscribe("main", "me", now=time.time(), lease_seconds=1.0) == (None, {})
    store.close()
    checked = backend("check", postgres_store)
    assert (
        "warning  rows: events: payload of 1 rows cannot be read; passed over: 1" in checked.stdout
    )
    assert "warning  rows: consumers: memory of 1 rows" in checked.stdout
    assert first["type"] == "agent_started"


def test_memory_has_nothing_to_make():
    """Each verb says so and succeeds."""
    assert backend("init", "memory:").stdout == "memory:: there is nothing to make\n"
    assert backend("migrate", "memory:").returncode == 0
    assert "shares nothing" in backend("check", "memory:").stdout
    assert backend("stats", "memory:").stdout.startswith("agents       0 stored, 0 active\n")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("stats", "memory:", "--print-sql"), ExitCode.USAGE, "No such option '--print-sql'"),
        (("stats", "memory:", "--state-dir", "/x"), ExitCode.USAGE, "a URL or --state-dir"),
        (("init", "memory:", "--print-sql"), ExitCode.FAILURE, "only PostgreSQL has"),
        (("check", "redis://x"), ExitCode.FAILURE, "must be file:///directory, memory:, "),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(arguments, code, words):
    """One line on stderr, nothing on stdout."""
    done = backend(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
