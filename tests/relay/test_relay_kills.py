"""Relays that are killed at any moment, alone or with their context."""

import os
import random
import signal

import pytest
from helpers.relayed import CHECK, RelayedProject, finish, marks_of

from ultramon.relay.runs.context_process import find_leader


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 3), pytest.param(2, 60, marks=pytest.mark.exhaustive)]
)
@pytest.mark.timeout(600)
def test_a_relay_killed_at_any_moment_loses_nothing(tmp_path, seed, kills):
    """A third of the kills take the context too; no two contexts are ever in the worktree."""
    chance = random.Random(seed)
    project = RelayedProject(tmp_path)
    items = [f"item {number}" for number in range(40 + 3 * kills)]
    given = [*project.items(*items), *CHECK, "--max-contexts", "9999"]
    contexts_killed = relays_killed = 0
    relay = project.begin("alone", *given, DIE_AT="1500")
    while True:
        code, result, told = finish(relay, seconds=240)
        if code != -signal.SIGKILL or relays_killed > 3 * kills:
            break
        relays_killed += 1
        leader = find_leader({**marks_of(project.state), "ULTRAMON_RUN": "job"})
        if leader is not None and chance.random() < 1 / 3:
            os.killpg(leader, signal.SIGKILL)
            contexts_killed += 1
        at = int(2 ** chance.uniform(8, 15)) if relays_killed < kills else 0
        begun = (project.state / "relay" / "job" / "relay.json").exists()
        start = project.resume if begun else lambda **env: project.begin("alone", *given, **env)
        relay = start(DIE_AT=str(at))
    assert code == 0, told
    counts = result["work"]["counts"]
    assert (counts["verified"], result["work"]["lost"]) == (len(items), [])
    done = project.lines()
    assert set(done) == set(items)
    assert len(done) - len(items) <= contexts_killed
    assert len(result["work"]["repeated"]) <= contexts_killed
    assert project.lines("together") == []
    assert relays_killed > kills / 4  # few items are done before the others can be
