"""A fleet under faults: killed in a handler, a refusing store, garbage, crowds, many kills."""

from __future__ import annotations

import logging
import os
import random
import signal
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from helpers.fleet_orchestrator import Orchestrators
from helpers.fleet_worker import reap, start_worker
from helpers.run_history import History, read_events

from ultramon import Fleet, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import StateWriteError
from ultramon.state.record import encode_state
from ultramon.system.processes import MachineIdentity
from ultramon.testing import FakeClock, fill, make_record
from ultramon.testing.clock import START

ELSEWHERE = MachineIdentity("elsewhere", "another-boot")


@pytest.fixture
def backend(tmp_path):
    backend = LocalBackend(str(tmp_path / "state"))
    yield backend
    backend.close()


def names(events):
    return [event.name for event in events]


@pytest.mark.parametrize("kills", [15, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_an_orchestrator_killed_in_a_handler_loses_nothing(tmp_path, backend, kills):
    """What it had in hand comes again to the next one, at once; what it had finished does not."""
    log = tmp_path / "delivered"
    orchestrators = Orchestrators(tmp_path / "state", log)
    chance = random.Random(kills)
    clock = FakeClock()
    for number in range(kills):
        monitor = create_context_monitor(f"a-{number}", run="audit", backend=backend, clock=clock)
        with monitor:
            fill(monitor, chance.choice([0.5, 0.75, 0.9]))
        word, pid = orchestrators.start(chance.choice([0, 0, 1, 2]))
        if word == "handling":
            os.kill(int(pid), signal.SIGKILL)
            assert orchestrators.ended() == -signal.SIGKILL
        else:
            assert orchestrators.ended() == 0
    assert orchestrators.start(10**6)[0] == "delivered"
    assert orchestrators.ended() == 0
    orchestrators.close()

    delivered = [line.split()[0] for line in log.read_text().splitlines()]
    wanted = [
        event["eventId"]
        for event in read_events(backend, "audit")
        if event["type"] != "context_relaxed"
    ]
    assert list(dict.fromkeys(delivered)) == wanted, "in the order of the journal"
    assert len(delivered) - len(wanted) <= kills


def test_a_store_that_refuses_does_not_end_a_running_fleet(tmp_path, caplog):
    """The trouble is logged once, and what happened meanwhile is delivered when it is over."""

    class Refusing(LocalBackend):
        refusals = 5

        def subscribe(self, *args, **given):
            if self.refusals:
                self.refusals -= 1
                raise StateWriteError("journal", "no space left on device")
            return super().subscribe(*args, **given)

    backend = Refusing(str(tmp_path))
    monitor = create_context_monitor("a", backend=backend).start()
    fleet = Fleet(backend=backend, poll_interval_seconds=0.001)
    with caplog.at_level(logging.WARNING, "ultramon"):
        for event in fleet.watch():
            assert event.name == "started"
            fleet.stop()
    assert caplog.text.count("no space left on device") == 1
    monitor.stop()
    backend.close()


def test_what_a_busy_journal_did_not_take_is_stored_by_the_fleet(tmp_path, backend):
    """A crossing waits in the state of its agent; it is delivered once, also after a later save."""
    clock = FakeClock()
    fleet = Fleet(backend=backend, clock=clock)
    monitor = create_context_monitor("a", backend=backend, clock=clock).start()
    fleet.poll()
    busy = sqlite3.connect(tmp_path / "state" / "journal.sqlite3", isolation_level=None)
    busy.execute("BEGIN IMMEDIATE")
    fill(monitor, 0.9)
    busy.execute("ROLLBACK")
    busy.close()
    assert backend.load("a").record.pending
    assert names(fleet.poll()) == ["force_return"]
    clock.advance(30)
    assert backend.load("a").record.pending is None
    monitor.stop()
    assert names(fleet.poll()) == ["ended"]


class CountingDirectory(StateDirectory):
    """Knows how often each state was read."""

    __slots__ = ("reads",)

    def __init__(self, path):
        super().__init__(path)
        self.reads = Counter()

    def read(self, agent_id):
        self.reads[agent_id] += 1
        return super().read(agent_id)

    def read_head(self, agent_id, mark):
        self.reads[agent_id] += 1
        return super().read_head(agent_id, mark)

    def read_head(self, agent_id, mark):
        self.reads[agent_id] += 1
        return super().read_head(agent_id, mark)


def crowd(backend, count):
    """Write the states of many agents that beat on another machine."""
    backend.directory.prepare()
    for number in range(count):
        record = make_record(f"a-{number:05}", machine=ELSEWHERE, run="audit")
        path = backend.directory.file(record.agent_id)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(encode_state(record, path))


def test_only_states_that_changed_are_read(tmp_path):
    """A poll opens what differs since the last one, and nothing while all is quiet."""
    backend = LocalBackend(str(tmp_path))
    crowd(backend, 50)
    backend.directory = CountingDirectory(str(tmp_path))
    clock = FakeClock()
    fleet = Fleet("audit", backend=backend, clock=clock)
    fleet.poll()
    assert len(backend.directory.reads) == 50
    backend.directory.reads.clear()
    for _ in range(5):
        fleet.poll()
    assert backend.directory.reads == {}
    record = backend.load("a-00007").record
    record.seq += 1
    backend.record(record, [], durable=False)
    backend.directory.reads.clear()
    fleet.poll()
    assert backend.directory.reads == {"a-00007": 1}
    backend.close()


def test_a_process_is_looked_up_once_for_all_its_agents(tmp_path, monkeypatch):
    """Many agents of one process cost one look at the process table per poll, alive or lost."""
    opened, really_open = [], os.open

    def noting_open(path, *arguments, **options):
        opened.append(path)
        return really_open(path, *arguments, **options)

    backend, clock = LocalBackend(str(tmp_path)), FakeClock()
    for number in range(5):
        create_context_monitor(f"a-{number}", backend=backend, clock=clock, run="audit").start()
    fleet = Fleet("audit", backend=backend, clock=FakeClock())
    monkeypatch.setattr(os, "open", noting_open)
    for seconds in (0, 700):
        fleet._clock.advance(seconds)
        fleet.poll()
        assert opened.count(f"/proc/{os.getpid()}/stat") == 1
        opened.clear()
    monkeypatch.undo()
    fleet.close()
    backend.close()


def test_garbage_in_the_directory_stops_nobody(tmp_path, backend, caplog):
    """What cannot be read is said once; everybody else is looked after all the same."""
    monitor = create_context_monitor("good", backend=backend, clock=FakeClock()).start()
    folder = Path(backend.directory.folder)
    state = (folder / "good.json").read_bytes()
    (folder / "torn.json").write_bytes(state[:100])
    (folder / "empty.json").write_bytes(b"")
    (folder / "other.json").write_bytes(state)
    (folder / "a b.json").write_bytes(state)
    (folder / "huge.json").write_bytes(b" " * (2 << 20))
    (folder / "folder.json").mkdir()
    (folder / "link.json").symlink_to(folder / "good.json")
    os.mkfifo(folder / "pipe.json")
    nonsense = make_record("nonsense", tasks=[7, {"name": None}], usage_ratio=-1.0, pid=2**22 + 1)
    newer = make_record("newer", schema=99, machine=ELSEWHERE)
    for record in (nonsense, newer):
        path = folder / f"{record.agent_id}.json"
        path.write_bytes(encode_state(record, str(path)))
    if os.geteuid() == 0:
        (folder / "foreign.json").write_bytes(state)
        os.chown(folder / "foreign.json", 65534, 65534)
    fleet = Fleet(backend=backend, clock=FakeClock())
    with caplog.at_level(logging.WARNING, "ultramon"):
        seen = [event for _ in range(3) for event in fleet.poll()]
    assert [(event.name, event.agent_id) for event in seen] == [
        ("started", "good"), ("lost", "nonsense"), ("ended", "nonsense"),
    ]  # fmt: skip
    for name in ("torn", "empty", "other", "huge", "folder", "link", "pipe"):
        assert caplog.text.count(f"agent {name} cannot be read") == 1, name
    assert {state.agent_id for state in fleet.get_states()} == {"good", "newer"}
    monitor.stop()


@pytest.mark.slow
def test_ten_thousand_agents_are_looked_after(tmp_path):
    """All are listed, each that falls silent is stale once, and a quiet poll reads none."""
    backend = LocalBackend(str(tmp_path))
    crowd(backend, 10_000)
    clock = FakeClock()
    fleet = Fleet("audit", backend=backend, clock=clock)
    assert fleet.poll() == []
    assert len(fleet.get_states()) == 10_000
    for number in range(0, 10_000, 2):
        backend.directory.beat(f"a-{number:05}", START + 46)
    clock.advance(46)
    stale = fleet.poll()
    assert set(names(stale)) == {"stale"}
    assert sorted(event.agent_id for event in stale) == [
        f"a-{number:05}" for number in range(1, 10_000, 2)
    ]
    backend.directory = CountingDirectory(str(tmp_path))
    assert fleet.poll() == []
    assert backend.directory.reads == {}
    backend.close()


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_workers_killed_at_random_lose_no_item(tmp_path, backend, kills):
    """Successors do all that was left; each kill costs at most one item done twice."""
    effects = tmp_path / "effects"
    crew = Crew(backend, effects, kills)
    try:
        planned = crew.run()
    finally:
        crew.close()
    backend.close()
    history = History(tmp_path / "state", "audit").check(planned)
    done = Counter(effects.read_text().split())
    assert set(done) == set(planned)
    assert crew.kills == kills
    assert done.total() - len(done) <= kills
    lost = [event for event in history.events if event["type"] == "agent_lost"]
    assert 0 < len(lost) <= kills, "whoever had stopped when it was killed is not lost"
    assert {event["exit"]["signal"] for event in lost} == {"SIGKILL"}


class Crew:
    """Some workers at a time; whenever one tells something, one may be killed."""

    def __init__(self, backend, effects, kills):
        self.kills = 0
        self._wanted_kills = kills
        self._chance = random.Random(kills)
        self._effects = effects
        self._fleet = Fleet("audit", backend=backend, poll_interval_seconds=0.02)
        self._work = {}
        self._running = {}
        self._chains = 4
        self._items_each = 12 + 4 * kills

    def run(self):
        planned = []
        for chain in range(self._chains):
            items = [f"{chain}-{number}" for number in range(self._items_each)]
            planned += items
            self._start(f"w-{chain}", ",".join(items))
        going = self._chains
        for event in self._fleet.watch():
            if event.name == "ended":
                self._running.pop(event.agent_id).communicate()
                going -= event.outcome == "completed"
                if event.state is None:
                    # Killed before it had a state, perhaps after its claim: the same one again.
                    self._start(event.agent_id, self._work[event.agent_id])
            if event.name == "handoff_ready":
                given = event.handoff.model_dump_json(by_alias=True)
                self._start(f"{event.agent_id}x", given)
            if going == 0:
                self._fleet.stop()
            self._kill_somebody()
        return planned

    def close(self):
        for process in self._running.values():
            reap(process)

    def _start(self, agent_id, given):
        self._work[agent_id] = given
        process = start_worker(
            self._fleet, agent_id, "items", self._effects, given, self._chance.randint(4, 9)
        )
        self._running[agent_id] = process
        self._fleet.attach(agent_id, process)

    def _kill_somebody(self):
        living = [process for process in self._running.values() if process.poll() is None]
        if living and self.kills < self._wanted_kills and self._chance.random() < 0.6:
            self._chance.choice(living).kill()
            self.kills += 1
