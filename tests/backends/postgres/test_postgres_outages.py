"""The database hangs, is away, loses its last word: agents continue, nothing is lost or doubled."""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import time
from contextlib import ExitStack, closing, suppress

import pytest
from helpers import requirements
from helpers.fault_writer import AGENT, answer, finish, make_event
from helpers.postgres_network import (  # noqa: F401
    answers,
    backend,
    direct,
    is_drained,
    network,
    wait_until,
    work,
)
from helpers.postgres_server import Server
from helpers.postgres_worker import start
from helpers.program import run_process
from helpers.supervised import second_refusal

from ultramon import ContextConfig, Fleet, create_context_monitor
from ultramon.backends.postgres.admin.setup import migrate
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.backends.postgres.connection.database import DatabaseAwayError
from ultramon.errors import AgentNotFoundError, FencedError, StateWriteError
from ultramon.monitor.worker import Worker
from ultramon.notices.message import Draft
from ultramon.routing import register
from ultramon.state.event_keys import event_key
from ultramon.state.record import encode_state
from ultramon.system.locks import LockedError
from ultramon.testing import FakeClock, fill, make_record
from ultramon.testing.clock import START

CONFIG = ContextConfig(context_limit_tokens=10_000, save_interval_seconds=0.1)
CALLS = {
    "track_content": lambda m: m.track_content("some words " * 20),
    "a crossing": lambda m: m.report_usage(input_tokens=7_500),
    "complete_task": lambda m: m.complete_task("one"),
    "update_heartbeat": lambda m: m.update_heartbeat(),
    "record_compaction": lambda m: m.record_compaction(100),
    "hand_off": lambda m: m.hand_off(notes="what was learned"),
    "stop": lambda m: m.stop("returned"),
}


def types(backend, agent_id=None):
    events = backend.events().events
    return [event["type"] for event in events if agent_id in (None, event["agentId"])]


def texts(backend, recipient="boss"):
    return [message.text for message in backend.queue.peek(recipient, now=START, limit=1_000)]


def takes(held, lock):
    """Take a lock that this process's own sender may hold at the moment."""
    with suppress(LockedError):
        held.enter_context(lock)
        return True
    return False


def outbox_file(tmp_path):
    (path,) = (tmp_path / "state").glob("outbox-*.sqlite3")
    return path


@pytest.mark.parametrize("outage", ["hang", "refuse"])
def test_no_call_of_an_agent_waits_for_an_answer(outage, network, backend, direct):
    """Every call returns while no server answers; afterwards all that was said is stored, once."""
    config = CONFIG.replace(store_timeout_seconds=0.2)
    monitor = create_context_monitor("a", config, backend=backend).start()
    direct.queue.queue_message(Draft("boss", "before"), now=START)
    getattr(network, outage)()
    for number, call in enumerate(CALLS.values()):
        call(monitor)
        assert backend.queue.queue_message(Draft("boss", str(number)), now=START) == 0
    {"hang": network.flow, "refuse": network.accept}[outage]()
    wait_until(lambda: not direct.load("a").record.active)
    wait_until(lambda: is_drained(backend))
    assert direct.load("a").record.outcome == "returned"
    assert types(direct) == [
        "agent_started",
        "context_threshold_reached",
        "context_epoch_started",
        "handoff_ready",
        "agent_stopped",
    ]
    assert texts(direct) == ["before", *map(str, range(len(CALLS)))]


@pytest.mark.parametrize("outage", ["hang", "refuse"])
def test_an_agent_that_starts_during_an_outage_is_stored_when_it_is_over(
    outage, network, backend, direct
):
    """It runs on unsaved meanwhile; its start and its crossing are announced once."""
    getattr(network, outage)()
    monitor = create_context_monitor("a", CONFIG, backend=backend).start()
    fill(monitor, 0.9)
    assert direct.list_agents() == []
    {"hang": network.flow, "refuse": network.accept}[outage]()
    wait_until(lambda: types(direct) == ["agent_started", "context_threshold_reached"])
    wait_until(lambda: is_drained(backend))
    monitor.stop()
    wait_until(lambda: not direct.load("a").record.active)
    assert types(direct) == ["agent_started", "context_threshold_reached", "agent_stopped"]
    assert direct.load("a").record.generation == 1


