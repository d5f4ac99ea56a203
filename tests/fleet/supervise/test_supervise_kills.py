"""Supervised runs whose workers and orchestrators are killed at random: all is done, once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections import Counter
from contextlib import suppress

import pytest
from helpers.run_history import read_events
from helpers.supervised import effects, spawner, start_orchestrator
from helpers.waiting import until

from ultramon import Fleet, open_backend

ITEMS = [f"item {number}" for number in range(40)]


@pytest.fixture
def start(tmp_path):
    """Start orchestrators; their groups are killed at the end of the test."""
    groups = []

    def start(mode, **given):
        process = start_orchestrator(tmp_path, mode, ITEMS, **given)
        groups.append(process.pid)
        return process

    yield start
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def run_to_its_end(start, tmp_path, seed, *, orchestrators, workers, mode="obey"):
    """Start the same orchestrator until it ends by itself; return its result and its kills.

    Args:
        start: The fixture.
        tmp_path: Where to note who was killed.
        seed: Of the moments.
        orchestrators: How many of them are to be killed.
        workers: How many of them are to be killed, of all orchestrators.
        mode: Of the workers.
    """
    chance = random.Random(seed)
    victims = json.dumps([str(tmp_path / "victim"), workers])
    for kills in range(orchestrators + 1):
        is_victim = kills < orchestrators
        process = start(
            mode,
            die_at=int(2 ** chance.uniform(8, 15)) if is_victim else "",
            victims=victims,
            seed=seed,
            workers=3,
            max_restarts=100,
            is_async=seed % 2 == 1,
        )
        output, _ = process.communicate(timeout=120)
        if process.returncode == 0:
            return json.loads(output), kills
        assert is_victim
        assert process.returncode == -signal.SIGKILL
    raise AssertionError("it did not end")


def check(tmp_path, result, kills):
    """Assert that nothing is lost, and that a kill repeated one item at most."""
    assert result["ok"], result
    assert result["counts"]["verified"] == result["counts"]["assigned"] == len(ITEMS)
    assert (result["lost"], result["left"]) == ([], [])
    done = Counter(effects(tmp_path))
    assert set(done) == set(ITEMS)
    assert done.total() - len(ITEMS) <= kills
    backend = open_backend()
    events = read_events(backend, "job")
    backend.close()
    for kind in ("agent_assigned", "context_closed"):
        seen = Counter(event["agentId"] for event in events if event["type"] == kind)
        assert set(seen.values()) == {1}
        assert len(seen) == len(result["contexts"])


def many(kills):
    """Return seeds with which a test kills hundreds of processes, at as many moments."""
    return [pytest.param(seed, kills, marks=pytest.mark.exhaustive) for seed in range(43)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seed", "kills"), [(0, 3), *many(5)])
def test_killed_orchestrators_and_workers_lose_nothing(seed, kills, start, tmp_path):
    """Each call under the same run continues where the killed one was."""
    result, ends = run_to_its_end(start, tmp_path, seed, orchestrators=kills, workers=kills)
    check(tmp_path, result, ends + result["killed"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seed", "kills"), [(1, 5), *many(10)])
def test_killed_workers_lose_nothing(seed, kills, start, tmp_path):
    """Before their first save, in an item, while handing off, and after it."""
    result, _ = run_to_its_end(start, tmp_path, seed, orchestrators=0, workers=kills)
    check(tmp_path, result, result["killed"])
    assert len(result["repeated"]) <= result["killed"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seed", "kills"), [(1, 5), *many(10)])
def test_killed_orchestrators_alone_repeat_nothing(seed, kills, start, tmp_path):
    """Their contexts continue; one that starts too late finds that its work was put back."""
    result, _ = run_to_its_end(start, tmp_path, seed, orchestrators=kills, workers=0)
    check(tmp_path, result, 0)
    assert result["killed"] == 0


@pytest.mark.parametrize(
    "moment",
    [
        "call _store",
        "return track_content",
        "call announce",
        "return stop",
        *(
            pytest.param(moment, marks=pytest.mark.exhaustive)
            for moment in (
                "call start",
                "return _store",
                "call track_content",
                "call hand_off",
                "return hand_off",
                "call stop",
            )
        ),
    ],
)
def test_a_kill_at_a_moment_that_matters_loses_nothing(moment, tmp_path):
    """Around the first save, in an item, around the handoff and around the end."""
    start, dying = spawner(tmp_path, "obey"), spawner(tmp_path, "obey", DIE_IN=moment)
    check_one_death(tmp_path, lambda job: (dying if job.agent_id == "job.1" else start)(job))


def test_a_kill_before_the_program_begins_loses_nothing(tmp_path):
    """The process is there, and never becomes an agent."""
    start = spawner(tmp_path, "obey")

    def spawn(job):
        if job.agent_id != "job.1":
            return start(job)
        return subprocess.Popen(["sh", "-c", "kill -KILL $$"])

    check_one_death(tmp_path, spawn)


def check_one_death(tmp_path, spawn):
    """Supervise contexts of which the first one is killed, and assert that nothing is lost."""
    items = ITEMS[:12]
    fleet = Fleet("job", poll_interval_seconds=0.2)
    processes = []

    def keep(job):
        processes.append(spawn(job))
        return processes[-1]

    result = fleet.supervise(keep, items, verify=lambda item: item in effects(tmp_path))
    assert (result.ok, result.counts.verified, result.lost) == (True, len(items), ())
    codes = [process.returncode for process in processes]
    assert (codes[0], set(codes[1:])) == (-signal.SIGKILL, {0})
    assert len(effects(tmp_path)) - len(items) <= len(result.repeated) <= 1
    assert set(effects(tmp_path)) == set(items)


def test_a_host_that_dies_again_and_again_loses_nothing(start, tmp_path):
    """Orchestrator and workers at once: the next one finds out from records alone."""
    for pieces in (1, 12, 33):
        process = start("obey", workers=3)
        until(lambda pieces=pieces: len(effects(tmp_path)) >= pieces, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    result, _ = run_to_its_end(start, tmp_path, 0, orchestrators=0, workers=0)
    check(tmp_path, result, result["killed"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_kills_with_a_database_as_the_store(seed, start, tmp_path, monkeypatch, postgres_store):
    """The journal of another backend tells the same."""
    monkeypatch.setenv("ULTRAMON_BACKEND", postgres_store)
    result, kills = run_to_its_end(start, tmp_path, seed, orchestrators=3, workers=3)
    check(tmp_path, result, kills + result["killed"])
