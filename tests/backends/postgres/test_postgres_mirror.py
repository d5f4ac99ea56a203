"""What a machine stores of its agents, as a user who may do nothing else."""

from __future__ import annotations

import time

import pytest
from helpers.postgres_roles import login, server  # noqa: F401

from ultramon import ContextConfig, create_context_monitor, register, unregister
from ultramon.backends.base import Save
from ultramon.backends.postgres.admin.roles import ADMIN, MACHINE, WRITER
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.backends.postgres.store.mirror import MirroredState, Reading
from ultramon.errors import AgentMirroredError, ConfigurationError, StateWriteError
from ultramon.notices.message import Draft
from ultramon.state.liveness import ALIVE
from ultramon.state.observed import observe
from ultramon.system.processes import MachineIdentity, this_machine
from ultramon.testing.contract.states import prune, start
from ultramon.testing.samples import make_event, make_record

MACHINE_ID = "m0123abcd"
AGENT = f"{MACHINE_ID}-1"
CONFIG = ContextConfig(context_window_tokens=200_000)
ELSEWHERE = MachineIdentity(MACHINE_ID, MACHINE_ID)


@pytest.fixture
def stores():
    """Open stores, and close them in the end."""
    opened = []

    def open_store(url):
        opened.append(PostgresBackend(url))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def mirror(login, stores):
    """The rows of a machine that is entered."""
    mirror = stores(login(MACHINE)).mirror(MACHINE_ID)
    assert mirror.announce(name=None, sent_fields=(), retention_seconds=3600.0) == 0
    return mirror


def state(agent_id=AGENT, seq=1, **fields):
    """A state of an agent that is alive elsewhere."""
    at = time.time()
    values = {"pid": None, "pid_started_at": None, "machine": ELSEWHERE, "measured_at": at}
    record = make_record(agent_id, at=at, seq=seq, **(values | fields))
    return MirroredState(record, at)


def reading(at, used_tokens, **fields):
    """A reading of the agent."""
    return Reading(AGENT, at, "claude-code", "opus", 1, "normal", used_tokens, 200_000, **fields)


def test_a_batch_is_seen_by_all_and_stored_once(mirror, postgres_store, stores):
    """State, beat, event, readings; a batch that is sent again changes nothing."""
    at = time.time()
    batch = (
        [state(estimated_tokens=1_000)],
        [make_event(AGENT, "agent_started", at=at)],
        [reading(at - 1, 900), reading(at, 1_000, output_tokens=50, cost_usd=0.5)],
    )
    assert [mirror.store(7, *batch), mirror.store(7, *batch), mirror.store(3, *batch)] == [7] * 3
    assert mirror.announce(name="attic", sent_fields=["labels"], retention_seconds=None) == 7
    store = stores(postgres_store)
    [stored] = store.list_agents()
    assert (stored.agent_id, stored.record.estimated_tokens) == (AGENT, 1_000)
    seen = observe(stored.record, stored.heartbeat_at, time.time(), this_machine())
    assert seen.liveness.verdict == ALIVE
    assert [event["type"] for event in store.committed_events().events] == ["agent_started"]
    assert [point.used_tokens for point in store.history(AGENT)] == [1_000]
    assert mirror.counts() == {
        "readings": 2,
        "reading_days": 1,
        "events": 1,
        "agents": 1,
        "machines": 1,
    }


def test_days_are_summed_by_agent_and_model(mirror, server):
    """Used tokens are added up, crossings and compactions counted; cleared windows are not."""
    at = 1_795_000_000.0
    crossing = [
        make_event(AGENT, "context_threshold_reached", at=at, level=level)
        for level in ("warning", "critical")
    ]
    epochs = [
        make_event(AGENT, "context_epoch_started", at=at, epoch=epoch, reason=reason)
        for epoch, reason in ((2, "compaction"), (3, "clear"), (4, "fall"))
    ]
    used = {"input_tokens": 10, "cache_read_tokens": 1_000, "output_tokens": 5, "cost_usd": 0.25}
    states = [state(host="claude-code", model="opus")]
    mirror.store(1, states, crossing, [reading(at, 900, **used), reading(at + 1, 800)])
    mirror.store(2, [], [*crossing, *epochs], [reading(at + 2, 1_000, **used)])
    mirror.store(3, [], [], [reading(at + 86_400, 10)._replace(model=None)])
    found = server(
        "SELECT day::text, model, host, readings, peak_tokens, input_tokens, cache_read_tokens,"
        " cache_write_tokens, output_tokens, cost_usd, crossings, compactions"
        " FROM ultramon.reading_days ORDER BY day"
    )
    assert found == [
        ("2026-11-18", "opus", "claude-code", 3, 1_000, 20, 2_000, None, 10, 0.5, 2, 2),
        ("2026-11-19", "", "claude-code", 1, 10, None, None, None, None, None, 0, 0),
    ]