def test_what_a_killed_process_kept_is_stored_by_the_next_one_of_its_host(network, direct, work):
    """Its last crossing, its handoff, its final state and its message; also of a younger agent."""
    worker = work(network.url, "crash")
    assert answer(worker) == "started"
    network.refuse()
    worker.stdin.write("go\n")
    worker.stdin.flush()
    assert answer(worker) == "kept"
    os.kill(worker.pid, signal.SIGKILL)
    finish(worker)
    assert types(direct) == ["agent_started"]
    network.accept()
    with closing(PostgresBackend(network.url)) as successor:
        assert successor.outbox.kept()[:3] == (2, 1, 0)
        wait_until(lambda: is_drained(successor))
    assert types(direct, "old") == [
        "agent_started",
        "context_threshold_reached",
        "handoff_ready",
        "agent_stopped",
    ]
    assert types(direct, "young") == ["agent_started", "context_threshold_reached", "agent_stopped"]
    for agent_id, outcome in (("old", "returned"), ("young", "failed")):
        record = direct.load(agent_id).record
        assert (record.active, record.outcome, record.generation) == (False, outcome, 1)
    assert texts(direct) == ["goodbye"]


@pytest.fixture(scope="module")
def mortal():
    """A server that tests may stop."""
    server = Server()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def outlived(mortal, work, tmp_path):
    """Run two agents of this machine that end while the server is stopped; give the store's URL."""
    url = mortal.url(tmp_path.name)
    with closing(PostgresBackend(url)) as maker:
        migrate(maker.database)
    workers = {name: work(url, "brief", name, name == "early") for name in ("early", "late")}
    for worker in workers.values():
        assert answer(worker) == "ready"
    mortal.stop()
    try:
        for worker in workers.values():
            worker.stdin.write("go\n")
            worker.stdin.flush()
            assert worker.wait() == 0
    finally:
        mortal.start()
    return url


def test_a_command_shows_an_agent_that_ended_during_an_outage_as_it_ended(outlived, tmp_path):
    """Its process is gone and never saw the database again: it is completed, with its tasks."""
    done = run_process(
        "status",
        "--all",
        "--json",
        ULTRAMON_BACKEND=outlived,
        ULTRAMON_STATE_DIR=tmp_path / "state",
    )
    shown = {one["agentId"]: one for one in json.loads(done.stdout)["agents"]}
    for agent_id in ("early", "late"):
        one = shown[agent_id]
        assert (one["outcome"], one["tasksCompleted"], one["tasksTotal"]) == ("completed", 2, 2)


def test_a_fleet_sees_an_agent_that_ended_during_an_outage_end(outlived):
    """At its first look, and it never calls the agent lost."""
    with closing(Fleet("audit", backend=PostgresBackend(outlived))) as fleet:
        events = [(event.name, event.agent_id) for _ in range(3) for event in fleet.poll()]
    for agent_id in ("early", "late"):
        assert [name for name, about in events if about == agent_id] == ["started", "ended"]


def test_a_start_follows_the_end_that_waited(outlived):
    """An agent that is begun anew finds its former life completed, on this machine at least."""
    with closing(PostgresBackend(outlived)) as backend:
        create_context_monitor("early", run="audit", backend=backend).start().stop()
        assert types(backend, "early") == ["agent_started", "agent_stopped"] * 2
        assert backend.load("early").record.generation == 2


def test_a_check_says_what_waited_and_stores_it(outlived, tmp_path):
    """And the next one that nothing waits any more."""
    here = {"ULTRAMON_STATE_DIR": tmp_path / "state"}
    first, second = (run_process("backend", "check", outlived, **here) for _ in range(2))
    assert "ok       outbox: stored what waited on this machine since " in first.stdout
    assert ": states 2, messages 0" in first.stdout
    assert "ok       outbox: nothing waits on this machine" in second.stdout


def test_an_agent_whose_end_waits_behind_others_is_not_judged(outlived):
    """While another process delivers, and takes long, a fleet says nothing of the agent."""
    with (
        closing(PostgresBackend(outlived)) as backend,
        closing(Fleet("audit", backend=backend)) as fleet,
    ):
        with backend.outbox.only_one():
            assert not backend.deliver_kept(0.0)
            events = [event for _ in range(2) for event in fleet.poll()]
        assert [(event.name, event.agent_id) for event in events] == [("started", "early")]
        assert backend.is_kept("early")
        events = [(event.name, event.agent_id) for event in fleet.poll()]
        assert ("ended", "early") in events
        assert not backend.is_kept("early")


