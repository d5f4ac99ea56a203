"""Many processes on one database: who wins, who is refused, and that nothing is lost or doubled."""

from __future__ import annotations

import os
import signal
import time

import pytest
from helpers.fault_writer import AGENT, answer, finish, make_event
from helpers.postgres_network import work  # noqa: F401
from helpers.postgres_worker import start
from helpers.queue_worker import BATCH, CATEGORY, LEASE_SECONDS
from helpers.queue_worker import run_worker as run_queue_worker

from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.notices.message import Draft
from ultramon.notices.message_rules import MAX_ATTEMPTS
from ultramon.testing.clock import START

WRITERS = 6
EVENTS = 1_200
AGENTS = 200


@pytest.fixture
def url(postgres_store):
    """A store whose server is never cut off: commits need not wait for its disk."""
    return f"{postgres_store}&options=-c%20synchronous_commit%3Doff"


@pytest.fixture
def backend(url, request):
    # Sessions of another test may still be about to end.
    name = getattr(request, "param", "ultramon")
    backend = PostgresBackend(f"{url}&application_name={name}")
    backend.queue.patience_seconds = 30.0
    yield backend
    backend.close()


@pytest.fixture
def queue(backend):
    return backend.queue


def tell(process, line):
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


@pytest.mark.parametrize("writes", [300, pytest.param(3_000, marks=pytest.mark.exhaustive)])
def test_of_two_processes_with_one_id_only_the_newer_writes(backend, url, work, writes):
    """After a take-over the old owner's writes are all refused and its heartbeat is none."""
    old = work(url, "own", "fair")
    assert answer(old) == 1
    tell(old, 10)
    assert answer(old) == [10, 0, []]
    new = work(url, "own", "takeover")
    assert answer(new) == 2
    for process in (old, new):
        tell(process, writes)
    assert answer(new) == [writes, 0, []]
    assert answer(old) == [0, writes, [AGENT]]
    record = backend.load(AGENT).record
    assert (record.generation, record.seq, record.pid) == (2, 10 + writes, new.pid)
    assert finish(old) == finish(new) == []


def test_a_take_over_in_the_middle_of_writing_fences_at_one_moment(backend, url, work):
    """The old owner writes until the take-over, never after it; the new one loses no write."""
    old = work(url, "own", "fair")
    answer(old)
    tell(old, 400)
    new = work(url, "own", "takeover")
    answer(new)
    tell(new, 200)
    assert answer(new)[0] == 200
    written, fenced, _ = answer(old)
    assert written + fenced == 400
    record = backend.load(AGENT).record
    assert (record.generation, record.pid) == (2, new.pid)
    finish(old)
    finish(new)


def test_a_cancellation_against_a_claim(backend, queue, url):
    """In 60 races of two processes each message is cancelled or delivered, never both."""
    canceller = run_queue_worker(url, "cancel")
    receiver = run_queue_worker(url, "receive")
    assert answer(canceller) == answer(receiver) == "ready"
    all_deleted = all_received = 0
    for number in range(60):
        sender = f"scout-{number}"
        with backend.database.transaction(durable=False) as connection:
            sent = {
                backend.messages.insert(
                    connection, Draft("boss", "n", sender, category=CATEGORY), START
                )
                for _ in range(4)
            }
        first, second = (receiver, canceller) if number % 2 else (canceller, receiver)
        tell(first, sender)
        # Every length of head start: side by side the cancellation, the shorter, always wins.
        for _ in range(number % 10):
            queue.depth(now=START)
        tell(second, sender)
        deleted, in_flight = answer(canceller)
        received = answer(receiver)
        assert set(received) <= sent
        assert len(received) == len(set(received))
        # What is locked for the moment by the one is passed by by the other, once.
        left = queue.peek("boss", now=START)
        for message in queue.claim("boss", now=START, limit=50):
            received.append(message.id)
            queue.acknowledge(message.id, message.claim_token)
        assert deleted + len(received) == len(sent), left
        assert in_flight <= 1
        all_deleted += deleted
        all_received += len(received)
    finish(canceller)
    finish(receiver)
    assert all_deleted
    assert all_received
    assert queue.depth(now=START) == queue.depth(now=START + 3600) == []


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_killed_receivers_lose_nothing(backend, queue, url, kills):
    """Of ten messages a kill none is lost when receivers are killed between claim and end."""
    with backend.database.transaction() as connection:
        sent = [
            backend.messages.insert(
                connection,
                Draft("boss", str(number), category=CATEGORY if number % 2 else None),
                START,
            )
            for number in range(10 * kills)
        ]
    handled = finish(run_queue_worker(url, "kill_receivers", kills, 7))
    assert len(handled) == kills
    at = START + (kills + 1) * (LEASE_SECONDS + 1)
    rest = []
    until = time.monotonic() + 30
    # What a killed one held locked is free when the server notices that it is gone.
    while any(d.ready or d.waiting or d.claimed for d in queue.depth(now=at)):
        assert time.monotonic() < until
        for message in queue.claim("boss", now=at, limit=50):
            rest.append([message.id, message.attempts])
            assert queue.acknowledge(message.id, message.claim_token)
    dead = queue.dead()
    assert all(message.attempts == MAX_ATTEMPTS for message in dead)
    deliveries = [delivery for each in handled for delivery in each] + rest
    received = [message_id for message_id, _ in deliveries]
    assert {*received, *(message.id for message in dead)} == set(sent)
    assert len(received) - len(set(received)) <= kills * BATCH
    assert max(attempts for _, attempts in deliveries) > 1, "no kill hit a held message"


