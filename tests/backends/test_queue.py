"""The queue between processes: races, kills, many writers, and what a fork must not break."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from helpers.fault_writer import answer, finish
from helpers.queue_worker import BATCH, CATEGORY, LEASE_SECONDS, run_worker

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.queue import queue_messages
from ultramon.errors import QueueFullError, StateWriteError
from ultramon.notices.message import Draft
from ultramon.notices.message_rules import MAX_ATTEMPTS, MAX_WAITING, backoff_seconds
from ultramon.testing.clock import START

ROUNDS = 60


@pytest.fixture
def backend(tmp_path):
    with closing(LocalBackend(str(tmp_path / "state"))) as backend:
        yield backend


@pytest.fixture
def queue(backend):
    return backend.queue


def tell(process, line):
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def test_backoff_doubles_and_is_capped():
    """2^n seconds, at most five minutes."""
    waits = [backoff_seconds(attempt) for attempt in (1, 2, 3, 4, 5, 8, 9, 2_000)]
    assert waits == [2, 4, 8, 16, 32, 256, 300, 300]


def test_several_messages_are_stored_together_or_not_at_all(queue):
    """Where one of them finds no room none is stored, and no recipient is made to look."""
    wall = [Draft("boss", str(number)) for number in range(MAX_WAITING)]
    queue_messages(queue, wall, now=START)
    with pytest.raises(QueueFullError, match="boss: 1,000 messages wait"):
        queue_messages(queue, [Draft("other", "fits"), Draft("boss", "does not")], now=START)
    assert queue.peek("other", now=START) == []
    assert len(queue.peek("boss", now=START, limit=2 * MAX_WAITING)) == MAX_WAITING


def test_a_bound_is_of_messages_and_not_of_ids(queue):
    """Of two categories that are queued in turn each may fill its own."""
    for number in range(MAX_WAITING + 2):
        drafts = [Draft("boss", f"{name}{number}", category=name) for name in "ab"]
        queue_messages(queue, drafts, now=START)
    waiting = [m.text for m in queue.peek("boss", now=START, limit=3 * MAX_WAITING)]
    assert waiting[:2] == ["a2", "b2"]
    assert len(waiting) == 2 * MAX_WAITING


def test_a_stale_message_among_several_is_left_out(backend, queue):
    """Its sender is in a later epoch: it gets no id, and the others are stored."""
    backend.directory.prepare()
    with backend._journal.transaction(1.0) as connection:
        connection.execute("INSERT INTO senders VALUES ('scout', 0, 1, 3, 0)")
    drafts = [Draft("boss", "stale", "scout", (1, 2)), Draft("boss", "new", "scout", (1, 3))]
    stale, new = queue_messages(queue, drafts, now=START)
    assert stale is None
    assert [(m.id, m.text) for m in queue.peek("boss", now=START)] == [(new, "new")]


def test_a_cancellation_against_a_claim(backend, queue):
    """In 60 races of two processes each message is cancelled or delivered, never both."""
    canceller = run_worker(backend.directory.path, "cancel")
    receiver = run_worker(backend.directory.path, "receive")
    assert answer(canceller) == answer(receiver) == "ready"
    all_deleted = all_received = 0
    for number in range(ROUNDS):
        sender = f"scout-{number}"
        sent = {
            queue.queue_message(Draft("boss", "n", sender=sender, category=CATEGORY), now=START)
            for _ in range(4)
        }
        for process in (receiver, canceller) if number % 2 else (canceller, receiver):
            tell(process, sender)
        deleted, in_flight = answer(canceller)
        received = answer(receiver)
        assert set(received) <= sent
        assert len(received) == len(set(received))
        assert deleted + len(received) == len(sent)
        assert in_flight <= 1
        all_deleted += deleted
        all_received += len(received)
    finish(canceller)
    finish(receiver)
    assert all_deleted
    assert all_received
    assert queue.depth(now=START) == queue.depth(now=START + 3600) == []


@pytest.mark.parametrize("kills", [40, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_killed_receivers_lose_nothing(backend, queue, kills):
    """Of ten messages a kill none is lost when receivers are killed between claim and end."""
    sent = [
        queue.queue_message(Draft("boss", str(number), category=category), now=START)
        for category in (None, CATEGORY)
        for number in range(5 * kills)
    ]
    handled = finish(run_worker(backend.directory.path, "kill_receivers", kills, 7))
    assert len(handled) == kills
    at = START + (kills + 1) * (LEASE_SECONDS + 1)
    rest = []
    while messages := queue.claim("boss", now=at, limit=50):
        rest += [[message.id, message.attempts] for message in messages]
        assert all(queue.acknowledge(m.id, m.claim_token) for m in messages)
    dead = queue.dead()
    assert all(message.attempts == MAX_ATTEMPTS for message in dead)
    deliveries = [delivery for each in handled for delivery in each] + rest
    received = [message_id for message_id, _ in deliveries]
    assert {*received, *(message.id for message in dead)} == set(sent)
    assert len(received) - len(set(received)) <= kills * BATCH
    assert max(attempts for _, attempts in deliveries) > 1, "no kill hit a held message"
    with closing(sqlite3.connect(backend._journal.path)) as stored:
        assert stored.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def many_writers(backend, queue, seconds):
    writers = [run_worker(backend.directory.path, "send", f"w{n}", seconds) for n in range(8)]
    assert [answer(writer) for writer in writers] == ["ready"] * 8
    for writer in writers:
        tell(writer, "begin")
    said = [finish(writer)[0] for writer in writers]
    # Asking for the lock is a lottery: on a full machine one of eight may draw nothing for seconds.
    assert sum(bool(errors) for _, errors in said) <= 1, said
    counts = [count for count, _ in said]
    assert all(counts)
    assert queue.queue_message(Draft("boss", "the last"), now=START) == sum(counts) + 1


def test_eight_writers_share_one_file(backend, queue):
    """They get no error that the database is locked, and every message has its number."""
    many_writers(backend, queue, 4.0)


@pytest.mark.exhaustive
def test_eight_writers_share_one_file_for_long(backend, queue):
    """The same for as long as it takes to starve somebody."""
    many_writers(backend, queue, 20.0)


def test_a_poll_makes_no_writer_wait(backend, queue):
    """Who claims where nothing waits needs no lock."""
    queue.queue_message(Draft("other", "hello"), now=START)
    with closing(sqlite3.connect(backend._journal.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert queue.claim("boss", now=START) == []
        assert queue.depth(now=START)[0].recipient == "other"


def test_a_full_disk_is_a_typed_error_and_stores_nothing(backend, queue):
    """The sender learns that its message is not stored; with room again it can say it again."""
    queue.queue_message(Draft("boss", "first"), now=START)
    connection = backend._journal._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StateWriteError, match="full"):
        queue.queue_message(Draft("boss", "x" * 65_000), now=START)
    connection.execute("PRAGMA max_page_count = 1000000")
    queue.queue_message(Draft("boss", "again"), now=START)
    assert [m.text for m in queue.claim("boss", now=START)] == ["first", "again"]


def test_looking_makes_no_journal(tmp_path):
    """A directory without one stays as it is, whatever is asked or ended."""
    backend = LocalBackend(str(tmp_path / "state"))
    queue = backend.queue
    assert queue.claim("boss", now=START) == queue.dead() == queue.depth(now=START) == []
    queue.cancel_messages_from("scout", CATEGORY)
    assert not queue.acknowledge(1, "token")
    assert not (tmp_path / "state").exists()
