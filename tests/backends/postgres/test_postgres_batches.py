"""Several states stored as one step: what is refused keeps nothing else back."""

from __future__ import annotations

import threading

import pytest

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.base import RecordsTogether, Save
from ultramon.backends.memory import MemoryBackend
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.errors import FencedError, StateWriteError
from ultramon.monitor.background import save_all
from ultramon.notices.message_rules import MAX_HELD_SECONDS, MAX_WAITING
from ultramon.notices.registration import StoredRegistration
from ultramon.testing.clock import START
from ultramon.testing.samples import make_event, make_record

NAMES = ("scout-1", "scout-2", "scout-3")
TOO_LARGE = "x" * 1_100_000


@pytest.fixture
def backend(postgres_store):
    backend = PostgresBackend(postgres_store)
    for name in NAMES:
        start(backend, name)
    yield backend
    backend.close()


def start(backend, name):
    backend.start_agent(
        name,
        lambda _, generation: (make_record(name, generation), []),
        takeover=True,
        now=START,
        machine=None,
    )


def crossing(name, seq=2, **fields):
    """Return a save of an agent at 90 % of its window, with an event of its own."""
    values = {"estimated_tokens": 180_000, "usage_ratio": 0.9, "measured_at": START, **fields}
    record = make_record(name, values.pop("generation", 1), seq=seq, **values)
    return Save(record, [make_event(name, n=seq)], durable=True)


def register(backend, *names):
    for name in names:
        backend.registry.register(StoredRegistration(name, "boss", "explicit", None, "boss", START))


def stored_in(backend):
    """Return of each agent the transaction that wrote its state."""
    with backend.database.connection() as connection:
        rows = connection.execute("SELECT agent_id, changed::text FROM ultramon.agents").fetchall()
    return dict(rows)


def test_states_are_stored_in_one_transaction(backend):
    """One commit is paid for all of them."""
    assert backend.record_together([crossing(name) for name in NAMES]) == [None, None, None]
    assert len(set(stored_in(backend).values())) == 1
    assert [backend.load(name).record.seq for name in NAMES] == [2, 2, 2]


def test_a_fenced_writer_keeps_nobody_back(backend):
    """The others are stored; of the fenced one neither state nor event is."""
    start(backend, "scout-2")
    first, second, third = backend.record_together([crossing(name) for name in NAMES])
    assert (first, third) == (None, None)
    assert isinstance(second, FencedError)
    assert second.current_generation == 2
    assert {event["agentId"] for event in backend.events().events} == {"scout-1", "scout-3"}
    assert backend.load("scout-2").record.seq == 0


def test_an_older_state_changes_nothing(backend):
    """A state that comes late is not refused, but the newer one stays; its event is stored."""
    backend.record_together([crossing("scout-1", seq=5), crossing("scout-2")])
    assert backend.record_together([crossing("scout-1", seq=4), crossing("scout-2")])[0] is None
    assert backend.load("scout-1").record.seq == 5
    assert len(backend.events().events) == 3


def test_an_unknown_agent_keeps_nobody_back(backend):
    """A state whose agent was pruned is refused, and revives no agent."""
    refusals = backend.record_together([crossing("nobody"), crossing("scout-1")])
    assert isinstance(refusals[0], FencedError)
    assert refusals[0].current_generation is None
    assert refusals[1] is None


def test_a_state_that_is_too_large_keeps_nobody_back(backend):
    """It is refused before anything is asked of the database."""
    refusals = backend.record_together([crossing("scout-1", label=TOO_LARGE), crossing("scout-2")])
    assert isinstance(refusals[0], StateWriteError)
    assert refusals[1] is None
    assert backend.load("scout-2").record.seq == 2


def test_what_the_database_cannot_take_keeps_nobody_back(backend):
    """One row that it refuses undoes the whole step; then each is stored by itself."""
    with backend.database.connection() as connection:
        connection.execute(
            "ALTER TABLE ultramon.events ADD CHECK (agent_id <> 'scout-2') NOT VALID"
        )
    refusals = backend.record_together([crossing(name) for name in NAMES])
    assert isinstance(refusals[1], StateWriteError)
    assert (refusals[0], refusals[2]) == (None, None)
    assert [backend.load(name).record.seq for name in NAMES] == [2, 0, 2]


def test_notices_of_a_batch_come_once_each_and_wake_who_listens(backend):
    """Each crossing leads to one notice, and the recipient is notified at once."""
    register(backend, *NAMES)
    heard = threading.Semaphore(0)
    with backend.queue.listening("boss", heard.release):
        assert heard.acquire(timeout=20)  # the connection is there: look once
        saves = [crossing(name) for name in NAMES]
        backend.record_together(saves)
        assert heard.acquire(timeout=20)
        backend.record_together(saves)
    messages = backend.queue.claim("boss", now=START + 1)
    assert [message.sender for message in messages] == list(NAMES)


