"""A proof judges what its rows did: nothing done is red, and what cannot run says why."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import closing

import pytest
from helpers import ROOT
from helpers.fault_writer import start
from helpers.requirements import missing, require_root

from benchmarks.proof import power_cuts
from benchmarks.proof.__main__ import main
from benchmarks.proof.found import Found, Operations
from benchmarks.proof.judgement import CANNOT, GREEN, RED, judge, prove
from benchmarks.proof.rows import ROWS, Least, Row
from ultramon.backends.local.backend import LocalBackend

WRITES = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
DONE = Found({"items": Operations(9, 7, 1)}, faults={"killed": 3})


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """What a red row keeps goes with the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def row(*command, **more):
    """Return a row of which five operations must succeed."""
    return Row("a row", "it is run", command, {"items": Least(5)}, **more)


def writing(tmp_path, found):
    """Return a row whose program writes what it is given."""
    found.write(tmp_path / "given")
    text = (tmp_path / "given").read_text().replace("{", "{{").replace("}", "}}")
    return row("-c", WRITES, "{counts}", text)


def proven(tmp_path, *rows):
    """Run rows; return the exit code, and what stands in both files."""
    code = main(["--minutes", "0.1", "--seed", "7", "--to", str(tmp_path)], rows)
    return (
        code,
        json.loads((tmp_path / "proof.json").read_text()),
        (tmp_path / "PROOF.md").read_text(),
    )


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("", "it ended with 0 and wrote no counts"),
        ("raise SystemExit(3)", "it ended with 3 and wrote no counts"),
    ],
)
def test_a_program_that_does_nothing_is_red(tmp_path, program, why):
    """It breaks no promise, and proves none."""
    code, values, text = proven(tmp_path, row("-c", program))
    [found] = values["rows"]
    assert (code, values["verdict"], found["verdict"]) == (1, RED, RED)
    assert found["why"][0] == why
    assert f"- red: {why}" in text


def test_a_run_in_which_too_little_succeeded_is_red(tmp_path):
    """It ends with 0, tried much and broke nothing."""
    code, values, _ = proven(tmp_path, writing(tmp_path, Found({"items": Operations(90, 4, 86)})))
    assert code == 1
    assert values["rows"][0]["why"][0] == "too few items succeeded: 4, 5 are least"


def test_a_program_that_hangs_is_ended_and_red():
    """A proof that waited for it would say nothing of the other rows."""
    [found] = prove([row("-c", "import signal; signal.pause()")], 0.0, 1, patience_seconds=0.2)
    assert (found.verdict, found.why[0]) == (RED, "it ended with -15 and wrote no counts")


def test_suites_without_a_test_are_red(tmp_path):
    """Where a file was renamed or no test has the name any more."""
    nothing = ("-m", "benchmarks.proof.suites", "--counts", "{counts}", "--", "tests/test_soak.py")
    _, values, _ = proven(tmp_path, row(*nothing, "-k", "no_such_test"))
    assert values["verdict"] == RED


def test_a_row_that_cannot_run_says_why_and_is_not_green(tmp_path):
    """It is no failure beside a row that is green; alone it proves nothing."""
    cannot = writing(tmp_path, Found(cannot_run="needs root"))
    code, values, text = proven(tmp_path, cannot)
    assert (code, values["rows"][0]["verdict"], values["rows"][0]["why"]) == (
        1,
        CANNOT,
        ["needs root"],
    )
    assert "- cannot run here: needs root" in text
    code, values, _ = proven(tmp_path, cannot, writing(tmp_path, DONE))
    assert (code, values["verdict"]) == (0, GREEN)


def test_both_files_have_what_was_done_and_on_what(tmp_path):
    """Seeds, versions, counts and time, the same numbers in both."""
    code, values, text = proven(tmp_path, writing(tmp_path, DONE), writing(tmp_path, DONE))
    assert (code, values["seed"], [one["seeds"] for one in values["rows"]]) == (0, 7, [[7], [8]])
    assert values["rows"][0]["operations"] == {
        "items": {"tried": 9, "succeeded": 7, "refused": 1, "leastSucceeded": 5}
    }
    assert values["rows"][0]["faults"] == {"killed": 3}
    assert {"python", "sqlite", "kernel", "hypothesis"} <= values["versions"].keys()
    assert values["clients"]
    assert values["durationSeconds"] >= 0
    assert "| items | 9 | 7 | 5 | 1 | 3 killed | – |" in text
    for version in values["versions"].values():
        assert version in text


