import json
import os
import re
import shlex
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pexpect
import pytest
from helpers.program import PROGRAM, draw, environment
from helpers.program import run_process as run

from ultramon.backends.local.backend import LocalBackend
from ultramon.cli.demo.orchestrator import standard_library_files
from ultramon.cli.demo.proof import find_problems
from ultramon.cli.exit_codes import ExitCode
from ultramon.fleet.supervise.ledger import Ledger
from ultramon.fleet.supervise.result import ContextResult, ItemCounts, SupervisorResult
from ultramon.state.record import StateRecord

SMALL_DEMO = ("demo", "--agents", "3", "--items", "36")


def test_the_demo_proves_that_every_item_was_done_once(tmp_path):
    """Its private state directory is gone afterwards."""
    done = run(*SMALL_DEMO, TMPDIR=str(tmp_path), ULTRAMON_WARNING_THRESHOLD="0.5")
    assert done.returncode == 0, done.stderr
    assert "all 36 files were read to the end, each exactly once" in done.stdout
    assert re.search(r"agent +level +usage +tokens +runway +tasks +heartbeat", done.stdout)
    assert "handed off: " in done.stdout
    assert "Context warning (70%+)" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr.endswith("`ultramon demo --state-dir DIR` keeps them\n")
    assert list(tmp_path.iterdir()) == []


def test_the_demo_ends_with_the_line_that_shows_its_agents_again(tmp_path):
    """What it prints is run as it stands, also for a directory with a space in its name."""
    done = run("demo", "--items", "9", "--state-dir", tmp_path / "my states")
    assert done.returncode == 0, done.stderr
    line = done.stderr.splitlines()[-1].partition("the records stay: ultramon ")[2]
    again = run(*shlex.split(line))
    assert re.search(r"^demo-[0-9a-f]{4}", again.stdout, re.MULTILINE)


class Kept(NamedTuple):
    """A demo that has ended, and its records."""

    summary: dict
    directory: Path
    pid: int


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    directory = tmp_path_factory.mktemp("states")
    with subprocess.Popen(
        [PROGRAM, *SMALL_DEMO, "--json", "--state-dir", str(directory)],
        stdout=subprocess.PIPE,
        env=environment(),
    ) as demo:
        summary = json.load(demo.stdout)
    assert demo.returncode == 0
    return Kept(summary, directory, demo.pid)


def test_the_demos_records_agree_with_its_summary(kept):
    """In a directory of one's own the records stay and tell the same story."""
    summary = kept.summary
    assert summary["problems"] == []
    assert summary["everyItemDoneOnce"] is True
    assert summary["kills"] == summary["itemsBegunAgain"] == summary["itemsLost"] == 0
    backend = LocalBackend(str(kept.directory))
    records = [agent.record for agent in backend.list_agents(summary["run"])]
    done_items = Counter(
        task["name"] for record in records for task in record.tasks if task["status"] == "done"
    )
    assert len(done_items) == summary["itemsDone"] == summary["items"] == 36
    assert set(done_items.values()) == {1}
    handed = {record.agent_id for record in records if record.handoff}
    assert len(handed) == summary["handoffs"] >= 3
    assert {record.predecessor_id for record in records} == {None, *handed}
    assert set(summary["handoffReasons"]) == {"threshold_warning", "threshold_critical"}
    kinds = Counter(event["type"] for event in backend.events(limit=1000).events)
    assert kinds["agent_started"] == kinds["agent_stopped"] == summary["agents"] == len(records)
    assert kinds["handoff_ready"] == summary["handoffs"]
    again = run("status", "--all", "--json", "--run", summary["run"], "--state-dir", kept.directory)
    assert len(json.loads(again.stdout)["agents"]) == summary["agents"]


def test_every_worker_of_the_demo_is_a_process(kept):
    """No two agents share a process, and none of them is the demo's own."""
    agents = LocalBackend(str(kept.directory)).list_agents(kept.summary["run"])
    pids = {agent.record.pid for agent in agents}
    assert len(pids) == kept.summary["agents"] >= 3
    assert kept.pid not in pids


