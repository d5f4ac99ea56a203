"""What registered agents cost those that write their states, and what a lost mark does."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from helpers.hooked_session import HookedSession, tokens_at

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.journal import JOURNAL, Journal
from ultramon.backends.local.level_marks import mark_path
from ultramon.routing import Inbox, register, unregister
from ultramon.testing import make_event
from ultramon.testing.contract.notices import ORIGINAL, begin_epoch, read, said
from ultramon.testing.contract.notices import register as register_scout
from ultramon.testing.contract.states import start


@pytest.fixture
def backend(tmp_path):
    with closing(LocalBackend(str(tmp_path / "state"))) as backend:
        yield backend


@pytest.fixture
def opened(monkeypatch):
    """How often the database was opened for a transaction."""
    kinds = []
    transaction = Journal.transaction

    def counting(self, timeout_seconds, kind="IMMEDIATE"):
        kinds.append(kind)
        return transaction(self, timeout_seconds, kind)

    monkeypatch.setattr(Journal, "transaction", counting)
    return kinds


def mark_of(backend):
    return Path(mark_path(backend.directory.path, "scout-1"))


def test_a_save_of_an_unregistered_agent_opens_no_database(backend, opened):
    """Not even at a rung that another agent could be notified of."""
    record = start(backend)
    for ratio in (0.5, 0.9):
        record = read(backend, record, ratio)
    assert opened == []
    assert not mark_of(backend).exists()
    assert not Path(backend.directory.path, JOURNAL).exists()


def test_events_of_an_unregistered_agent_cost_one_look(backend):
    """One search by the key of the table, within the transaction that stores the events."""
    record = start(backend)
    backend.append_events([make_event("scout-1")])
    statements = []
    backend._journal._connection.set_trace_callback(statements.append)
    record.seq += 1
    assert backend.record(record, [make_event("scout-1", n=1)], durable=True)
    backend._journal._connection.set_trace_callback(None)
    (look,) = [s for s in statements if s.startswith("SELECT") and "registrations" in s]
    plan = backend._journal._connection.execute(f"EXPLAIN QUERY PLAN {look}").fetchall()
    assert "SEARCH main.registrations USING PRIMARY KEY" in str(plan)
    assert [s for s in statements if not s.startswith(("BEGIN", "INSERT", "COMMIT", "PRAGMA"))] == [
        look
    ]


def test_a_registered_agent_opens_it_only_when_there_is_news(backend, opened):
    """Between the rungs a save reads one small file."""
    record = start(backend)
    register_scout(backend)
    opened.clear()
    for ratio in (0.1, 0.2, 0.49):
        record = read(backend, record, ratio)
    assert opened == []
    for ratio in (0.5, 0.55, 0.6, 0.64, 0.1):
        record = read(backend, record, ratio)
    # The second one reads back whether the mark is right, whoever else changed it meanwhile.
    assert opened == ["IMMEDIATE", "DEFERRED"]
    read(backend, record, 0.7)
    assert opened.count("IMMEDIATE") == 2
    assert said(backend) == [("urgent", "warning"), ("urgent", "critical")]


def test_an_invalid_ladder_costs_one_look(backend, opened):
    """It tells nothing, and is not asked at every save what it would tell."""
    record = start(backend)
    register_scout(backend, ladder={"rungs": 7})
    opened.clear()
    for ratio in (0.5, 0.9):
        record = read(backend, record, ratio)
    assert opened == []


@pytest.mark.parametrize(
    "damage", [b"", b"torn", b"[]", b'{"ladder": 7, "told": 8}', b'{"ladder": null}', b"\xff"]
)
def test_a_damaged_mark_is_looked_behind_and_mended(backend, damage, opened):
    """No recipient misses a notice for it, and the next save is cheap again."""
    record = start(backend)
    register_scout(backend)
    mark_of(backend).write_bytes(damage)
    record = read(backend, record, 0.55)
    assert said(backend) == [("sequential", "warning")]
    assert json.loads(mark_of(backend).read_bytes())["told"] == [1, "warning"]
    opened.clear()
    read(backend, record, 0.56)
    assert opened == []


def test_a_mark_without_a_registration_goes(backend, opened):
    """It is left by a kill, or by a journal that was set aside."""
    record = start(backend)
    register_scout(backend)
    backend.close()
    Path(backend.directory.path, JOURNAL).write_bytes(b"garbage" * 1000)
    record = read(backend, record, 0.55)
    record = read(backend, record, 0.56)
    assert not mark_of(backend).exists()
    opened.clear()
    read(backend, record, 0.9)
    assert opened == []
    assert said(backend) == []


def test_a_busy_journal_delays_a_notice_and_loses_none(backend):
    """The state is stored, and the next save tells what this one could not."""
    record = start(backend)
    register_scout(backend)
    with Journal(backend.directory.path).transaction(1.0):
        record = read(backend, record, 0.55)
    assert said(backend) == []
    read(backend, record, 0.56)
    assert said(backend) == [("sequential", "warning")]


def test_an_epoch_and_its_notices_are_one_step(backend):
    """While the journal is busy neither the event is stored nor a notice cancelled."""
    record = start(backend)
    register_scout(backend)
    record = read(backend, record, 0.55)
    with Journal(backend.directory.path).transaction(1.0):
        with pytest.raises(AssertionError):
            begin_epoch(backend, record)
        assert said(backend) == [("sequential", "warning")]
    begin_epoch(backend, record)
    assert said(backend) == [("sequential", "compaction")]


def test_hooks_tell_by_the_same_rules(tmp_path):
    """A session that is registered tells its levels and its compaction from its own hooks."""
    session = HookedSession(tmp_path, ULTRAMON_PARENT_ID="boss")
    session.freeze()
    session.tool(tokens_at(60))
    with closing(LocalBackend(str(session.state))) as backend:
        register(session.session_id, "boss", thresholds=ORIGINAL, backend=backend)
        assert session.tool(tokens_at(51)).text == ""
        session.tool(tokens_at(50))
        session.tool(tokens_at(49))
        session.call("PreCompact", trigger="auto")
        inbox = Inbox("boss", backend=backend)
        (warning,) = inbox.poll()
        assert warning.text.startswith(
            "[ultramon] Context window of session is at 50% (warning, 50 % of 200k and more)"
            ", 100,000 of 200,000 tokens"
        )
        session.call("PostCompact")
        (compaction,) = inbox.poll()
        assert compaction.facts["reason"] == "compaction"
        unregister(session.session_id, "boss", backend=backend)
        session.tool(tokens_at(10))
        assert inbox.poll() == []
    assert session.failures() == []


def test_a_subagent_that_is_compacted_is_told_to_its_session(tmp_path):
    """No agent registered it; the session is its parent."""
    session = HookedSession(tmp_path)
    session.freeze()
    session.tool(tokens_at(60))
    session.tool(tokens_at(60), agent="a1")
    session.call("PreCompact", "a1", trigger="auto")
    session.call("PostCompact", "a1")
    with closing(LocalBackend(str(session.state))) as backend:
        (notice,) = Inbox(session.session_id, backend=backend).poll()
    assert notice.text.startswith("[ultramon] Context window of session.a1 was compacted")
    assert notice.agent_id == "session.a1"
