"""The server crashes, ends sessions, falls silent, tells another time; what is said of it."""

from __future__ import annotations

import select
import signal
import subprocess
import threading
from contextlib import closing, nullcontext
from pathlib import Path

import psycopg
import pytest
from helpers import TESTS
from helpers.fault_writer import AGENT, answer, make_event
from helpers.postgres_network import backend, direct, is_drained, network, wait_until, work  # noqa: F401
from helpers.postgres_server import Server, free_port
from helpers.postgres_worker import start
from helpers.program import PROGRAM, environment

from ultramon import Fleet
from ultramon.backends.postgres.admin.setup import migrate
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.backends.postgres.connection.database import DatabaseAwayError
from ultramon.backends.queue import listening
from ultramon.errors import StateWriteError
from ultramon.notices.message import Draft
from ultramon.routing import Inbox
from ultramon.state.liveness import ALIVE, LOST, STALE, judge
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.processes import MachineIdentity
from ultramon.testing.clock import START

ELSEWHERE = MachineIdentity("elsewhere", "another-boot")
HOUR = 3_600.0
SKEWED = TESTS / "helpers" / "skewed_worker.py"


@pytest.fixture(scope="module")
def mortal():
    """A server that tests may crash."""
    server = Server()
    server.start()
    yield server
    server.remove()


def administer(server, statement):
    with psycopg.connect(server.url().partition("?")[0], autocommit=True) as connection:
        done = connection.execute(statement)
        return done.fetchall() if done.description else None


def terminate_all(server):
    ours = "FROM pg_stat_activity WHERE application_name = 'ultramon'"
    before = administer(server, f"SELECT pid, pg_terminate_backend(pid) {ours}")
    pids = [pid for pid, _ in before]
    # The list forgets a session a moment before its socket is closed.
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def crash(server):
    server.kill()
    server.wait_until_dead()
    server.start()


def stop_immediately(server):
    server.stop("immediate")
    server.start()


@pytest.mark.parametrize("blow", [terminate_all, stop_immediately, crash])
def test_nothing_acknowledged_is_lost_by_a_server_that_fails_under_load(blow, mortal, work):
    """All come back by themselves; what was acknowledged is stored, once, in order."""
    url = mortal.url(blow.__name__)
    with closing(PostgresBackend(url)) as maker:
        migrate(maker.database)
    names = [f"w-{number}" for number in range(3)]
    workers = {name: work(url, "load", name, state=name) for name in names}
    said = {name: [answer(worker)] for name, worker in workers.items()}
    for name, worker in workers.items():
        said[name] += [answer(worker) for _ in range(20)]
    blow(mortal)
    for name, worker in workers.items():
        # Events are acknowledged by the database alone: it is back for everyone.
        while sum(kind == "event" for kind, _ in said[name][1:]) < 40:
            said[name].append(answer(worker))
    for name, worker in workers.items():
        worker.stdin.close()
        while (last := answer(worker)) != "end":
            assert last is not None, f"{name} has failed"
            said[name].append(last)
    with closing(PostgresBackend(url)) as backend:
        stored, cursor = [], None
        while (page := backend.events(cursor)).events:
            stored += [(event["agentId"], event["n"]) for event in page.events]
            cursor = page.cursor
        assert len(stored) == len(set(stored))
        for name in names:
            events = [n for kind, n in said[name][1:] if kind == "event"]
            messages = [n for kind, n in said[name][1:] if kind == "message"]
            assert {(name, n) for n in events} <= set(stored)
            waiting = backend.queue.peek(f"{name}-boss", now=START, limit=100_000)
            assert [int(message.text) for message in waiting] == messages
            assert backend.load(name).record.seq >= len(events)


def test_a_session_that_was_ended_while_it_was_idle_is_noticed_before_it_is_used(postgres, backend):
    """After a restart of the server the first call works."""
    record = start(backend)
    terminate_all(postgres)
    # On a full machine the last words of a session arrive after its process has ended.
    sockets = [session.pgconn.socket for session in backend.database._connections._idle]
    assert sockets
    wait_until(lambda: all(select.select([one], [], [], 0)[0] for one in sockets))
    record.seq += 1
    assert backend.record(record, [make_event(n=1)], durable=True)


