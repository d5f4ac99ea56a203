"""A relay that merges, with it, its workers and its git killed: nothing lost, nothing red."""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.relayed import finish, marks_of
from helpers.waiting import until

from ultramon.system.process_search import processes_with

BRANCH = "ultramon/job"
NAMES = [*(f"{number}" for number in range(8)), "p-1", "p-2", "q-1", "q-2"]
"""The last four are two pairs that write the end of one file."""
KILLS = 4
SECONDS = 240


def children_of(pid, name):
    """The processes of a name that another one has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, _, rest = path.read_text().rpartition(")")
            if head.partition("(")[2] == name and int(rest.split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


def kill_one(rng, relay, project):
    """Kill what is chosen as soon as there is one; return what it was."""
    kind = rng.choice(["relay", "context", "git"])
    skipped = rng.randrange(12)
    victims = []

    def is_there():
        nonlocal skipped
        if relay.poll() is not None:
            return True
        if kind == "relay":
            found = [relay.pid] if processes_with(marks_of(project.state)) else []
        elif kind == "context":
            found = [one.pid for one in processes_with(marks_of(project.state))]
        else:
            found = children_of(relay.pid, "git")
        if found and skipped:
            skipped -= 1
            return False
        victims[:] = found
        return bool(found)

    until(is_there)
    if victims and relay.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(rng.choice(victims), signal.SIGKILL)
    return kind


def lines_of(project, commit):
    names = project.git("ls-tree", "-r", "--name-only", commit, "made").splitlines()
    return [line for name in names for line in project.git("show", f"{commit}:{name}").splitlines()]


@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(3, 200))],
)
def test_whatever_is_killed_nothing_is_lost_and_nothing_red_is_merged(project, seed):
    rng = random.Random(seed)
    items = project.items(*rng.sample(NAMES, len(NAMES)))
    given = ("--verify", "grep -Fxqre {item} made", "--verify-all", "! grep -rq bad made")
    environ = project.workers_environ(TAKES="0.05")

    def start():
        """Continue the run; begin it where it was killed before it was one."""
        if (project.state / "relay" / "job" / "relay.json").exists():
            return project.resume(mode="commits", **environ)
        return project.begin("commits", *items, *given, "--workers", "3", **environ)

    relay, killed = start(), []
    for _ in range(KILLS):
        killed.append(kill_one(rng, relay, project))
        if killed[-1] == "relay" or relay.poll() is not None:
            relay.communicate()
            relay = start()
    for _ in range(3):  # a git that was killed as a context began has ended the call
        _, result, told = finish(relay, SECONDS)
        if result is not None and not result["work"]["left"]:
            break
        relay = start()
    assert result is not None, (killed, told)
    counts = result["work"]["counts"]
    assert result["work"]["lost"] == []
    assert counts["left"] == counts["claimed"] == 0, (killed, told)
    aside = set(result["work"]["set_aside"])
    # An item whose context was killed is begun again, on what was there of it.
    assert set(lines_of(project, BRANCH)) == set(NAMES) - aside, (killed, told)
    for commit in project.git("reflog", "--format=%H", BRANCH).split()[:-1]:
        assert "bad" not in lines_of(project, commit)
    assert project.git("status", "--porcelain") == ""
    assert project.git("rev-parse", "main") == project.git("rev-parse", "HEAD")
    locks = [*(project.path / ".git").rglob("*.lock")]
    assert not locks
    assert not processes_with(marks_of(project.state))
