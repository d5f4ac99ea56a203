"""Supervised runs whose workers and orchestrators are killed at random: all is done, once."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from helpers.run_history import read_events
from helpers.supervised import effects, start_orchestrator

from ultramon import open_backend

ITEMS = [f"item {number}" for number in range(40)]


def run_to_its_end(tmp_path, seed, *, orchestrator_kills, worker_kills):
    """Start the same orchestrator until it ends by itself; return its result and its kills."""
    chance = random.Random(seed)
    victims = json.dumps([str(tmp_path / "victim"), worker_kills])
    kills = 0
    while True:
        is_victim = kills < orchestrator_kills
        process = start_orchestrator(
            tmp_path,
            "obey",
            ITEMS,
            die_at=int(2 ** chance.uniform(8, 15)) if is_victim else "",
            victims=victims,
            seed=seed,
            workers=3,
            max_restarts=100,
        )
        output, _ = process.communicate(timeout=25)
        if process.returncode == 0:
            return json.loads(output), kills
        assert process.returncode == -9, output
        kills += 1


def check(tmp_path, result, kills):
    """Nothing is lost; a kill costs one item at most, and what is repeated is named."""
    counts = result["counts"]
    assert result["ok"], result
    assert counts["assigned"] == counts["verified"] == len(ITEMS)
    assert result["lost"] == result["left"] == () or result["lost"] == result["left"] == []
    done = Counter(effects(tmp_path))
    assert set(done) == set(ITEMS)
    assert done.total() - len(ITEMS) <= kills
    backend = open_backend()
    events = read_events(backend, "job")
    backend.close()
    assigned = Counter(event["agentId"] for event in events if event["type"] == "agent_assigned")
    assert set(assigned.values()) == {1}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(3, 40))],
)
def test_killed_orchestrators_and_workers_lose_nothing(seed, tmp_path):
    """Each call under the same run goes on where the killed one was."""
    result, kills = run_to_its_end(tmp_path, seed, orchestrator_kills=5, worker_kills=5)
    killed_workers = result["killed"]
    check(tmp_path, result, kills + killed_workers)