@pytest.mark.timeout(30)
def test_a_server_that_does_not_listen_is_known_at_once_in_its_own_words():
    """However long one is ready to wait."""
    url = f"postgresql://somebody@127.0.0.1:{free_port()}/postgres"
    with closing(PostgresBackend(url)) as backend:
        with (
            pytest.raises(DatabaseAwayError, match=r"cannot be reached: .*refused"),
            backend.database.connection(timeout_seconds=HOUR),
        ):
            pass
        with pytest.raises(DatabaseAwayError, match=r"refused.* \(a moment ago\)"):
            backend.load("a")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("/postgres?", "/nowhere?"), 'database "nowhere" does not exist'),
        (("ultramon@", "nobody@"), 'role "nobody" does not exist'),
        (("sslmode=disable", "sslmode=require"), "server does not support SSL"),
    ],
)
def test_what_the_server_says_is_in_the_error(change, words, postgres):
    """Who configured something wrong reads what."""
    with (
        closing(PostgresBackend(postgres.url().replace(*change))) as backend,
        pytest.raises(DatabaseAwayError, match=words),
    ):
        backend.load("a")


def test_a_server_that_falls_silent_is_given_up(network, backend):
    """TCP alone would wait on: the other side is there, it only says nothing."""
    backend.change_mark()
    network.hang()
    with (
        pytest.raises(DatabaseAwayError, match="does not answer: no answer for"),
        backend.database.connection(silence_seconds=0.2) as connection,
    ):
        connection.execute("SELECT 1")
    network.flow()
    assert backend.list_agents() == []


def test_an_answer_that_takes_long_but_goes_on_is_not_given_up(backend):
    """Only silence counts, not the length of an answer."""
    query = "SELECT repeat('x', 100000), pg_sleep(0.06) FROM generate_series(1, 12)"
    with backend.database.connection(silence_seconds=0.5) as connection:
        rows = connection.cursor().stream(query)
        assert sum(1 for _ in rows) == 12


def test_a_lock_that_somebody_holds_is_no_loss(backend, direct):
    """Who cannot store for that comes again; its event is kept on this machine meanwhile."""
    record = start(backend)
    record.seq += 1
    with direct.database.transaction() as connection:
        connection.execute("SELECT 1 FROM ultramon.agents FOR UPDATE").fetchall()
        with pytest.raises(DatabaseAwayError, match=r"is busy: .*lock timeout"):
            backend.record(record, [make_event(n=1)], durable=True)
    wait_until(lambda: is_drained(backend))
    assert [event["n"] for event in direct.events().events] == [1]


def test_a_right_that_is_missing_loses_nothing(backend, direct, postgres_store, postgres):
    """It can be granted; until then it is kept on this machine."""
    schema = direct.database.address.schema
    administer(postgres, f"CREATE ROLE {schema} LOGIN")
    url = postgres_store.replace("ultramon@", f"{schema}@")
    try:
        administer(
            postgres,
            f"GRANT USAGE ON SCHEMA {schema} TO {schema};"
            f" GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {schema}",
        )
        with closing(PostgresBackend(url)) as poor:
            record = start(direct)
            record.seq += 1
            with pytest.raises(StateWriteError, match="refused: permission denied"):
                poor.record(record, [make_event(n=1)], durable=True)
            administer(postgres, f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {schema}")
            wait_until(lambda: is_drained(poor))
        assert [event["n"] for event in direct.events().events] == [1]
    finally:
        administer(postgres, f"DROP OWNED BY {schema}; DROP ROLE {schema}")


def test_few_connections_serve_many_threads(postgres_store):
    """A caller that finds none waits for one, and gets it."""
    backend = PostgresBackend(f"{postgres_store}&application_name=few", max_connections=2)
    begun = threading.Barrier(12)
    found = []

    def ask():
        begun.wait()
        for _ in range(10):
            with backend.database.connection(timeout_seconds=60) as connection:
                connection.execute("SELECT pg_sleep(0.001)")
                rows = connection.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'few'"
                ).fetchall()
                found.append(rows[0][0])

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    backend.close()
    assert len(found) == 120
    assert max(found) == 2


@pytest.mark.parametrize("ahead_seconds", [HOUR, -HOUR])
def test_the_clock_of_the_server_decides_who_is_silent(ahead_seconds, direct, postgres_store, work):
    """A host whose clock is an hour wrong is neither stale while it beats nor alive for ever."""
    worker = work(postgres_store, ahead_seconds, script=SKEWED)
    assert worker.stdout.readline() == "started\n"
    now = SYSTEM_CLOCK.now

    def verdict(later=0.0):
        stored = direct.load(AGENT)
        return judge(stored.record, stored.heartbeat_at, now() + later, ELSEWHERE).verdict

    assert verdict() == ALIVE
    first = direct.load(AGENT).heartbeat_at
    wait_until(lambda: direct.load(AGENT).heartbeat_at > first)
    assert verdict() == ALIVE
    assert verdict(later=60) == STALE
    assert verdict(later=HOUR / 2) == LOST
    fleet = Fleet("default", backend=direct)
    assert [event.name for event in fleet.poll()] == ["started"]
    assert fleet.get_stale() == []
    fleet.close()