def test_a_message_that_kills_its_receiver_takes_no_neighbour_along(queue, url):
    """Five claimers die of it; those that were claimed with it are delivered all the same."""
    words = ["one", "two", "poison", "three", "four"]
    ids = [queue.queue_message(Draft("boss", word), now=START) for word in words]
    delivered, deaths = [], 0
    at = START
    for _ in range(MAX_ATTEMPTS):
        claimer = run_queue_worker(url, "poison", at)
        delivered += finish(claimer)
        deaths += claimer.returncode == -signal.SIGKILL
        at += LEASE_SECONDS + 1
    delivered += finish(run_queue_worker(url, "poison", at))
    assert deaths == MAX_ATTEMPTS
    assert [message.id for message in queue.dead()] == [ids[2]]
    assert {message_id for message_id, _ in delivered} == set(ids)
    assert all(
        [text for _, text in delivered].count(word) <= 2 for word in words if word != "poison"
    )
    assert [d.ready + d.claimed for d in queue.depth(now=at)] == [0]


def test_several_claimers_share_what_waits(queue, backend, url):
    """Four processes claim for one recipient: each message goes to one of them."""
    with backend.database.transaction() as connection:
        sent = [backend.messages.insert(connection, Draft("boss", "n"), START) for _ in range(200)]
    claimers = [run_queue_worker(url, "receive") for _ in range(4)]
    assert [answer(claimer) for claimer in claimers] == ["ready"] * 4
    for claimer in claimers:
        tell(claimer, "begin")
    received = [message_id for claimer in claimers for message_id in answer(claimer)]
    for claimer in claimers:
        finish(claimer)
    assert sorted(received) == sorted(sent)


