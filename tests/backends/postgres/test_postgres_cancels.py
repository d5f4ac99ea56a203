"""A cancel reaches messages that wait on hosts, its own and others, whatever arrives first."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from helpers.fault_writer import AGENT, answer, finish, make_event
from helpers.postgres_network import backend, direct, is_drained, network, wait_until, work  # noqa: F401
from helpers.postgres_worker import start

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.backends.postgres.connection.database import DatabaseAwayError
from ultramon.backends.postgres.outbox.outbox import MESSAGE, Entry
from ultramon.notices.message import Cancelled, Draft
from ultramon.notices.texts import CONTEXT
from ultramon.routing import cancel_notices, register, unregister
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.timestamps import format_time

OUTAGES = {"hang": "flow", "refuse": "accept"}


def say(backend, text, category=CONTEXT):
    now = SYSTEM_CLOCK.now()
    return backend.queue.queue_message(
        Draft("boss", text, sender=AGENT, category=category), now=now
    )


def texts(backend, recipient="boss"):
    return [one.text for one in backend.queue.peek(recipient, now=SYSTEM_CLOCK.now())]


@pytest.mark.parametrize("outage", OUTAGES)
def test_a_cancel_during_an_outage_reaches_what_waits_before_it(outage, network, backend, direct):
    """Not what was sent after it, in another category, or by another machine meanwhile."""
    assert say(direct, "stored before")
    getattr(network, outage)()
    assert say(backend, "kept before") == 0
    assert say(backend, "other category", "progress") == 0
    assert backend.queue.cancel_messages_from(AGENT, CONTEXT) == Cancelled(0, 0)
    assert say(backend, "kept after") == 0
    assert say(direct, "stored after")
    getattr(network, OUTAGES[outage])()
    wait_until(lambda: is_drained(backend))
    assert sorted(texts(direct)) == ["kept after", "other category", "stored after"]


def test_a_cancel_is_kept_by_a_process_that_dies(network, direct, work):
    """The next one of its host carries it out."""
    assert say(direct, "stored before")
    network.refuse()
    worker = work(network.url, "cancel", AGENT, CONTEXT)
    assert answer(worker) == [0, 0]
    os.kill(worker.pid, signal.SIGKILL)
    finish(worker)
    network.accept()
    successor = work(network.url, "drain")
    assert answer(successor) == "drained"
    finish(successor)
    assert texts(direct) == []


def compact(direct):
    config = ContextConfig(context_limit_tokens=10_000, on_error="raise")
    with create_context_monitor(AGENT, config, backend=direct, takeover=True) as monitor:
        monitor.record_compaction(100)


CANCELS = {
    "cancel": lambda direct: direct.queue.cancel_messages_from(AGENT, CONTEXT),
    "clear": lambda direct: cancel_notices(AGENT, backend=direct),
    "register": lambda direct: register(AGENT, "boss", backend=direct),
    "unregister": lambda direct: unregister(AGENT, "boss", backend=direct),
    "compact": compact,
}


@pytest.mark.parametrize("way", CANCELS)
def test_a_cancel_from_another_host_counts_for_what_waits_here(way, network, backend, direct):
    """However it came about; what is sent after it arrives."""
    start(direct, "boss")
    start(direct, at=SYSTEM_CLOCK.now(), parent_id="boss")
    register(AGENT, "boss", backend=direct)
    network.refuse()
    assert say(backend, "before") == 0
    CANCELS[way](direct)
    assert say(backend, "after") == 0
    network.accept()
    wait_until(lambda: is_drained(backend))
    assert [text for text in texts(direct) if text in {"before", "after"}] == ["after"]


def test_a_message_on_its_way_through_a_slow_network_can_be_cancelled(network, backend, direct):
    """Its sender got 0, for a message that waits, and continued."""
    assert say(backend, "warm", "progress") is not None
    wait_until(lambda: is_drained(backend))
    network.hang()
    assert say(backend, "stale") == 0
    assert direct.queue.cancel_messages_from(AGENT, CONTEXT) == Cancelled(0, 0)
    network.flow()
    wait_until(lambda: is_drained(backend))
    assert texts(direct) == ["warm"]


def test_a_cancel_waits_for_a_message_that_is_being_stored(direct, postgres_store):
    """It would not find it yet, and the message would arrive after it."""
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    message = {
        "recipient": "boss",
        "text": "stale",
        "now": SYSTEM_CLOCK.now(),
        "sender": AGENT,
        "sender_epoch": None,
        "said_at": None,
        "category": CONTEXT,
        "sent_at": SYSTEM_CLOCK.now(),
    }
    entry = Entry(0, MESSAGE, "boss", message)
    other = PostgresBackend(postgres_store)
    other.queue.patience_seconds = 30.0
    with closing(other), ThreadPoolExecutor() as pool:
        with direct.database.transaction() as connection:
            assert direct.queue.store(connection, entry, is_kept=False)
            cancel = pool.submit(other.queue.cancel_messages_from, AGENT, CONTEXT)
            wait_until(lambda: connection.execute(waiting).fetchall())
        assert cancel.result() == Cancelled(1, 0)
    assert texts(direct) == []


def test_an_epoch_that_was_kept_cancels_what_was_said_before_it(network, backend, direct):
    """What its host said in the new epoch while the database was still away arrives."""
    record = start(backend, at=SYSTEM_CLOCK.now())
    network.refuse()
    assert say(backend, "old window") == 0
    at = SYSTEM_CLOCK.now() + 0.002  # events are dated to the millisecond
    event = make_event(type="context_epoch_started", epoch=2, at=at, reason="compaction")
    event["occurredAt"] = format_time(at)
    wait_until(lambda: SYSTEM_CLOCK.now() > at + 0.002)
    record.epoch, record.seq = 2, 1
    with pytest.raises(DatabaseAwayError):
        backend.record(record, [event], durable=True)
    assert say(backend, "new window") == 0
    network.accept()
    wait_until(lambda: is_drained(backend))
    wait_until(lambda: direct.load(AGENT).record.epoch == 2)
    assert texts(direct) == ["new window"]


def test_what_remembers_a_cancel_is_no_message(backend, direct):
    """Nobody claims, sees or counts it."""
    backend.queue.patience_seconds = 30.0
    backend.queue.cancel_messages_from(AGENT, CONTEXT)
    now = SYSTEM_CLOCK.now()
    assert direct.queue.claim(AGENT, now=now) == direct.queue.peek(AGENT, now=now) == []
    assert direct.queue.depth(now=now) == []
