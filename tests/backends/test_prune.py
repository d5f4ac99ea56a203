"""Pruning files: who comes alive in between stays, who is killed goes, nonsense is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.fleet_worker import end, reap, start_worker, tell

from ultramon import Fleet, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import AgentNotFoundError
from ultramon.state.record import encode_state
from ultramon.system.processes import MachineIdentity, this_machine
from ultramon.testing import FakeClock, fill, make_record
from ultramon.testing.clock import START

ELSEWHERE = MachineIdentity("elsewhere", "another-boot")
MONTH = 30 * 86_400.0
OVER = {
    "ended": {"active": False, "outcome": "completed"},
    "silent": {"machine": ELSEWHERE},
    "gone": {"pid_started_at": "a start that no process has"},
}


def store(backend, agent_id, **fields):
    backend.directory.prepare()
    path = Path(backend.directory.file(agent_id))
    path.write_bytes(encode_state(make_record(agent_id, **fields), agent_id))
    path.chmod(0o600)


def prune(backend, agents_before=START + 1, now=START + MONTH):
    return backend.prune(
        agents_before=agents_before,
        events_before=0.0,
        now=now,
        machine=this_machine(),
        dry_run=False,
    )


def start_again(backend):
    record = make_record("a", 2, at=START + MONTH)
    backend.start_agent(
        "a", lambda *stored: (record, []), takeover=True, now=START + MONTH, machine=this_machine()
    )


def beat_again(backend):
    assert backend.heartbeat([("a", 1)], START + MONTH) == []


def vanish(backend):
    backend.directory.remove("a")


def tear(backend):
    Path(backend.directory.file("a")).write_bytes(b"{")


@pytest.mark.parametrize(
    ("over", "happens", "left"),
    [
        ("ended", start_again, ["a"]),
        ("silent", start_again, ["a"]),
        ("gone", start_again, ["a"]),
        ("silent", beat_again, ["a"]),
        ("gone", vanish, []),
        ("silent", tear, ["a"]),
    ],
)
def test_what_happens_after_the_listing_counts(tmp_path, over, happens, left):
    """Prune looks again under the lock: what came alive since, or cannot be read, stays."""

    class Meanwhile(LocalBackend):
        def list_agents(self, run=None):
            listed = super().list_agents(run)
            happens(self)
            return listed

    store(LocalBackend(str(tmp_path)), "a", **OVER[over])
    backend = Meanwhile(str(tmp_path))
    assert prune(backend) == []
    assert [agent.agent_id for agent in LocalBackend(str(tmp_path)).list_agents()] == left
    backend.close()


@pytest.mark.parametrize("over", OVER)
def test_without_anything_in_between_it_is_pruned(tmp_path, over):
    """The same agents go when nothing happens; no file of theirs is left."""
    backend = LocalBackend(str(tmp_path))
    store(backend, "a", **OVER[over])
    assert prune(backend) == ["a"]
    assert os.listdir(backend.directory.folder) == []


def test_a_killed_worker_is_pruned_and_a_living_one_is_not(tmp_path):
    """The process of this machine decides, also when nothing was heard of either for a month."""
    backend = LocalBackend(str(tmp_path))
    fleet = Fleet("audit", backend=backend)
    workers = {name: start_worker(fleet, name, "obey", "stepped") for name in ("killed", "waits")}
    for worker in workers.values():
        tell(worker, "start")
    tell(workers["waits"], "waiting")
    tell(workers["waits"], "update_heartbeat")
    reap(workers["killed"])
    now = START + MONTH
    assert prune(backend, START, now) == []
    assert prune(backend, START + 1, now) == ["killed"]
    assert [agent.agent_id for agent in backend.list_agents()] == ["waits"]
    tell(workers["waits"], "stop")
    assert end(workers["waits"]) == 0
    backend.close()


def test_an_owner_that_lives_after_all_starts_again(tmp_path):
    """An agent that was silent for a month and pruned stores its state anew with its next save."""
    backend = LocalBackend(str(tmp_path))
    clock = FakeClock()
    monitor = create_context_monitor("a", backend=backend, clock=clock).start()
    assert prune(backend) == ["a"]
    with pytest.raises(AgentNotFoundError):
        backend.load("a")
    fill(monitor, 0.5)
    clock.advance(30)
    assert backend.load("a").record.usage_ratio == pytest.approx(0.5, abs=0.001)
    monitor.stop()
    backend.close()


def test_numbers_that_make_no_sense_stop_no_pruning(tmp_path):
    """A state with an absurd limit is kept, all others are judged."""
    backend = LocalBackend(str(tmp_path))
    store(backend, "absurd", machine=ELSEWHERE, lost_after_seconds=10**400)
    store(backend, "silent", **OVER["silent"])
    assert prune(backend) == ["silent"]
    assert [agent.agent_id for agent in backend.list_agents()] == ["absurd"]
