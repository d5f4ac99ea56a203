"""The queue against persist-queue and litequeue: all SQLite, WAL, every message on the disk."""

from __future__ import annotations

import random
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import litequeue
import persistqueue

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.queue import queue_messages
from ultramon.notices.message import Draft

MESSAGES = 2_000
REPEATS = 5
CROSSINGS = 500
TOGETHER = 100
POLL_SECONDS = 0.001
TEXT = "[ultramon] Context window of scout-1 is at 86% (critical), 172,000 of 200,000 tokens. " * 3
FULL = 2


class Candidate(NamedTuple):
    """What is compared."""

    name: str
    put: Callable[[str], object]
    take: Callable[[], str | None]
    """Claim one message, acknowledge it, and return its text; None when there is none."""
    close: Callable[[], object]


def ultramon(directory: str) -> Candidate:
    sender, receiver = LocalBackend(directory), LocalBackend(directory)

    def take() -> str | None:
        for message in receiver.queue.claim("boss", now=time.time(), limit=1):
            receiver.queue.acknowledge(message.id, message.claim_token)
            return message.text
        return None

    def put(text: str) -> None:
        sender.queue.queue_message(
            Draft("boss", text, sender="scout-1", category="context_monitor"), now=time.time()
        )

    def close() -> None:
        sender.close()
        receiver.close()

    put("first")
    take()
    assert synchronous(sender._journal._connection) == FULL
    return Candidate("ultramon", put, take, close)


def persist_queue(directory: str) -> Candidate:
    queue = persistqueue.SQLiteAckQueue(directory, multithreading=True)
    assert synchronous(queue._putter) == FULL

    def take() -> str | None:
        try:
            text: str = queue.get(block=False)
        except persistqueue.Empty:
            return None
        queue.ack(text)
        return text

    return Candidate("persist-queue SQLiteAckQueue", queue.put, take, queue.close)


def lite_queue(directory: str) -> Candidate:
    path = f"{directory}/queue.sqlite3"
    sender, receiver = litequeue.LiteQueue(path), litequeue.LiteQueue(path)
    for queue in (sender, receiver):
        queue.conn.execute("PRAGMA synchronous = FULL")  # its own choice loses rows in a power cut
        queue.conn.execute("PRAGMA busy_timeout = 5000")

    def take() -> str | None:
        message = receiver.pop()
        if message is None:
            return None
        receiver.done(message.message_id)
        return message.data

    def close() -> None:
        sender.close()
        receiver.close()

    return Candidate("litequeue, synchronous = FULL", sender.put, take, close)


def bare(directory: str) -> Candidate:
    connection = sqlite3.connect(
        f"{directory}/bare.sqlite3", isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, text TEXT)")

    def take() -> str | None:
        row = connection.execute("SELECT id, text FROM messages LIMIT 1").fetchone()
        if row is None:
            return None
        connection.execute("DELETE FROM messages WHERE id = ?", (row[0],))
        return str(row[1])

    def put(text: str) -> None:
        connection.execute("INSERT INTO messages (text) VALUES (?)", (text,))

    return Candidate("bare SQLite: INSERT, DELETE, no claim", put, take, connection.close)


def synchronous(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA synchronous").fetchone()[0])


CANDIDATES = [ultramon, persist_queue, lite_queue, bare]


def rates(make: Callable[[str], Candidate]) -> tuple[float, float]:
    """Return messages put a second, and messages taken a second."""
    with tempfile.TemporaryDirectory() as directory:
        candidate = make(directory)
        began = time.perf_counter()
        for number in range(MESSAGES // 2):
            candidate.put(f"{number} {TEXT}")
        put = time.perf_counter()
        taken = 0
        while candidate.take() is not None:
            taken += 1
        ended = time.perf_counter()
        candidate.close()
    assert taken == MESSAGES // 2, taken
    return taken / (put - began), taken / (ended - put)


def together_rate() -> float:
    """Return messages put a second where each commit is one of many messages."""
    with tempfile.TemporaryDirectory() as directory:
        candidate = ultramon(directory)
        store = LocalBackend(directory)
        began = time.perf_counter()
        for first in range(0, MESSAGES // 2, TOGETHER):
            drafts = [
                Draft("boss", f"{number} {TEXT}", "scout-1", category="context_monitor")
                for number in range(first, first + TOGETHER)
            ]
            queue_messages(store.queue, drafts, now=time.time())
        rate = MESSAGES / 2 / (time.perf_counter() - began)
        store.close()
        candidate.close()
    return rate


def latencies(make: Callable[[str], Candidate]) -> list[float]:
    """Return milliseconds from before a message is put until a polling thread has taken it."""
    chance = random.Random(20261121)
    taken: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        candidate = make(directory)

        def receive() -> None:
            while len(taken) < CROSSINGS:
                text = candidate.take()
                if text is None:
                    time.sleep(POLL_SECONDS)
                else:
                    taken.append((time.perf_counter() - float(text)) * 1e3)

        thread = threading.Thread(target=receive)
        thread.start()
        for _ in range(CROSSINGS):
            time.sleep(chance.uniform(0.002, 0.008))
            candidate.put(repr(time.perf_counter()))
        thread.join()
        candidate.close()
    return taken


def main() -> None:
    measured: dict[str, list[tuple[float, float]]] = {make.__name__: [] for make in CANDIDATES}
    together = []
    for _ in range(REPEATS):
        together.append(together_rate())
        for make in CANDIDATES:
            measured[make.__name__].append(rates(make))
    rows = [
        "| queue | durable puts/s | takes with acknowledgement/s | put → taken, p50 ms | p99 ms |",
        "|---|---|---|---|---|",
    ]
    for make in CANDIDATES:
        puts, takes = zip(*measured[make.__name__], strict=True)
        waits = statistics.quantiles(latencies(make), n=100)
        with tempfile.TemporaryDirectory() as directory:
            candidate = make(directory)
            candidate.close()
        rows.append(
            f"| {candidate.name} | {statistics.median(puts):,.0f} | {statistics.median(takes):,.0f}"
            f" | {waits[49]:.2f} | {waits[98]:.2f} |"
        )
    rows.append(
        f"| ultramon, {TOGETHER} messages a commit | {statistics.median(together):,.0f} | | | |"
    )
    print("\n".join(rows))
    print(
        f"\n{MESSAGES // 2:,} messages of {len(TEXT)} characters, {REPEATS} runs in turn, one "
        "transaction each where no number is given; all take one message at a time. ultramon's put "
        "also checks bound, key and sender, its take sweeps, claims by recipient and priority and "
        "acknowledges by token. "
        f"Latency: a thread of the same process that polls every {POLL_SECONDS * 1e3:.0f} ms, "
        f"{CROSSINGS} messages one after the other."
    )


if __name__ == "__main__":
    main()