def test_killed_workers_cost_one_file_each_at_most(tmp_path):
    """With --kill nothing is lost: handoffs are rebuilt from what the killed had stored."""
    done = run("demo", "--kill", "--items", "45", "--json", "--state-dir", tmp_path)
    summary = json.loads(done.stdout)
    assert (done.returncode, summary["problems"]) == (0, [])
    assert summary["kills"] == summary["handoffReasons"]["lost"] == 3
    assert summary["itemsBegunAgain"] <= 3
    assert (summary["itemsDone"], summary["itemsLost"]) == (45, 0)
    backend = LocalBackend(str(tmp_path))
    lost = [event for event in backend.events(limit=1000).events if event["type"] == "agent_lost"]
    assert [event["exit"] for event in lost] == [{"returncode": -9, "signal": "SIGKILL"}] * 3


def test_the_text_says_what_the_kills_cost():
    """Who was killed is named, and how many files were begun again."""
    done = run("demo", "--kill", "--items", "30", "--agents", "2")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"30 of 30 verified, \d contexts, 2 killed, [012] begun again, 0 lost",
        done.stdout,
    )
    assert len(re.findall(r"^demo-.* LOST$", done.stdout, re.MULTILINE)) == 2
    assert done.stdout.count("lost: SIGKILL") == done.stdout.count("handoff rebuilt: ") == 2


def test_a_stranger_may_kill_a_worker_too():
    """The demo prints the processes' ids; after a kill from outside the same check holds."""
    with subprocess.Popen(
        [PROGRAM, *SMALL_DEMO], stdout=subprocess.PIPE, encoding="utf-8", env=environment()
    ) as demo:
        for line in demo.stdout:
            if found := re.search(r"started in process (\d+)", line):
                os.kill(int(found[1]), signal.SIGKILL)
                break
        text = demo.stdout.read()
    assert demo.returncode == 0
    assert re.search(
        r"files: 36 of 36 verified, \d contexts, 1 killed, [01] begun again, 0 lost",
        text,
    )
    assert "all 36 files were read to the end, each exactly once" in text


def test_workers_that_cannot_work_fail_the_demo():
    """What they said in the end is shown, and that the work was not done."""
    done = run(*SMALL_DEMO, ULTRAMON_GRACE_SECONDS="soon")
    assert done.returncode == ExitCode.FAILURE
    assert "exactly once" not in done.stdout
    error = r"lost \(exit code 1\),.*: \S*ConfigurationError: grace"
    assert re.search(rf"^Error: demo-\S+\.1 {error}", done.stderr, re.MULTILINE)
    assert re.search(r"^Error: never read: .* and 33 more$", done.stderr, re.MULTILINE)


def test_the_demo_draws_a_live_table():
    """On a terminal: bars, levels, tokens, tasks and heartbeats; then it cleans up."""
    raw, screen, code = draw(*SMALL_DEMO, columns=80, rows=40)
    text = re.sub(r"\x1b\[[0-9;]*m", "", raw.decode())
    assert code == 0
    assert re.search(r"agent +level +usage +tokens +runway +tasks +heartbeat", text)
    assert re.search(r"\d files read", text)
    assert re.search(r"[█▏▎▍▌▋▊▉]+ +\d+ %", text)
    assert re.search(r"\d+(\.\d)?k/24k", text)
    assert re.search(r"\d+ turns? +\d+/12 +\d+\.\d s", text)
    assert screen[0].startswith("agent ")
    assert any("each exactly once" in line for line in screen)
    assert raw.rfind(b"\x1b[?25h") > raw.rfind(b"\x1b[?25l"), "the cursor is back"


def test_the_live_table_shows_a_killed_worker():
    """Until its successor is there it is marked as lost."""
    raw, _, code = draw("demo", "--items", "36", "--kill", columns=80, rows=40)
    assert code == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", raw.decode())
    # At the end of the line, which no other column follows.
    assert re.search(r"\d+/\d+ +LOST\s*\r?\n", text)


