"""The programs of a soak: locks, seeds, results, and a short one from its beginning to its end."""

import os
import subprocess
import sys

import pytest
from helpers import ROOT

from benchmarks.soak.__main__ import found, table, write_results
from benchmarks.soak.checker import Verdict, judge
from benchmarks.soak.history import lines
from benchmarks.soak.world import World


def test_a_second_live_holder_is_noted(tmp_path):
    """A process that was forked with the lock holds it too, until it ends."""
    world = World(tmp_path, 1)
    world.make()
    os.close(world.lock("a", "first"))
    assert list(world.history) == []
    first = world.lock("a", "first")
    entrance, exit_ = os.pipe()
    if (child := os.fork()) == 0:
        os.close(exit_)
        os.read(entrance, 1)
        os._exit(0)
    os.close(entrance)
    os.close(first)
    os.close(world.lock("a", "second"))
    os.close(exit_)
    os.waitpid(child, 0)
    os.close(world.lock("a", "third"))
    [noted] = world.history
    assert (noted["fact"], noted["agent"]) == ("two_holders", "second")
    assert noted["holder"].startswith("first ")


def test_the_seed_decides_what_befalls_an_item(tmp_path):
    """In every process, whatever was decided before."""
    worlds = [World(tmp_path, seed) for seed in (1, 1, 2)]
    worlds[1].chance("item", "b").random()
    first, again, other = [world.chance("item", "a").random() for world in worlds]
    assert first == again != other


def test_results_keep_one_row_for_each_kind_of_store(tmp_path):
    """A later soak replaces the row of its own kind, and no other section."""
    path = tmp_path / "RESULTS.md"
    path.write_text("# Results\n\n## Soak\n\n| minutes |\n|---|\n| 10 |\n\n## Other\n\nstays\n")
    for on, seed in (("postgres", 1), ("files", 2), ("postgres", 3)):
        write_results(table(on, 2.0, seed, Verdict()), path)
    text = path.read_text()
    rows = [line.split(" | ")[:3] for line in text.splitlines() if line.startswith("| ")][2:]
    assert rows == [["| files", "2", "2"], ["| postgres", "2", "3"]]
    assert text.endswith("## Other\n\nstays\n")


def test_what_a_soak_did_is_counted_for_a_proof():
    """Items are tried as often as begun; a message that was handled was tried, noted or not."""
    facts = [
        {"fact": "given", "run": "run", "items": ["a", "b"]},
        {"fact": "began", "item": "a", "agent": "one"},
        {"fact": "lied", "item": "a", "agent": "one"},
        {"fact": "asked", "item": "a", "answer": "no"},
        {"fact": "began", "item": "a", "agent": "two"},
        {"fact": "asked", "item": "a", "answer": "yes"},
        {"fact": "killed", "pids": [7, 8], "by": "worker killed"},
        {"fact": "store_failed", "kind": "disk full"},
        {"fact": "sent", "keys": ["x", "y"], "refused": 1},
        {"fact": "handled", "keys": ["x", "z"]},
    ]
    counted = found(judge(facts, ["a"]))
    assert counted.operations == {"items": (2, 1, 1), "messages": (4, 2, 1)}
    assert counted.faults == {"lied": 1, "killed": 2, "disk full": 1}
    assert counted.broken[0].startswith("unfinished: run: no result")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_soak_on_files_breaks_nothing(tmp_path):
    """Workers, orchestrators, senders and receivers are killed; workers lie and checks raise."""
    command = [sys.executable, "-m", "benchmarks.soak", "--minutes", "0.05", "--items", "12"]
    command += ["--every-seconds", "0.4", "--seed", "7", "--keep", str(tmp_path / "soak")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    head, _, row = (line.strip("| ").split(" | ") for line in done.stdout.splitlines())
    shown = dict(zip(head, row, strict=True))
    assert int(shown["items"]) >= 12
    assert shown["lost"] == shown["false"] == shown["two holders"] == "0"
    assert any(True for _ in lines(tmp_path / "soak" / "history"))