def test_an_older_state_changes_nothing(mirror, postgres_store, stores):
    """The newest state stays, and beats of agents that are not stored are passed over."""
    mirror.store(1, [state(seq=5, estimated_tokens=5)])
    mirror.store(2, [state(seq=4, estimated_tokens=4)], beats=[(f"{MACHINE_ID}-9", 1, 1.0)])
    [stored] = stores(postgres_store).list_agents()
    assert stored.record.estimated_tokens == 5


@pytest.mark.parametrize(
    "batch",
    [
        ([state("boss")],),
        ([], [make_event("boss")]),
        ([], [make_event(AGENT, key="boss/1/1/agent_stale//0")]),
        ([], [], [reading(1.0, 1)._replace(agent_id="boss")]),
    ],
)
def test_rows_of_others_are_refused_as_a_whole(mirror, batch):
    """Nothing of such a batch is stored, and its position may be used again."""
    with pytest.raises(ConfigurationError, match=f"must be one that begins with {MACHINE_ID}-"):
        mirror.store(1, *batch)
    assert mirror.store(1, [state()]) == 1


def test_a_machine_that_is_not_entered_stores_nothing(mirror):
    """As after it erased its rows."""
    mirror.store(1, [state()])
    mirror.erase()
    with pytest.raises(StateWriteError, match="m0123abcd is not entered"):
        mirror.store(2, [state()])


def test_the_id_of_another_machine_is_refused(mirror, login, stores):
    """It belongs to the user who entered it first."""
    other = stores(login(MACHINE)).mirror(MACHINE_ID)
    with pytest.raises(StateWriteError, match="belongs to another user"):
        other.announce(name=None, sent_fields=(), retention_seconds=None)
    with pytest.raises(StateWriteError, match="is not entered"):
        other.store(1, [state()])


def test_an_erased_machine_leaves_nothing(mirror, postgres_store, stores):
    """Messages to its agents go too, and who looks again learns that its agents are gone."""
    store = stores(postgres_store)
    mirror.store(1, [state()], [make_event(AGENT)], [reading(time.time(), 1)])
    seen = {}
    assert [agent.agent_id for agent in store.changes(None, seen).changed] == [AGENT]
    store.queue.patience_seconds = 30.0
    store.queue.queue_message(Draft(AGENT, "hello"), now=time.time())
    assert mirror.erase() == {
        "messages": 1,
        "readings": 1,
        "reading_days": 1,
        "events": 1,
        "agents": 1,
        "machines": 1,
    }
    assert store.changes(None, seen).removed == [AGENT]
    assert store.list_agents() == []


def test_old_rows_go_when_the_machine_says(mirror, postgres_store, stores):
    """After its own time: agents by their last beat, the others by their own time."""
    now = time.time()
    old = now - 7200
    later = f"{MACHINE_ID}-2"
    quiet = state(last_heartbeat=old)._replace(heartbeat_at=old)
    events = [make_event(AGENT, at=old), make_event(later, at=now)]
    mirror.store(1, [quiet, state(later)], events, [reading(old, 1), reading(now, 2)])
    deleted = mirror.prune(now)
    assert {key: deleted[key] for key in ("agents", "readings", "events")} == {
        "agents": 1,
        "readings": 1,
        "events": 1,
    }
    assert [agent.agent_id for agent in stores(postgres_store).list_agents()] == [later]