def test_the_least_grows_with_the_time():
    """What a minute of a soak must do, ten minutes must do ten times; and faults must be met."""
    given = Row("a", "b", (), {"items": Least(2, 3.0)}, faults={("killed", "power"): Least(1, 1.0)})
    assert judge(given, DONE, 0, 1.5) == (GREEN, [])
    assert judge(given, DONE, 0, 10.0) == (
        RED,
        [
            "too few items succeeded: 7, 32 are least",
            "too few faults were met (killed or power): 3, 11 are least",
        ],
    )


def test_faults_of_another_kind_do_not_count():
    """A soak over a network that was never cut proves nothing about one that is."""
    given = row(faults={("network", "connections"): Least(1)})
    assert judge(given, DONE, 0, 1.0)[0] == RED
    cut = Found(DONE.operations, faults={"killed": 3, "network cut": 1})
    assert judge(given, cut, 0, 1.0) == (GREEN, [])


def test_what_is_broken_is_red_however_much_succeeded():
    """So is a program that fails without a word, also where it says that it cannot run."""
    broken = Found({"items": Operations(900, 900, 0)}, broken=["lost: a"])
    assert judge(row(), broken, 1, 1.0) == (RED, ["lost: a"])
    assert judge(row(), DONE, 1, 1.0) == (RED, ["it ended with 1"])
    assert judge(row(), Found(cannot_run="needs root"), 1, 1.0)[0] == RED


def test_no_row_can_do_nothing_and_be_green():
    """Each names operations of which some must succeed, however little time it has."""
    for each in ROWS:
        assert each.operations
        assert all(least.within(0.0) > 0 for least in each.operations.values())
        assert judge(each, Found(), 0, 0.0)[0] == RED


def test_files_that_a_row_names_are_there():
    """A suite that moved would be found only by the next proof."""
    for each in ROWS:
        for part in each.command:
            assert not part.startswith("tests/") or (ROOT / part).is_file()


def test_tests_are_counted_with_the_inputs_that_were_made_for_them(tmp_path):
    """A property counts as one test and as each input; a test that cannot run says why."""
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "from hypothesis import given, settings, strategies\n"
        "@settings(max_examples=30, database=None)\n"
        "@given(strategies.integers())\n"
        "def test_property(number):\n    assert isinstance(number, int)\n"
        "def test_skipped():\n    pytest.skip('no such database')\n"
    )
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--exhaustive', action='store_true')\n"
    )
    counts = tmp_path / "counts"
    command = [sys.executable, "-m", "benchmarks.proof.suites", "--counts", str(counts), "--"]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = Found.read(counts)
    assert done.returncode == 0, done.stdout
    assert found.operations == {"tests": Operations(2, 1, 1), "inputs": Operations(30, 30, 0)}
    assert found.left_out == {"no such database": 1}


def test_power_is_not_cut_without_root(tmp_path, monkeypatch):
    """Its row says so, and is not green."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert power_cuts.main(["--counts", str(tmp_path / "counts")]) == 0
    [given] = [each for each in ROWS if each.name.startswith("power cuts")]
    found = Found.read(tmp_path / "counts")
    assert judge(given, found, 0, 1.0) == (CANNOT, ["needs root"])


@pytest.mark.slow
def test_what_was_acknowledged_survives_a_power_cut(tmp_path):
    """And what no fsync had written does not, or it was no cut."""
    require_root()
    assert power_cuts.main(["--counts", str(tmp_path / "counts"), "--seconds", "0"]) == 0
    found = Found.read(tmp_path / "counts")
    if found.cannot_run:
        missing(found.cannot_run)
    assert found.faults == {"power cuts": 1, "writes lost that no fsync had written": 1}
    assert found.operations["acknowledged writes"].succeeded > 0


def test_a_judge_of_power_cuts_finds_what_was_lost(tmp_path):
    """A write that had returned before the cut has to be there; one that came later need not."""
    with closing(LocalBackend(str(tmp_path))) as backend:
        start(backend, "there")
    facts = [
        {"at": at, "fact": fact, "about": about, "stored": True}
        for at, fact, about in (
            (1.0, "started", "there"),
            (2.0, "ended", "there"),
            (3.0, "sent", "a key"),
            (9.0, "sent", "a late key"),
        )
    ]
    judge = power_cuts.Judge()
    judge.look(tmp_path, facts, cut_at=5.0)
    assert [line.partition(":")[0] for line in judge.broken] == ["lost", "message lost"]
    assert "'ended'" in judge.broken[0]
    assert judge.broken[1].endswith(" a key")