@pytest.fixture
def away_until_asked_again(network, direct):
    """Have the server refuse until an agent has tried to store something twice."""
    wait_until(lambda: answers(direct))  # a busy server may let a first connection wait
    with second_refusal(network.accept):
        yield network.refuse


PATIENT = ContextConfig(
    context_limit_tokens=10_000, store_timeout_seconds=3_600, save_interval_seconds=3_600
)


def test_what_ends_an_agents_work_waits_for_a_store_that_refuses(
    away_until_asked_again, backend, direct
):
    """The handoff and the end are stored when the call returns; what is done never waits."""
    monitor = create_context_monitor("a", PATIENT, backend=backend).start()
    monitor.plan(["one", "two"])
    monitor.update_heartbeat(patiently=True)
    away_until_asked_again()
    monitor.complete_task("one")
    monitor.hand_off(notes="half done")
    record = direct.load("a").record
    assert (record.handoff["notes"], record.handoff["completed"]) == ("half done", ["one"])
    assert monitor.stop("returned")
    assert not direct.load("a").record.active


def test_the_next_item_comes_when_the_last_one_is_stored(away_until_asked_again, backend, direct):
    """Also over a connection that is reset while the item is finished."""
    monitor = create_context_monitor("a", PATIENT, backend=backend)
    monitor.plan(["one", "two"])
    with Worker(monitor, None) as agent:
        items = agent.pending()
        assert next(items) == "one"
        away_until_asked_again()
        assert next(items) == "two"
        status = {task["name"]: task["status"] for task in direct.load("a").record.tasks}
        assert status["one"] == "done"


def test_a_store_that_stays_away_holds_no_item_back(network, backend, direct):
    """What is done is kept, here and on this machine's disk, and stored when the store is back."""
    config = ContextConfig(
        context_limit_tokens=10_000, store_timeout_seconds=0.2, save_interval_seconds=0.1
    )
    monitor = create_context_monitor("a", config, backend=backend)
    monitor.plan(["one", "two", "three"])
    with Worker(monitor, None) as agent:
        items = agent.pending()
        assert next(items) == "one"
        network.refuse()
        assert [next(items), next(items)] == ["two", "three"]
        assert backend.outbox.kept().states
        network.accept()
        wait_until(lambda: direct.load("a").record.tasks_completed == 2)
        assert list(items) == []
    assert direct.load("a").record.outcome == "completed"


def test_messages_kept_on_this_machine_arrive_in_order_and_once(network, backend, direct, tmp_path):
    """Those sent while others still wait get in line behind them."""
    network.refuse()
    for number in range(120):
        assert backend.queue.queue_message(Draft("boss", str(number)), now=START) == 0
    assert backend.outbox.kept().messages == 120
    assert outbox_file(tmp_path).stat().st_mode & 0o777 == 0o600
    network.accept()
    for number in range(120, 130):
        backend.queue.queue_message(Draft("boss", str(number)), now=START)
    wait_until(lambda: is_drained(backend))
    assert texts(direct) == [str(number) for number in range(130)]


def test_a_message_kept_under_a_clock_that_was_ahead_arrives_when_it_is_stored(
    network, backend, direct
):
    """It does not wait for the time that its host's clock showed when it was sent."""
    network.refuse()
    ahead = time.time() + 12 * 3_600
    assert backend.queue.queue_message(Draft("boss", "hello"), now=ahead) == 0
    network.accept()
    wait_until(lambda: is_drained(backend))
    assert [message.text for message in direct.queue.claim("boss", now=time.time())] == ["hello"]