def test_messages_are_claimed_and_acknowledged(mirror, postgres_store, stores):
    """By the queue as it is: a machine sees those to its own agents."""
    sender, own = stores(postgres_store), None
    sender.queue.patience_seconds = 30.0
    for recipient in (AGENT, "boss"):
        sender.queue.queue_message(Draft(recipient, "hello"), now=time.time())
    own = stores(mirror.database.address.conninfo.partition("?")[0] + _schema(postgres_store))
    assert own.queue.claim("boss", now=time.time()) == []
    [message] = own.queue.claim(AGENT, now=time.time())
    assert own.queue.acknowledge(message.id, message.claim_token)
    assert sender.queue.peek(AGENT, now=time.time()) == []


def refusals(store):
    """What an agent, its parent and an orchestrator do with an agent that is not theirs."""
    record = make_record(AGENT, estimated_tokens=9)
    return {
        "start": lambda: start(store, AGENT),
        "takeover": lambda: start(store, AGENT, takeover=True),
        "monitor": lambda: create_context_monitor(
            AGENT, CONFIG, backend=store, takeover=True
        ).start(),
        "record": lambda: store.record(record, [make_event(AGENT)], durable=True),
        "register": lambda: register(AGENT, AGENT, backend=store),
        "unregister": lambda: unregister(AGENT, AGENT, backend=store),
        "request": lambda: store.put_request(AGENT, {"deadline": 1.0}),
    }


@pytest.mark.parametrize("role", [WRITER, ADMIN, "owner"])
@pytest.mark.parametrize("verb", refusals(None))
def test_only_its_machine_writes_a_mirrored_agent(
    mirror, login, postgres_store, stores, role, verb
):
    """Others learn whose it is, also the owner of the tables, who passes row security."""
    mirror.store(1, [state(estimated_tokens=5)])
    store = stores(postgres_store if role == "owner" else login(role))
    before = _rows(postgres_store, stores)
    with pytest.raises(AgentMirroredError, match=f"mirrored from machine {MACHINE_ID}: only that"):
        refusals(store)[verb]()
    assert _rows(postgres_store, stores) == before
    assert mirror.store(2, [state(seq=2, estimated_tokens=6)]) == 2


@pytest.mark.parametrize("role", [WRITER, "owner"])
def test_a_beat_for_a_mirrored_agent_is_refused(mirror, login, postgres_store, stores, role):
    """It would make an agent look alive that its machine lost."""
    mirror.store(1, [state()])
    store = stores(postgres_store if role == "owner" else login(role))
    assert store.heartbeat([(AGENT, 1)], time.time() + 60) == [AGENT]


def test_a_step_with_a_mirrored_agent_stores_the_others(mirror, login, stores):
    """One refusal, in its place."""
    mirror.store(1, [state()])
    store = stores(login(WRITER))
    own = start(store, "scout-1")
    saves = [Save(make_record(AGENT), [], True), Save(make_record("scout-1", seq=9), [], True)]
    refused, stored = store.record_together(saves)
    assert (type(refused), stored) == (AgentMirroredError, None)
    assert store.load(own.agent_id).record.seq == 9


def test_an_administrator_prunes_what_machines_left_behind(mirror, login, stores):
    """A writer may not; ended agents of a machine that is gone for good can be deleted."""
    at = time.time() - 7200
    ended = state(active=False, phase="ended", last_heartbeat=at, last_activity=at)
    mirror.store(1, [ended._replace(heartbeat_at=at)])
    with pytest.raises(StateWriteError, match="permission denied"):
        prune(stores(login(WRITER)), time.time() - 60, now=time.time())
    assert prune(stores(login(ADMIN)), time.time() - 60, now=time.time()) == [AGENT]


def test_an_observer_may_say_that_a_mirrored_agent_is_lost(mirror, login, stores):
    """Events about it are facts that others see; its state stays as it is."""
    mirror.store(1, [state()])
    store = stores(login(WRITER))
    store.append_following(AGENT, lambda known: [make_event(AGENT, "agent_lost")])
    assert [event["type"] for event in store.committed_events().events] == ["agent_lost"]


def _rows(url, stores):
    store = stores(url)
    [agent] = store.list_agents()
    events = [event["type"] for event in store.committed_events().events]
    return agent.record.estimated_tokens, agent.heartbeat_at, events, store.get_request(AGENT)


def _schema(url):
    return "?" + url.partition("?")[2]
