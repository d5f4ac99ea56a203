"""The bench as people run it: whole runs of orchestrators, over real processes."""

import json
import re
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.bench_job import bench

from ultramon.system.process_search import processes_with
from ultramon.testing.bench.__main__ import EXAMPLES
from ultramon.testing.bench.faults import FAULTS

FAST = ("--request-seconds", "0.01", "--seeds", "2", "--items", "6", "--fault-ratio", "0.2")
WITHOUT_CONFLICT = ",".join(name for name in FAULTS if name != "conflict")
PAGE = (ROOT / "docs" / "relay-bench.md").read_text(encoding="utf-8")


def measured(*arguments):
    """The result as JSON."""
    done = bench("--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def names(run, *classes):
    return [len(run[name]) for name in classes]


def test_a_loop_with_a_check_has_everything_done():
    """Whatever its agents do, and nothing of it is false: it looks at the tree."""
    result = measured("--example", "checked-loop", *FAST)
    assert result["total"]["verified"] == 12
    assert result["total"]["faults"]
    for run in result["runs"]:
        assert names(run, "verified", "falseDone", "lost", "left") == [6, 0, 0, 0]
        assert run["problems"] == []
        assert run["exitCode"] == 0


def test_a_bare_loop_believes_each_lie():
    result = measured("--example", "bare-loop", *FAST, "--faults", WITHOUT_CONFLICT)
    lies = result["total"]["faults"]["lie"]
    assert lies > 0
    assert result["total"]["falseDone"] == lies
    assert result["total"]["verified"] == 12 - lies


@pytest.mark.parametrize("example", ["relay", "relay-4"])
def test_a_relay_says_nothing_false_and_loses_nothing(example):
    """An item that it gives up after several contexts is named."""
    result = measured("--example", example, *FAST, "--faults", WITHOUT_CONFLICT)
    for run in result["runs"]:
        assert names(run, "falseDone", "lost") == [0, 0], run
        assert sum(names(run, "verified", "left")) == 6
        # It does not look at what a context had done that was killed before it said so.
        said = ("the command ended with ", "done and not said to be: ")
        assert [one for one in run["problems"] if not one.startswith(said)] == []
    assert result["total"]["verified"] >= 9
    assert result["total"]["faults"]


def test_the_same_seeds_meet_the_same_faults_of_items():
    """One context after the other, the whole history is the same."""
    first, second = (measured("--example", "bare-loop", *FAST) for _ in range(2))
    for one, other in zip(first["runs"], second["runs"], strict=True):
        assert one | {"seconds": 0} == other | {"seconds": 0}


def test_a_run_without_faults_says_so():
    """It proves that the orchestrator keeps to the contract, and no more."""
    done = bench("--example", "bare-loop", *FAST, "--faults", "none")
    assert done.returncode == 0
    assert "faults: none" in done.stdout
    assert done.stdout.count("no fault happened: this run says nothing about them") == 2
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[1][:5] == ["0", "6", "0", "0", "0"]
    assert rows[3][:5] == ["all", "12", "0", "0", "0"]


def test_a_command_that_does_nothing_loses_everything():
    result = measured(*FAST, "--", "true")
    for run in result["runs"]:
        assert len(run["lost"]) == 6
        said = ["no answer: No such file or directory", "no agent was started"]
        assert run["problems"] == said
        assert run["verifiedPerMillionTokens"] is None


def test_a_command_that_writes_rubbish_is_judged_by_what_can_be_read():
    script = (
        'head -c 5000 /dev/zero >>"$BENCH_ANSWER"; echo >>{answer}; echo done item-003 >>{answer}'
    )
    run = measured(*FAST, "--", "sh", "-c", script)["runs"][0]
    assert run["falseDone"] == ["item-003"]
    assert len(run["lost"]) == 5
    assert "1 line is not understood" in run["problems"][0]


def test_a_command_may_leave_its_work_in_another_tree():
    script = (
        'git worktree add -q {scratch}/tree && cd {scratch}/tree && "$BENCH_AGENT" item-002 &&'
        " echo done item-002 >{answer} && echo tree {scratch}/tree >>{answer}"
    )
    given = ("--seeds", 1, "--items", 2, "--faults", "none", "--request-seconds", 0)
    run = measured(*given, "--", "sh", "-c", script)["runs"][0]
    assert (run["verified"], run["lost"]) == (["item-002"], ["item-001"])


def test_a_command_that_forges_is_named(tmp_path):
    """The check is in the hands of the orchestrator, and so is what it knows."""
    script = f"cp -r {tmp_path}/out . && sed 's/^/done /' {{items}} >{{answer}}"
    kept = ("--keep", tmp_path / "kept", "--request-seconds", 0, "--items", 4, "--seeds", 1)
    assert bench("--example", "checked-loop", *kept).returncode == 0
    (tmp_path / "kept" / "seed-0" / "repository" / "out").rename(tmp_path / "out")
    given = ("--items", 4, "--seeds", 1)
    run = measured(*given, "--", "sh", "-c", script)["runs"][0]
    assert len(run["verified"]) == 4
    forged = "done by no agent: item-001 item-002 item-003 item-004"
    assert run["problems"] == ["no agent was started", forged]


def test_a_command_that_is_not_there_cannot_be_measured(tmp_path):
    done = bench("--keep", tmp_path / "kept", "--", "/nowhere/orchestrator")
    assert (done.returncode, done.stdout) == (2, "")
    assert "/nowhere/orchestrator: there is no such program" in done.stderr
    assert not (tmp_path / "kept").exists()


def test_a_command_is_found_from_where_the_bench_was_started(tmp_path):
    """It starts in a repository of its own, where a relative path would lead nowhere."""
    loop = tmp_path / "loop.sh"
    loop.write_text('#!/bin/sh\n"$BENCH_AGENT" item-001 && echo done item-001 >"$BENCH_ANSWER"\n')
    loop.chmod(0o755)
    given = ("--seeds", 1, "--items", 1, "--faults", "none", "--request-seconds", 0, "--json")
    for command in (["./loop.sh"], ["sh", "{here}/loop.sh"]):
        done = bench(*given, "--", *command, cwd=tmp_path)
        assert json.loads(done.stdout)["total"]["verified"] == 1, done.stderr


ENDLESS = """
trap '' TERM
setsid sh -c 'trap "" TERM; echo $$ >>{scratch}/pids; while :; do sleep 100; done' &
sh -c 'echo $$ >>{scratch}/pids; while :; do sleep 100; done' &
"$BENCH_AGENT" item-001
echo done item-001 >{answer}
while :; do sleep 100; done
"""


def test_a_command_that_does_not_end_is_killed_with_all_it_started(tmp_path):
    """Also what has left its process group; and what it has answered by then counts."""
    given = ("--seeds", 1, "--items", 2, "--faults", "none", "--request-seconds", 0)
    words = ("--timeout", 3, "--keep", tmp_path / "kept", "--", "sh", "-c", ENDLESS)
    run = measured(*given, *words)["runs"][0]
    assert (run["verified"], run["lost"]) == (["item-001"], ["item-002"])
    assert run["timedOut"]
    assert run["exitCode"] is None
    assert re.match(r"the time was up after \d+ s, and the command was killed", run["problems"][0])
    scratch = tmp_path / "kept" / "seed-0" / "scratch"
    assert len((scratch / "pids").read_text().split()) == 2
    assert processes_with({"BENCH_SCRATCH": str(scratch)}) == []


def test_a_command_that_answers_when_it_is_asked_to_end_has_ended(tmp_path):
    script = 'trap "echo left item-001 >{answer}; exit 7" TERM; while :; do sleep 0.1; done'
    run = measured("--seeds", 1, "--items", 1, "--timeout", 1, "--", "sh", "-c", script)["runs"][0]
    assert (run["left"], run["exitCode"]) == (["item-001"], 7)
    assert "the command ended when it was asked to" in run["problems"][0]


def test_what_a_command_leaves_running_does_not_work_on():
    """What is judged is the tree as it is when the command has ended."""
    script = 'setsid sh -c "sleep 100; $BENCH_AGENT item-001" & echo done item-001 >{answer}'
    given = ("--seeds", 1, "--items", 1, "--faults", "none", "--request-seconds", 0)
    run = measured(*given, "--", "sh", "-c", script)["runs"][0]
    assert run["falseDone"] == ["item-001"]
    assert run["seconds"] < 50


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give either a COMMAND, behind --, or --example"),
        (("--example", "relay", "--", "true"), "give either a COMMAND, behind --, or --example"),
        (("--faults", "lie,steal", "--", "true"), "there is no fault 'steal': choose of lie, die,"),
    ],
)
def test_wrong_usage_says_what_is_allowed(arguments, words):
    done = bench(*arguments)
    assert done.returncode == 2
    assert words in re.sub(r"\s+", " ", done.stderr)


def test_users_settings_of_ultramon_are_no_part_of_it():
    """A command sees none of them, nor a session or repository that the bench is started from."""
    script = "env | grep -c -e ^ULTRAMON_ -e ^GIT_DIR= >{answer}"
    changes = {"ULTRAMON_WARNING_RATIO": "0.1", "ULTRAMON_SUPERVISED": "x", "GIT_DIR": "/nowhere"}
    done = bench("--seeds", 1, "--json", "--", "sh", "-c", script, **changes)
    (problem, *_) = json.loads(done.stdout)["runs"][0]["problems"]
    assert problem.endswith("the first is '0'")


def test_the_page_shows_the_loops_that_come_with_the_bench():
    """A reader who copies one has what was measured."""
    for name in ("bare-loop", "checked-loop"):
        assert Path(EXAMPLES[name][-1]).read_text(encoding="utf-8") in PAGE


def test_the_page_names_every_fault_and_every_example():
    for name in (*FAULTS, *EXAMPLES):
        assert f"`{name}`" in PAGE
