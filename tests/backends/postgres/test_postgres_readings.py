"""The readings of agents that store in PostgreSQL themselves, and the sums of their days."""

from __future__ import annotations

import datetime
import time

import pytest
from helpers.postgres_roles import login, server  # noqa: F401

from ultramon.backends.base import Save
from ultramon.backends.postgres.admin.roles import WRITER
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.testing.contract.states import start, write
from ultramon.testing.samples import make_event, make_record

TODAY = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"


@pytest.fixture
def store(login):
    """A store as a writer has it: rights and row security count."""
    backend = PostgresBackend(login(WRITER))
    yield backend
    backend.close()


def used(server):
    """The tokens of the readings, in their order."""
    return [
        tokens for (tokens,) in server("SELECT used_tokens FROM ultramon.readings ORDER BY at, 1")
    ]


def test_each_new_reading_is_kept(store, server):
    """A state that is stored again without a new one adds none; nor does a share alone."""
    now = time.time()
    first = start(store, now=now)
    assert used(server) == []
    fields = {"model": "opus", "threshold_status": "warning", "host": "sdk"}
    seen = write(store, first, at=now, measured_at=now, estimated_tokens=100, **fields)
    write(store, seen, at=now + 1, seq=2, measured_at=now, estimated_tokens=100, **fields)
    write(store, seen, seq=3, measured_at=now + 2, estimated_tokens=300, epoch=2, **fields)
    unknown = {"measured_at": now + 3, "usage_ratio": 0.5, "context_limit": None}
    write(store, seen, seq=4, **unknown)
    assert used(server) == [100, 300]
    assert server("SELECT host, model, epoch, level, limit_tokens FROM ultramon.readings") == [
        ("sdk", "opus", 1, "warning", 200_000),
        ("sdk", "opus", 2, "warning", 200_000),
    ]
    assert server(
        "SELECT day::text, agent_id, model, machine_id, readings, peak_tokens"
        " FROM ultramon.reading_days"
    ) == [(TODAY, "scout-1", "opus", None, 2, 300)]


def test_a_refused_state_leaves_no_reading(store, server):
    """Neither that of an earlier owner nor an older one."""
    now = time.time()
    start(store, now=now)
    start(store, now=now, takeover=True)
    late = make_record("scout-1", 1, seq=9, measured_at=now, estimated_tokens=9)
    refusal, _ = store.record_together(
        [
            Save(late, [], True),
            Save(make_record("scout-1", 2, seq=0, measured_at=now), [], True),
        ]
    )
    assert refusal is not None
    assert used(server) == []


def test_a_start_brings_the_reading_of_an_outage(store, server):
    """An agent that ran on while the database was away is stored with what it has by then."""
    now = time.time()
    start(store, now=now, measured_at=now, estimated_tokens=7)
    # A new owner continues the window; that is no new reading.
    start(store, now=now, takeover=True, measured_at=now, estimated_tokens=7)
    start(store, now=now, takeover=True, measured_at=now + 1, estimated_tokens=8)
    assert used(server) == [7, 8]


def test_crossings_and_compactions_of_a_day_are_counted(store, server):
    """Each event once, also where another process stores it."""
    now = time.time()
    record = start(store, now=now, host="codex", model="gpt-5")
    crossing = make_event("scout-1", "context_threshold_reached", at=now, level="warning")
    epoch = make_event("scout-1", "context_epoch_started", at=now, epoch=2, reason="fall")
    record.seq, record.measured_at = 1, now
    for _ in range(2):
        assert store.record(record, [crossing], durable=True)
    store.append_events([crossing, epoch])
    store.append_events([make_event("stranger", "context_threshold_reached", at=now)])
    assert server("SELECT agent_id, host, crossings, compactions FROM ultramon.reading_days") == [
        ("scout-1", "codex", 1, 1)
    ]