def test_a_clock_that_is_set_while_a_process_runs_is_noticed(direct, postgres_store, work):
    """Beats are still of now, though the machine's clock was set back by an hour."""
    worker = work(postgres_store, 0.0, script=SKEWED)
    assert worker.stdout.readline() == "started\n"
    worker.stdin.write(f"{-HOUR}\n")
    worker.stdin.flush()
    assert worker.stdout.readline() == "set\n"
    first = direct.load(AGENT).heartbeat_at
    wait_until(lambda: direct.load(AGENT).heartbeat_at > first)
    assert abs(direct.load(AGENT).heartbeat_at - SYSTEM_CLOCK.now()) < 60


@pytest.fixture
def inbox(direct):
    """Receive for "boss" in a thread that polls once an hour; give what was received."""
    inbox = Inbox("boss", backend=direct)
    received = []
    inbox.on_notice(lambda notice: received.append(notice.text))
    thread = threading.Thread(target=inbox.run, args=(HOUR,))
    thread.start()
    yield received
    inbox.stop()
    thread.join()


def test_a_message_is_delivered_when_it_is_stored(inbox, backend):
    """Nobody waits for the next poll, not even for what was sent while nobody listened yet."""
    for number in range(3):
        backend.queue.queue_message(Draft("boss", str(number)), now=SYSTEM_CLOCK.now())
        wait_until(lambda count=number + 1: len(inbox) == count)
    assert inbox == ["0", "1", "2"]


def test_who_listens_hears_again_after_its_session_was_ended(inbox, backend, postgres):
    """It connects again by itself, and looks for what it has missed."""
    backend.queue.queue_message(Draft("boss", "before"), now=SYSTEM_CLOCK.now())
    wait_until(lambda: inbox == ["before"])
    terminate_all(postgres)
    backend.queue.queue_message(Draft("boss", "after"), now=SYSTEM_CLOCK.now())
    wait_until(lambda: inbox == ["before", "after"])


def test_the_command_that_follows_messages_shows_them_as_they_come(direct, postgres_store):
    """It is notified of them; and it ends like every other command when it is interrupted."""
    follower = subprocess.Popen(
        [PROGRAM, "queue", "messages", "boss", "--follow"],
        env=environment(ULTRAMON_BACKEND=postgres_store, ULTRAMON_AGENT_ID="boss"),
        stdout=subprocess.PIPE,
        text=True,
    )
    with follower:
        for word in ("one", "two", "three"):
            direct.queue.queue_message(Draft("boss", word), now=SYSTEM_CLOCK.now())
            assert follower.stdout.readline().rstrip().endswith(f"  {word}")
        follower.send_signal(signal.SIGINT)
    assert follower.returncode == 0


def test_only_whom_it_concerns_hears_of_a_message(direct, postgres):
    """Neither other recipients nor other stores of the same database."""
    with closing(PostgresBackend(postgres.url("another"))) as another:
        migrate(another.database)
        heard = {"boss": threading.Event(), "other": threading.Event()}
        with (
            listening(direct.queue, "boss", heard["boss"].set),
            listening(direct.queue, "other", heard["other"].set),
        ):
            assert all(one.wait(60) for one in heard.values())  # once, when it begins to listen
            for one in heard.values():
                one.clear()
            another.queue.queue_message(Draft("boss", "n"), now=START)
            direct.queue.queue_message(Draft("other", "n"), now=START)
            assert heard["other"].wait(60)
            assert not heard["boss"].is_set()


def test_a_queue_that_cannot_listen_is_polled(tmp_path):
    """The hint is an optional part of a queue."""
    from ultramon.backends.local.backend import LocalBackend

    with closing(LocalBackend(str(tmp_path))) as local:
        assert isinstance(listening(local.queue, "boss", threading.Event().set), nullcontext)


def test_every_thread_and_connection_ends_with_the_backend(postgres_store, postgres):
    """Closing leaves nothing behind, and the next call begins anew."""
    before = set(threading.enumerate())
    backend = PostgresBackend(f"{postgres_store}&application_name=tidy")
    backend.queue.patience_seconds = 30.0
    left = "SELECT pid FROM pg_stat_activity WHERE application_name = 'tidy'"
    for _ in range(2):
        with listening(backend.queue, "boss", threading.Event().set):
            assert backend.queue.queue_message(Draft("boss", "n"), now=START)
        backend.close()
        assert set(threading.enumerate()) <= before
        wait_until(lambda: not administer(postgres, left))