def test_a_message_whose_receipt_is_lost_arrives_once(network, backend, direct):
    """It was stored, delivered and acknowledged before its sender could send it again."""
    direct.queue.queue_message(Draft("boss", "warm"), now=START)
    backend.queue.queue_message(Draft("boss", "up"), now=START)
    wait_until(lambda: is_drained(backend))
    network.lose_answer_to(b"COMMIT")
    assert backend.queue.queue_message(Draft("boss", "once"), now=START) == 0
    wait_until(lambda: "once" in texts(direct))
    network.refuse()
    claimed = {}

    def is_claimed():
        """A row that its sender's last transaction still locks is passed over."""
        claimed.update({message.text: message for message in direct.queue.claim("boss", now=START)})
        return "once" in claimed

    wait_until(is_claimed)
    for message in claimed.values():
        direct.queue.acknowledge(message.id, message.claim_token)
    network.accept()
    wait_until(lambda: is_drained(backend))
    assert texts(direct) == []
    assert direct.queue.claim("boss", now=START) == []


def test_a_state_whose_receipt_is_lost_is_stored_once(network, backend, direct):
    """Its owner comes again with the same events and is not refused."""
    record = start(backend)
    record.seq += 1
    network.lose_answer_to(b"COMMIT")
    with pytest.raises(DatabaseAwayError, match="the database does not answer"):
        backend.record(record, [make_event(n=1)], durable=True)
    record.seq += 1
    assert backend.record(record, [make_event(n=1), make_event(n=2)], durable=True)
    wait_until(lambda: is_drained(backend))
    assert [event["n"] for event in direct.events().events] == [1, 2]
    assert direct.load(AGENT).record.seq == 2


def work_and_end(monitor):
    monitor.plan(["one", "two"])
    monitor.complete_task("one")
    monitor.hand_off(notes="what was learned")
    monitor.stop("returned")