def test_no_event_is_missed_however_late_it_is_committed(backend, url, work):
    """Six writers whose commits take their time; a cursor by id alone would miss some."""
    writers = [work(url, "append", f"w-{number}", EVENTS // WRITERS) for number in range(WRITERS)]
    assert [answer(writer) for writer in writers] == ["ready"] * WRITERS
    for writer in writers:
        tell(writer, "begin")
    read, cursor, naive, last = [], None, 0, 0
    until = time.monotonic() + 60
    while len(read) < EVENTS and time.monotonic() < until:
        page = backend.events(cursor)
        read += [(event["agentId"], event["n"]) for event in page.events]
        cursor = page.cursor
        with backend.database.connection() as connection:
            rows = connection.execute(
                "SELECT id FROM ultramon.events WHERE id > %s ORDER BY id",
                (last,),
            ).fetchall()
        naive += len(rows)
        last = rows[-1][0] if rows else last
    assert [finish(writer) for writer in writers] == [["done"]] * WRITERS
    assert len(read) == len(set(read)) == EVENTS
    assert naive < EVENTS, "no commit was late: this proves nothing"
    for number in range(WRITERS):
        own = [n for name, n in read if name == f"w-{number}"]
        assert own == sorted(own)


def test_events_are_ordered_by_number_and_not_by_its_digits(backend):
    """The hundredth transaction comes behind the ninety-ninth, also from page to page."""
    backend.append_events([make_event(n=n) for n in range(4)])
    with backend.database.transaction() as connection:
        for n, txid in enumerate((9, 10, 99, 100)):
            connection.execute(
                "UPDATE ultramon.events SET txid = %s::text::xid8 WHERE payload::json ->> 'n' = %s",
                (txid, str(n)),
            )
    cursor, read = None, []
    while (page := backend.events(cursor, limit=1)).events:
        read += [event["n"] for event in page.events]
        cursor = page.cursor
    assert read == [0, 1, 2, 3]
    assert backend.change_mark()[0][0] == "100"


def test_the_mark_changes_when_an_event_can_be_read(backend):
    """Neither a heartbeat nor an event that cannot be read yet has anybody look in vain."""
    start(backend)
    backend.append_events([make_event()])
    mark = backend.change_mark()
    backend.heartbeat([(AGENT, 1)], START + 15)
    assert backend.change_mark() == mark
    with backend.database.transaction() as older:
        older.execute("SELECT pg_current_xact_id()")
        backend.append_events([make_event(n=1)])
        assert backend.change_mark() == mark
    assert backend.change_mark() != mark
    assert len(backend.events().events) == 2


def test_two_processes_that_save_the_same_agents_in_any_order_never_wait_for_each_other(
    backend, url, work
):
    """Rows are locked in one order, whatever the order of those who ask."""
    for number in range(AGENTS):
        start(backend, f"a-{number}")
    beaters = [work(url, "beat", seed, 15, AGENTS) for seed in (1, 2)]
    assert [answer(beater) for beater in beaters] == ["ready"] * 2
    for beater in beaters:
        tell(beater, "begin")
    assert [finish(beater) for beater in beaters] == [[[]]] * 2


@pytest.mark.parametrize("backend", ["forked"], indirect=True)
def test_a_forked_child_uses_the_backend(backend, queue):
    """It opens connections of its own; those of the parent continue."""
    record = start(backend)
    queue.queue_message(Draft("boss", "parent"), now=START)
    sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'forked'"
    with backend.database.connection() as connection:
        pid = connection.info.backend_pid
        parents = connection.execute(sessions).fetchall()
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            try:
                start(backend, "child")
                sent = queue.queue_message(Draft("boss", "child"), now=START)
                with backend.database.connection() as own:
                    shared = (own.info.backend_pid,) in parents
                backend.close()
                os._exit(0 if sent and not shared else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert connection.execute("SELECT pg_backend_pid()").fetchone() == (pid,)
        assert set(parents) <= set(connection.execute(sessions).fetchall())
    record.seq += 1
    assert backend.record(record, [make_event(n=5)], durable=True)
    assert sorted(m.text for m in queue.claim("boss", now=START)) == ["child", "parent"]


def test_a_fork_during_a_statement_of_another_thread_leaves_no_lock_behind(backend):
    """The child does not wait for a thread that it does not have."""
    import threading

    going = threading.Event()
    ended = threading.Event()

    def busy():
        while not ended.is_set():
            backend.change_mark()
            backend.outbox.may_wait()
            going.set()

    thread = threading.Thread(target=busy)
    thread.start()
    going.wait()
    try:
        for number in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                try:
                    start(backend, f"child-{number}")
                    os._exit(0)
                finally:
                    os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        ended.set()
        thread.join()
    assert len(backend.list_agents()) == 20


def test_one_key_from_two_hosts_is_one_message(queue, url):
    """The second sender gets the id of the first message, also after it was delivered."""
    other = PostgresBackend(url)
    other.queue.patience_seconds = 30.0
    first = queue.queue_message(Draft("boss", "one", dedupe_key="k"), now=START)
    assert other.queue.queue_message(Draft("boss", "two", dedupe_key="k"), now=START) == first
    (message,) = queue.claim("boss", now=START)
    queue.acknowledge(message.id, message.claim_token)
    assert other.queue.queue_message(Draft("boss", "three", dedupe_key="k"), now=START) == first
    assert queue.claim("boss", now=START) == []
    other.close()


def test_a_notice_does_not_overtake_one_that_is_just_being_claimed(backend, queue):
    """What another claimer has locked looks claimable until that one commits."""
    facts = {"kind": "level"}
    for level in ("warning", "critical"):
        queue.queue_message(
            Draft("boss", level, sender=AGENT, category="context_monitor", facts=facts), now=START
        )
    other = queue.queue_message(Draft("boss", "free", sender=AGENT), now=START)
    database = backend.database
    with database.transaction() as connection:
        connection.execute("SELECT 1 FROM ultramon.messages WHERE text = 'warning' FOR UPDATE")
        assert [message.id for message in queue.claim("boss", now=START)] == [other]
    assert [message.text for message in queue.claim("boss", now=START)] == ["warning", "critical"]