def test_what_is_stored_already_is_told_nobody_again(backend):
    """The same end, stored twice because the answer was lost, is one notice."""
    register(backend, "scout-1")
    ended = make_event("scout-1", "agent_stopped", outcome="failed", exit=None)
    for seq in (2, 3):
        backend.record_together([Save(make_record("scout-1", seq=seq), [ended], durable=True)])
    assert len(backend.queue.claim("boss", now=START + 1)) == 1


def test_a_repeated_event_in_one_save_is_one_event(backend):
    """Events are known by their keys, also within one step."""
    save = crossing("scout-1")
    twice = save._replace(events=[*save.events, *save.events])
    assert backend.record_together([twice]) == [None]
    assert len(backend.events().events) == 1


def test_a_batch_leaves_no_more_notices_than_may_wait(backend):
    """The oldest are dropped and counted, as they are one by one."""
    register(backend, "scout-1")
    with backend.database.transaction() as connection:
        connection.execute(
            "INSERT INTO ultramon.messages (recipient, sender, category, priority, text,"
            " facts, state, attempts, available_at, queued_at, expires_at)"
            " SELECT 'boss', 'other', 'context_monitor', 0, n::text, '{}', 0, 0, 0, 0, 1e12"
            " FROM generate_series(1, %s) AS n",
            (MAX_WAITING,),
        )
    backend.record_together([crossing("scout-1")])
    [depth] = backend.queue.depth(now=START)
    assert (depth.ready, depth.dropped) == (MAX_WAITING, 1)


def test_a_held_notice_of_a_batch_waits_and_the_others_do_not(backend):
    """One agent was cleared, another reached a level, in one step."""
    register(backend, *NAMES)
    record = make_record(
        "scout-1", 1, seq=2, active=False, outcome="completed", exit={"reason": "clear"}
    )
    ended = make_event("scout-1", "agent_stopped", outcome="completed")
    cleared = Save(record, [ended], durable=True)
    assert backend.record_together([cleared, crossing("scout-2")]) == [None, None]
    at = record.last_heartbeat
    (level,) = backend.queue.claim("boss", now=at + 1)
    assert (level.sender, level.facts["kind"]) == ("scout-2", "level")
    assert backend.queue.acknowledge(level.id, level.claim_token)
    assert backend.queue.claim("boss", now=at + MAX_HELD_SECONDS - 1) == []
    (late,) = backend.queue.claim("boss", now=at + MAX_HELD_SECONDS + 1)
    assert (late.sender, late.facts["reason"]) == ("scout-1", "clear")


def test_a_new_epoch_cancels_what_the_old_one_said_within_a_batch(backend):
    """A compaction cancels the warning that is still waiting, and is announced itself."""
    register(backend, "scout-1")
    backend.record_together([crossing("scout-1")])
    begun = make_event("scout-1", "context_epoch_started", epoch=2, reason="compaction")
    record = make_record("scout-1", seq=3, epoch=2, estimated_tokens=0)
    backend.record_together([Save(record, [begun], durable=True), crossing("scout-2")])
    [message] = backend.queue.claim("boss", now=START + 1)
    assert message.facts["epoch"] == 2


def test_only_the_newest_of_two_epochs_in_one_state_is_told(backend):
    """What the first one would have said is taken back before it was ever stored."""
    register(backend, "scout-1")
    begun = [
        make_event("scout-1", "context_epoch_started", epoch=epoch, reason="compaction")
        for epoch in (2, 3)
    ]
    record = make_record("scout-1", seq=3, epoch=3)
    backend.record_together([Save(record, begun, durable=True), crossing("scout-2")])
    [message] = backend.queue.claim("boss", now=START + 1)
    assert message.facts["epoch"] == 3


def test_the_keeper_saves_monitors_of_a_database_together(backend):
    """Two monitors of one process are one transaction."""
    config = ContextConfig(context_limit_tokens=100_000, tokenizer_family="chars/4")
    with (
        create_context_monitor("left", config, backend=backend) as left,
        create_context_monitor("right", config, backend=backend) as right,
    ):
        left.track_content("x" * 4_000)
        right.track_content("x" * 8_000)
        owners = [left._writer, right._writer]
        assert save_all([(owner, False) for owner in owners]) == owners
        stored = stored_in(backend)
        assert stored["left"] == stored["right"]
        assert backend.load("right").record.estimated_tokens == 2_000


def test_a_backend_without_it_is_saved_one_by_one():
    """A backend need not be able to."""
    store = MemoryBackend()
    assert not isinstance(store, RecordsTogether)
    with (
        create_context_monitor("left", backend=store) as left,
        create_context_monitor("right", backend=store) as right,
    ):
        owners = [left._writer, right._writer]
        assert save_all([(owner, True) for owner in owners]) == owners
