"""What is shared reaches the database once and in order, whichever side was away or killed."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest
from helpers.postgres_network import network  # noqa: F401
from helpers.sharing import Machine, Sharing, rows_of, work

from ultramon.backends.postgres.admin.roles import MACHINE
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.errors import StateError
from ultramon.share import sending
from ultramon.state.liveness import ALIVE, LOST
from ultramon.testing import make_record


@pytest.fixture
def sharing(machine):
    made = Sharing(machine)
    yield made
    made.close()


@pytest.fixture
def everyone(postgres_store):
    backend = PostgresBackend(postgres_store)
    yield backend
    backend.close()


def readings_of(server, agent_id):
    rows = rows_of(server, "readings", "used_tokens", f"agent_id = '{agent_id}' ORDER BY at")
    return [tokens for (tokens,) in rows]


def test_agents_events_and_readings_are_seen_by_all(machine, sharing, everyone, server):
    """Under opaque ids, with what happened, and every reading between two looks."""
    with machine.agent("scout-1") as agent:
        work(agent, 20_000, 40_000, 150_000)
        sharing.step(time.time())
        opaque = sharing.identity.agent_id("scout-1")
        [seen] = everyone.list_agents()
        assert (seen.agent_id, seen.record.threshold_status) == (opaque, "warning")
        assert seen.record.estimated_tokens == 150_000
        assert time.time() - seen.heartbeat_at < 5
        types = [event["type"] for event in everyone.events().events]
        assert types == ["agent_started", "context_threshold_reached"]
        assert readings_of(server, opaque) == [20_000, 40_000, 150_000]
        work(agent, 160_000)
        agent.hand_off(notes="secret")
    sharing.step(time.time())
    [seen] = everyone.list_agents()
    assert (seen.record.active, seen.record.outcome) == (False, "returned")
    assert [event["type"] for event in everyone.events().events][2:] == [
        "handoff_ready",
        "agent_stopped",
    ]
    assert readings_of(server, opaque) == [20_000, 40_000, 150_000, 160_000]
    [(machine_id, user, name)] = rows_of(server, "machines", "machine_id, database_user, name")
    assert (machine_id, name) == (sharing.identity.machine_id, None)
    assert user.startswith("user_")


def test_an_outage_loses_nothing_and_doubles_nothing(
    tmp_path, postgres, network, everyone, server, login
):
    """Readings wait on disk, states and events in their files; all is there in order after it."""
    url = login(MACHINE)
    through = url.replace(f":{postgres.port}/", f":{network.port}/")
    other = Machine(tmp_path / "other", through)
    sharing = Sharing(other)
    with other.agent("scout-1") as agent:
        work(agent, 1_000)
        sharing.step(time.time())
        network.refuse()
        wanted = [1_000]
        for turn in range(60):
            wanted.append(2_000 + turn)
            work(agent, wanted[-1])
            sharing.sending.collect(time.time())
        with pytest.raises(StateError):
            sharing.sending.send(time.time())
        agent.record_compaction(tokens_after=10)
        assert sharing.kept.waiting(sharing.sending.position).readings == 60
        # Another process continues with what this one has kept.
        sharing.close()
        sharing = Sharing(other)
        sharing.sending.collect(time.time())
        network.accept()
        sharing.step(time.time() + 20)
        opaque = sharing.identity.agent_id("scout-1")
        assert readings_of(server, opaque) == [*wanted, 10]
        assert sharing.kept.waiting(sharing.sending.position).readings == 0
        types = [event["type"] for event in everyone.events().events]
        assert types == ["agent_started", "context_epoch_started"]
        [seen] = everyone.list_agents()
        assert seen.record.epoch == 2
    sharing.close()
    other.end()


def test_a_lost_answer_doubles_nothing(tmp_path, postgres, network, server, login, everyone):
    """The database has the batch and the machine does not know: the next one continues behind."""
    url = login(MACHINE)
    through = url.replace(f":{postgres.port}/", f":{network.port}/")
    other = Machine(tmp_path / "other", through)
    sharing = Sharing(other)
    with other.agent("scout-1") as agent:
        work(agent, 1_000)
        sharing.step(time.time())
        opaque = sharing.identity.agent_id("scout-1")
        for turn in range(3):
            work(agent, 2_000 + turn)
            sharing.sending.collect(time.time())
            network.lose_answer_to(b"COMMIT")
            with pytest.raises(StateError):
                sharing.sending.send(time.time())
            assert network.is_cut
            sharing.sending.send(time.time() + 60 * turn + 60)
        assert readings_of(server, opaque) == [1_000, 2_000, 2_001, 2_002]
        [seen] = everyone.list_agents()
        assert seen.record.estimated_tokens == 2_002
    sharing.close()
    other.end()


def test_what_a_crash_has_undone_is_sent_again(machine, sharing, server):
    """Also where the database was away between two looks, and no connection has failed."""
    with machine.agent("scout-1") as agent:
        work(agent, 1_000)
        sharing.step(time.time())
        before = sharing.sending.position
        for count in (2_000, 3_000):
            work(agent, count)
            sharing.step(time.time())
        server(f"UPDATE ultramon.machines SET position = {before}")
        server("DELETE FROM ultramon.readings WHERE used_tokens > 1000")
        work(agent, 4_000)
        with pytest.raises(StateError, match="has lost batches in a crash"):
            sharing.step(time.time())
        sharing.step(time.time() + 20)
        opaque = sharing.identity.agent_id("scout-1")
        assert readings_of(server, opaque) == [1_000, 2_000, 3_000, 4_000]
        assert rows_of(server, "machines", "position") == [(sharing.sending.position,)]


def test_an_agent_whose_process_is_gone_is_lost_for_all(machine, sharing, everyone):
    """Others cannot see its process: the machine says so, and takes it back."""
    from ultramon.backends.toolkit import observe_stored

    record = make_record("gone", pid=2**22 + 1, host="codex", heartbeat_interval_seconds=None)
    record.last_heartbeat = record.last_activity = record.started_at = time.time()
    machine.local.directory.prepare()
    machine.local.directory.replace(record, durable=False)
    own = make_record("here", host="codex", session_id="here", heartbeat_interval_seconds=None)
    own.last_heartbeat = own.last_activity = own.started_at = time.time() - 7_200
    machine.local.directory.replace(own, durable=False)
    sharing.step(time.time())
    verdicts = {
        one.record.agent_id: one.liveness.verdict
        for one in observe_stored(everyone.list_agents(), time.time() + 1)
    }
    ids = sharing.identity.agent_id
    assert verdicts == {ids("gone"): LOST, ids("here"): ALIVE}
    # Without a beat of the machine it is not known.
    later = observe_stored(everyone.list_agents(), time.time() + 50)
    assert {one.liveness.verdict for one in later} == {LOST, "stale"}
    sharing.step(time.time() + 45)
    again = {one.record.agent_id: one.liveness.verdict
             for one in observe_stored(everyone.list_agents(), time.time() + 46)}  # fmt: skip
    assert again[ids("here")] == ALIVE


def test_what_is_gone_here_goes_there(machine, sharing, everyone, server):
    """A pruned agent is no longer shown; another life under its name is a new row."""
    machine.agent("a").stop()
    machine.agent("b").stop()
    sharing.step(time.time())
    assert len(everyone.list_agents()) == 2
    machine.local.directory.remove("a")
    sharing.step(time.time() + 6)
    assert [one.agent_id for one in everyone.list_agents()] == [sharing.identity.agent_id("b")]
    # Seen in one look: the new life has lower numbers than the old one.
    for _ in range(5):
        machine.agent("b").stop()
    sharing.step(time.time() + 12)
    machine.local.directory.remove("b")
    machine.agent("b").stop("failed")
    sharing.step(time.time() + 18)
    [seen] = everyone.list_agents()
    assert (seen.record.generation, seen.record.outcome) == (1, "failed")


def test_a_listing_that_failed_is_made_again(machine, sharing, server):
    """What it would have found comes with the next look, though no file has changed since."""
    sharing.step(time.time())
    machine.agent("a").stop()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(StateError):
            sharing.looks.look(time.time() + 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    sharing.step(time.time() + 2)
    assert rows_of(server, "agents", "agent_id") == [(sharing.identity.agent_id("a"),)]


def test_what_has_waited_long_is_sent_in_parts(machine, sharing, server, monkeypatch):
    """Between them files are looked at, and whether the process shall end."""
    monkeypatch.setattr(sending, "BUSY_SECONDS", 0.0)
    monkeypatch.setattr(sending, "STATES_AT_ONCE", 2)
    for number in range(5):
        machine.agent(f"agent-{number}").stop()
    sharing.sending.collect(time.time())
    counts = []
    while sharing.sending.send(time.time()):
        counts.append(len(rows_of(server, "agents", "agent_id")))
    assert counts[:3] == [2, 4, 5]


def test_of_agents_that_are_gone_nothing_is_kept(machine, sharing):
    """What was seen of an agent goes when its state has gone, at the next connection."""
    for name in ("a", "b"):
        with machine.agent(name) as agent:
            work(agent, 1_000)
    sharing.step(time.time())
    machine.local.directory.remove("a")
    sharing.step(time.time() + 6)
    sharing.close()
    again = Sharing(machine)
    assert len(again.kept.seen()) == 2
    again.step(time.time() + 12)
    assert [*again.kept.seen()] == [again.identity.agent_id("b")]
    again.close()


def test_a_reading_that_comes_after_its_state_is_not_missed(machine, sharing, server):
    """The ring is written behind the state; a look may come in between, and is the last one."""
    directory, at = machine.local.directory, time.time()
    directory.prepare()

    def store(tokens, later):
        fields = {"estimated_tokens": tokens, "measured_at": at + later, "seq": later}
        directory.replace(make_record("a", at=at, **fields), durable=False)

    ring = Path(directory.file("a", ".hist"))
    store(1_000, 1)
    before = ring.read_bytes()
    store(2_000, 2)
    after = ring.read_bytes()
    ring.write_bytes(before)
    sharing.step(at + 10)
    opaque = sharing.identity.agent_id("a")
    assert readings_of(server, opaque) == []
    ring.write_bytes(after)
    sharing.step(at + 11)
    assert readings_of(server, opaque) == [1_000, 2_000]
    # Where no ring can be written, the state alone has the reading.
    store(3_000, 3)
    ring.unlink()
    for second in (20, 21, 26, 27):
        sharing.step(at + second)
    assert readings_of(server, opaque) == [1_000, 2_000, 3_000]


def test_what_was_over_before_the_retention_is_not_there(machine, sharing, server):
    """It ended, or was lost, longer ago than rows are kept: neither now nor after an outage."""
    directory, old = machine.local.directory, time.time() - 31 * 86_400
    directory.prepare()
    for name, fields in {
        "ended": {"active": False},
        "lost": {"pid": 2**22 + 1},
        "idle": {},
    }.items():
        record = make_record(name, at=old, host="codex", heartbeat_interval_seconds=None, **fields)
        directory.replace(record, durable=False)
    sharing.step(time.time())
    ids = [(sharing.identity.agent_id("idle"),)]
    assert rows_of(server, "agents", "agent_id") == ids
    sharing.sending._is_connected = False
    sharing.step(time.time() + 20)
    assert rows_of(server, "agents", "agent_id") == ids


def test_a_restart_sends_only_what_differs(machine, sharing, server):
    """The database itself says what it has; other choices are another document."""
    for number in range(20):
        machine.agent(f"agent-{number}", label="Anna's label").stop()
    sharing.step(time.time())
    assert sharing.status.sent["states"] == 20
    sharing.close()
    again = Sharing(machine)
    again.step(time.time())
    assert again.status.sent["states"] == 0
    again.close()
    machine.choices = machine.choices._replace(names=("labels",))
    named = Sharing(machine)
    named.step(time.time())
    assert named.status.sent["states"] == 20
    labels = rows_of(server, "agents", "DISTINCT label")
    assert labels == [("Anna's label",)]
    assert rows_of(server, "machines", "sent_fields") == [("labels",)]
    named.close()


def test_a_database_that_was_emptied_gets_all_of_it_again(machine, sharing, everyone, server):
    """Agents and the whole journal; the machine enters anew."""
    with machine.agent("a") as agent:
        work(agent, 1_000)
        sharing.step(time.time())
        for table in ("events", "agents", "machines"):
            server(f"DELETE FROM ultramon.{table}")
        sharing.sending.close()
        sharing.sending._is_connected = False
        sharing.sending.send(time.time() + 60)
        assert [one["type"] for one in everyone.events().events] == ["agent_started"]
        assert len(everyone.list_agents()) == 1