def assert_one_life(direct, agent_id):
    """Everything that was done is stored, and every notice was sent once."""
    record = direct.load(agent_id).record
    assert (record.outcome, record.generation, record.tasks_completed) == ("returned", 1, 1)
    assert record.handoff["notes"] == "what was learned"
    assert types(direct, agent_id) == ["agent_started", "handoff_ready", "agent_stopped"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_heard", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("on_error", ["log", "raise"])
@pytest.mark.parametrize("least", [1, 6], ids=["function", "statements"])
def test_a_start_that_is_cut_at_any_statement_is_tried_again(
    least, on_error, is_heard, network, backend, direct
):
    """Whether the server heard the last one or not: it is one start, and all that follows stays."""
    config = CONFIG.replace(on_error=on_error)
    backend.change_mark()
    if least > 1:  # a store of an earlier version
        direct.database.change("DROP FUNCTION ultramon.enter")
        start(backend, "first")
    network.requests = 0
    with create_context_monitor("undisturbed", CONFIG, backend=backend):
        statements = network.requests
    assert statements >= least
    for number in range(1, statements + 1):
        agent_id = f"cut-at-{number}"
        wait_until(lambda: answers(backend))
        network.cut_at(number, is_heard=is_heard)
        monitor = create_context_monitor(agent_id, config, backend=backend)
        try:
            monitor.start()
        except StateWriteError:
            assert on_error == "raise"
            wait_until(lambda: answers(backend))
            monitor.start()
        work_and_end(monitor)
        wait_until(lambda name=agent_id: is_over(direct, name))
        assert network.is_cut
        assert_one_life(direct, agent_id)


def is_over(backend, agent_id):
    with suppress(AgentNotFoundError):
        return not backend.load(agent_id).record.active
    return False


def test_a_start_whose_receipt_was_lost_comes_after_the_earlier_life_of_its_id_once(
    network, backend, direct
):
    """Generation and epoch are those of an undisturbed start."""
    for agent_id in ("calm", "cut"):
        create_context_monitor(agent_id, CONFIG, backend=direct).start().stop()
        wait_until(lambda: answers(backend))
        if agent_id == "cut":
            network.lose_answer_to(b"COMMIT")
        work_and_end(create_context_monitor(agent_id, CONFIG, backend=backend).start())
        wait_until(lambda name=agent_id: direct.load(name).record.outcome == "returned")
    assert network.is_cut
    calm, cut = (direct.load(agent_id).record for agent_id in ("calm", "cut"))
    assert (cut.generation, cut.epoch) == (calm.generation, calm.epoch) == (2, 2)
    assert types(direct, "cut") == types(direct, "calm")


def test_a_process_that_dies_after_a_start_whose_receipt_was_lost_leaves_nothing_behind(
    network, direct, work
):
    """What it did afterwards is stored by the next process of its host, under the same start."""
    worker = work(network.url, "doubt", "a")
    assert answer(worker) == "connected"
    network.lose_answer_to(b"COMMIT", then=network.refuse)
    worker.stdin.write("go\n")
    worker.stdin.flush()
    assert answer(worker) == "kept"
    os.kill(worker.pid, signal.SIGKILL)
    finish(worker)
    assert types(direct) == ["agent_started"]
    network.accept()
    with closing(PostgresBackend(network.url)) as successor:
        wait_until(lambda: is_drained(successor))
    assert_one_life(direct, "a")


def test_a_taken_over_agent_keeps_what_happened_before(network, backend, direct):
    """Of what its former owner kept, facts from before the take-over are stored, and no state."""
    record = start(backend)
    network.refuse()
    record.seq, record.current_task = 5, "old work"
    events = [make_event(n=1, at=START + 1), make_event(n=2, at=START + 100)]
    with pytest.raises(DatabaseAwayError):
        backend.record(record, events, durable=True)
    began = make_event(generation=2, at=START + 50)
    new = start(direct, takeover=True, at=START + 50)
    new.seq += 1
    direct.record(new, [began], durable=True)
    network.accept()
    wait_until(lambda: is_drained(backend))
    stored = {event_key(event) for event in direct.events().events}
    assert stored == {event_key(event) for event in (began, events[0])}
    assert direct.load(AGENT).record.current_task is None
    with pytest.raises(FencedError):
        backend.record(record, events, durable=True)


def test_a_state_that_is_no_longer_the_newest_changes_nothing(network, backend, direct):
    """What its owner stored meanwhile stays; of the old one events are stored, without a notice."""
    record = start(backend)
    register(AGENT, AGENT, backend=direct, clock=FakeClock())
    network.refuse()
    record.seq, record.current_task, record.measured_at = 1, "old work", START
    record.estimated_tokens, record.usage_ratio = 190_000, 0.95
    with pytest.raises(DatabaseAwayError):
        backend.record(record, [make_event(n=1)], durable=True)
    record.seq, record.current_task = 2, "new work"
    record.estimated_tokens, record.usage_ratio = 1_000, 0.005
    assert direct.record(record, [make_event(n=2)], durable=True)
    network.accept()
    wait_until(lambda: is_drained(backend))
    assert [event["n"] for event in direct.events().events] == [2, 1]
    assert direct.load(AGENT).record.current_task == "new work"
    assert texts(direct, AGENT) == []


def test_who_is_registered_when_it_arrives_is_told(network, backend, direct):
    """What was kept leads to the notices that it would lead to now."""
    record = start(backend)
    network.refuse()
    record.seq, record.measured_at = 1, START
    record.estimated_tokens, record.usage_ratio = 190_000, 0.95
    with pytest.raises(DatabaseAwayError):
        backend.record(record, [make_event(n=1)], durable=True)
    register(AGENT, AGENT, backend=direct, clock=FakeClock())
    network.accept()
    wait_until(lambda: is_drained(backend))
    assert ["190,000" in text for text in texts(direct, AGENT)] == [True]


def test_a_message_gets_in_line_while_another_process_passes_on_what_waits(
    network, backend, direct
):
    """It may not overtake those that were sent before it."""
    network.refuse()
    assert backend.queue.queue_message(Draft("boss", "first"), now=START) == 0
    with ExitStack() as held:
        wait_until(lambda: takes(held, backend.outbox.only_one()))
        network.accept()
        wait_until(lambda: answers(backend))
        assert backend.queue.queue_message(Draft("boss", "second"), now=START) == 0
        assert texts(direct) == []
    wait_until(lambda: is_drained(backend))
    assert texts(direct) == ["first", "second"]


def test_what_the_database_never_takes_is_kept_as_evidence(network, backend, direct, caplog):
    """It is counted and said, and keeps nothing else back."""
    network.refuse()
    for recipient in ("full", "boss"):
        backend.queue.queue_message(Draft(recipient, "hello"), now=START)
    with direct.database.transaction(durable=False) as connection:
        connection.execute(
            "INSERT INTO ultramon.messages (recipient, priority, text, facts, state, attempts,"
            " available_at, queued_at, expires_at) SELECT 'full', 2, 'n', '{}', 0, 0, %s, %s,"
            " %s FROM generate_series(1, 1000)",
            (START, START, START + 86_400),
        )
    network.accept()
    with caplog.at_level(logging.WARNING, "ultramon"):
        wait_until(lambda: is_drained(backend))
    assert texts(direct) == ["hello"]
    assert "1,000 messages wait" in caplog.text
    assert backend.outbox.kept() == (0, 0, 1, None)


@pytest.mark.parametrize("is_released", [True, False])
def test_a_successor_that_began_during_an_outage_needs_its_claim(
    network, backend, direct, caplog, is_released
):
    """Killed before it could store itself: it is stored later, unless its claim was released."""
    direct.claim_handoff("handoff-1", "first", AGENT, now=START)
    network.refuse()
    record = make_record(AGENT, 0, pid_started_at="gone", continues_handoff_id="handoff-1")
    if is_released:
        (claim,) = direct.pending_claims()
        assert direct.settle_claim(claim, make_event("first"))
    document = encode_state(record, "a test").decode("ascii")
    backend.outbox.put_state(AGENT, document, [make_event(generation=0)])
    with caplog.at_level(logging.WARNING, "ultramon"):
        network.accept()
        wait_until(lambda: is_drained(backend))
    assert direct.pending_claims() == []
    assert [agent.agent_id for agent in direct.list_agents()] == [AGENT] * (not is_released)
    assert backend.outbox.kept().refused == is_released
    assert ("first is offered again" in caplog.text) == is_released


def test_a_damaged_outbox_is_set_aside(network, backend, direct, tmp_path, caplog):
    """What follows is kept in a new file."""
    network.refuse()
    backend.queue.queue_message(Draft("boss", "lost to sight"), now=START)
    backend.close()
    path = outbox_file(tmp_path)
    path.write_bytes(b"no database" * 1_000)
    with caplog.at_level(logging.WARNING, "ultramon"):
        assert backend.queue.queue_message(Draft("boss", "kept"), now=START) == 0
    assert "set aside" in caplog.text
    assert list(path.parent.glob("*.corrupt-*"))
    network.accept()
    wait_until(lambda: is_drained(backend))
    assert texts(direct) == ["kept"]


def test_a_full_disk_during_an_outage_is_said_and_stops_no_agent(
    network, backend, direct, tmp_path, monkeypatch
):
    """A message that is kept nowhere is an error; a state waits in memory."""
    small = tmp_path / "small"
    small.mkdir(mode=0o700)
    requirements.require_root_mount(small, "size=256k,mode=700")
    try:
        monkeypatch.setenv("ULTRAMON_STATE_DIR", str(small))
        monitor = create_context_monitor("a", CONFIG, backend=backend).start()
        network.refuse()
        with open(small / "ballast", "wb", buffering=0) as ballast:
            with suppress(OSError):
                while ballast.write(b"x" * 4096):
                    pass
            with pytest.raises(StateWriteError):
                backend.queue.queue_message(Draft("boss", "hello"), now=START)
            fill(monitor, 0.9)
        network.accept()
        wait_until(lambda: "context_threshold_reached" in types(direct))
        os.unlink(small / "ballast")
        network.refuse()
        assert backend.queue.queue_message(Draft("boss", "again"), now=START) == 0
        network.accept()
        wait_until(lambda: is_drained(backend))
        monitor.stop()
        wait_until(lambda: not direct.load("a").record.active)
        assert texts(direct) == ["again"]
    finally:
        backend.close()
        requirements.unmount(small)


def test_two_processes_that_keep_at_once_share_one_file(network, direct, work, tmp_path):
    """Each finds the other's entries; all arrive once, whichever process sends them."""
    network.refuse()
    senders = [work(network.url, "keep", f"s{number}", 40) for number in range(3)]
    assert [finish(sender) for sender in senders] == [[[0] * 40]] * 3
    with closing(sqlite3.connect(outbox_file(tmp_path))) as stored:
        assert stored.execute("SELECT count(*) FROM entries").fetchone() == (120,)
    network.accept()
    both = [PostgresBackend(network.url) for _ in range(2)]
    wait_until(lambda: all([is_drained(one) for one in both]))
    for one in both:
        one.close()
    arrived = texts(direct)
    for number in range(3):
        own = [text for text in arrived if text.startswith(f"s{number} ")]
        assert own == [f"s{number} {n}" for n in range(40)]
    assert len(arrived) == 120