def test_an_interrupted_demo_ends_quietly(tmp_path):
    """Ctrl-C ends with 130, without a traceback, leftovers or workers that live on."""
    child = pexpect.spawn(
        PROGRAM,
        ["demo", "--items", "500"],
        env=environment(TMPDIR=str(tmp_path), TERM="dumb"),
        timeout=60,
        encoding="utf-8",
    )
    child.expect(r"started in process (\d+)")
    worker = int(child.match[1])
    child.kill(signal.SIGINT)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == ExitCode.INTERRUPTED
    assert "Traceback" not in child.before
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_a_reader_that_leaves_ends_the_demo():
    """As with `ultramon demo | head -1`: without a word, and without reading on for nobody."""
    with subprocess.Popen(
        [PROGRAM, "demo", "--items", "500"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as demo:
        demo.stdout.readline()
        demo.stdout.close()
        errors = demo.stderr.read()
    assert (demo.returncode, errors) == (ExitCode.OK, b"")


def test_the_demo_needs_records():
    """Disabled, there would be nothing to prove."""
    done = run("demo", ULTRAMON_DISABLED="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ULTRAMON_DISABLED is set")


def test_the_demo_needs_a_store_that_processes_share(tmp_path):
    """Records in one process's memory cannot be seen by its workers."""
    done = run("demo", ULTRAMON_BACKEND="memory:", ULTRAMON_STATE_DIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: ULTRAMON_BACKEND is memory:, which processes cannot share\n"


def test_demo_items_are_files_of_the_standard_library():
    """As many as asked for, every one once."""
    names = standard_library_files(50)
    assert len(set(names)) == len(names) == 50
    assert all(name.endswith(".py") for name in names)


def state(agent_id, done=(), *, predecessor=None):
    """The state of an agent that did these items."""
    tasks = [{"name": name, "status": "done", "result": None} for name in done]
    return StateRecord(agent_id, generation=1, tasks=tasks, predecessor_id=predecessor)


def result(*, kills=0, repeated=(), claimed=0, left=(), set_aside=(), lost=()):
    """What a supervisor says of two items, after so many kills."""
    contexts = tuple(ContextResult(str(number), 2, 1, "lost", True) for number in range(kills))
    verified = 2 - claimed - len(left) - len(set_aside)
    counts = ItemCounts(2, verified, claimed, len(set_aside), len(left))
    reasons = dict.fromkeys(set_aside, "why")
    return SupervisorResult(
        "r", counts, contexts, repeated, reasons, left, lost, {}, None, begun_again=repeated
    )


def problems(outcome, notes, *records):
    """What the check says of items 1 and 2; notes are written b1 (begun) and d1 (done)."""
    ledger = Ledger()
    for record in records or (state("a", ["1"]), state("b", ["2"])):
        ledger.enter_state(record)
    kinds = {"b": "begun", "d": "done"}
    noted = [(kinds[note[0]], note[1:]) for note in notes.split()]
    return list(find_problems(["1", "2"], outcome, noted, ledger))


ONCE = "b1 d1 b2 d2"


def test_the_check_accepts_work_that_was_done_once():
    """And an item that was begun again for each kill, if it is counted."""
    assert problems(result(), ONCE) == []
    assert problems(result(kills=1, repeated=("2",)), "b1 b2 d1 b2 d2") == []
    assert problems(result(kills=1), ONCE) == []


@pytest.mark.parametrize(
    ("outcome", "notes", "problem"),
    [
        (result(), "b1 d1 b2", "never read: 2"),
        (result(left=("2",)), "b1 d1", "never read: 2"),
        (result(left=("2",)), ONCE, "read, but not counted: 2"),
        (result(set_aside=("1",)), ONCE, "read, but not counted: 1"),
        (result(lost=("1",)), ONCE, "read, but not counted: 1"),
        (result(claimed=1), ONCE, "read, but not verified: 1"),
        (result(kills=1), "b1 d1 b2 b2 d2", "begun again, but not counted: 2"),
        (
            result(kills=1, repeated=("1", "2")),
            "b1 b1 d1 b2 b2 d2",
            "2 items were begun again, with 1 kills",
        ),
    ],
)
def test_the_check_compares_the_result_with_notes(outcome, notes, problem):
    """A result alone proves nothing, and no more is begun twice than there were kills."""
    assert problems(outcome, notes) == [problem]


def test_the_check_sees_items_that_were_done_twice():
    """Two agents that both record an item did it twice."""
    twice = state("a", ["1", "2"]), state("b", ["2"])
    assert problems(result(), ONCE, *twice) == ["counted as read more than once: 2"]
