"""No item has two live holders: what a context leaves is ended before its successor starts.

Each worker holds a lock on its item, and says when another process holds it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from helpers import supervised
from helpers.requirements import require_root, require_tool
from helpers.run_history import read_events
from helpers.supervised import effects, environment, spawner, start_orchestrator
from helpers.waiting import until

from ultramon import Fleet, open_backend
from ultramon.system.locks import LockedError
from ultramon.system.process_search import processes_with


@pytest.fixture
def start(tmp_path):
    """Start orchestrators of one item; at the end of the test nothing of them is left."""
    started = []

    def start(first, **given):
        given = {"grace_seconds": 0.2, "in_a_group": True, "verifies": False, **given}
        started.append(start_orchestrator(tmp_path, "holds", ["x"], first=first, **given))
        return started[-1]

    yield start
    for process in started:
        process.kill()
    for process in processes_with({"EFFECTS": str(tmp_path / "effects")}):
        process.send(signal.SIGKILL)
    for process in started:
        process.communicate()


def said(tmp_path, word):
    return [one[1:] for one in effects(tmp_path) if one[0] == word]


def has_event(kind):
    backend = open_backend()
    try:
        return any(event["type"] == kind for event in read_events(backend, "job"))
    finally:
        backend.close()


def run_with_a_kill(start, tmp_path, first, moment):
    """Run an orchestrator that is killed at a moment, and another one to its end."""
    given = {"dies_behind": str(tmp_path / "effects")} if moment == "unrecorded" else {}
    if moment == "grace":
        given["grace_seconds"] = 1000.0
    process = start(first, **given)
    if moment in ("recorded", "grace"):
        kind = "context_spawned" if moment == "recorded" else "agent_lost"
        until(lambda: said(tmp_path, "begun") and has_event(kind), process)
        process.kill()
    if moment != "same":
        process.wait()
        process = start(first)
    if first == "alive":
        (tmp_path / "effects.go").touch()
    output, _ = process.communicate(timeout=100)
    return json.loads(output)


MOMENTS = ["same", "unrecorded", "recorded"]
CASES = [
    *((first, moment) for first in ("leaves", "escapes", "suspended") for moment in MOMENTS),
    ("suspended", "grace"),
    ("clean", "unrecorded"),
    ("clean", "recorded"),
]


def check_one_holder(start, tmp_path, first, moment):
    result = run_with_a_kill(start, tmp_path, first, moment)
    assert said(tmp_path, "held twice") == []
    assert said(tmp_path, "done") == [["job.2", "x"]]
    assert (result["ok"], result["counts"]["claimed"], len(result["contexts"])) == (True, 1, 2)
    assert processes_with({"EFFECTS": str(tmp_path / "effects")}) == []


QUICK = [
    ("leaves", "same"),
    ("escapes", "unrecorded"),
    ("suspended", "recorded"),
    ("suspended", "grace"),
    ("clean", "unrecorded"),
]


@pytest.mark.parametrize(
    ("first", "moment"),
    [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.exhaustive) for case in CASES],
)
def test_a_successor_is_the_only_holder_of_its_item(first, moment, start, tmp_path):
    """Whatever the worker before left, and whenever its orchestrator was killed."""
    check_one_holder(start, tmp_path, first, moment)


@pytest.mark.parametrize(
    ("first", "moment"),
    [
        pytest.param(*case, marks=[] if case == ("suspended", "grace") else pytest.mark.exhaustive)
        for case in CASES
    ],
)
def test_with_a_database_a_successor_is_the_only_holder(
    first, moment, start, tmp_path, monkeypatch, postgres_store
):
    """Its journal tells the same."""
    monkeypatch.setenv("ULTRAMON_BACKEND", postgres_store)
    check_one_holder(start, tmp_path, first, moment)


def test_without_proc_the_group_of_a_child_is_ended_all_the_same(start, tmp_path):
    """Its orchestrator knows its number, and has never lost sight of it."""
    require_root()
    hide = 'mount -t tmpfs tmpfs /proc && exec "$@"'
    process = start("leaves", before=[require_tool("unshare"), "--mount", "sh", "-c", hide, "sh"])
    result = json.loads(process.communicate(timeout=100)[0])
    assert said(tmp_path, "held twice") == []
    assert (result["ok"], said(tmp_path, "done")) == (True, [["job.2", "x"]])


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_that_lives_keeps_its_item(moment, start, tmp_path):
    """No other context is started for it, and nothing ends it."""
    result = run_with_a_kill(start, tmp_path, "alive", moment)
    assert said(tmp_path, "done") == [["job.1", "x"]]
    assert (result["ok"], len(result["contexts"]), result["repeated"]) == (True, 1, [])


def start_elsewhere(job, tmp_path, first):
    """Start a worker of a job as if on another machine, and what stands for it here."""
    env = environment(job.env, tmp_path, FIRST=first)
    program = [sys.executable, "-B", supervised.__file__, "afar", json.dumps(env)]
    rename = 'echo elsewhere > /proc/sys/kernel/hostname && exec "$@"'
    command = [require_tool("unshare"), "--uts", "sh", "-c", rename, "sh", *program]
    worker = subprocess.Popen(
        command, env={"PYTHONPATH": env["PYTHONPATH"]}, start_new_session=True
    )
    until(lambda: said(tmp_path, "begun"), worker)
    return worker, subprocess.Popen(["sleep", "infinity"])


def is_suspended_between_writes(worker, directory):
    """Whether a worker is suspended and writes nothing just then; one that writes is woken.

    A lock it held would be held for good: where nothing can end it, that is no loss of an agent.
    """
    with open(f"/proc/{worker.pid}/stat") as file:
        if file.read().rpartition(")")[2].split()[0] != "T":
            return False
    try:
        with directory.locked("job.1", 0):
            return True
    except LockedError:
        worker.send_signal(signal.SIGCONT)
        return False


def test_an_agent_elsewhere_that_comes_back_begins_nothing_more(tmp_path):
    """Suspended where nothing could end it, and lost: what it does then changes no item."""
    require_root()
    fleet = Fleet("job", poll_interval_seconds=0.1)
    start = spawner(tmp_path, "holds", FIRST="")
    first = []

    def spawn(job):
        if first:
            # Its successor works beside it: that cannot be helped there.
            (tmp_path / "effects.go").touch()
            first[0].send_signal(signal.SIGCONT)
            assert first[0].wait(60) == 0
            return start(job)
        worker, connection = start_elsewhere(job, tmp_path, "suspended")
        first.extend((worker, connection))
        until(lambda: is_suspended_between_writes(worker, fleet.backend.directory), worker)
        return connection

    try:
        result = fleet.supervise(spawn, ["x", "y"], grace_seconds=0.2)
    finally:
        for process in first:
            process.kill()
            process.wait()
    assert [one[:2] for one in said(tmp_path, "begun")] == [
        ["job.1", "x"],
        ["job.2", "x"],
        ["job.2", "y"],
    ]
    assert said(tmp_path, "done")[0] == ["job.1", "x"]
    assert [context.finished for context in result.contexts] == [0, 2]
    assert (result.ok, fleet.backend.load("job.1").record.outcome) == (True, "cancelled")
    fleet.close()


def test_a_connection_that_is_cut_is_no_end_of_an_agent_elsewhere(tmp_path):
    """What stood for it here has ended; it beats, so it keeps its item."""
    require_root()
    fleet = Fleet("job", poll_interval_seconds=0.1)
    started = []

    def spawn(job):
        worker, connection = start_elsewhere(job, tmp_path, "alive")
        started.append((job.agent_id, worker))
        connection.kill()
        return connection

    @fleet.on("lost")
    def go(event):
        (tmp_path / "effects.go").touch()

    result = fleet.supervise(spawn, ["x"])
    ((agent_id, worker),) = started
    assert (result.ok, agent_id, worker.wait(60)) == (True, "job.1", 0)
    assert said(tmp_path, "done") == [["job.1", "x"]]
    fleet.close()
