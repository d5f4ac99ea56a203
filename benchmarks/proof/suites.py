"""Runs tests, counts what they did, and ends between two tests when its time is over.

As a program: ``python -m benchmarks.proof.suites --counts FILE -- PYTEST ARGUMENTS``. With
``--fuzz`` it runs the property tests of all files that have some, in a random order, again and
again until its time is over, each round in a process of its own with the next seed.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.proof.found import Found, Operations

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent.parent
_CASES = re.compile(r"(\d+) passing, (\d+) failing, and (\d+) invalid")


class Counting:
    """A plugin of pytest that counts tests, and the inputs that Hypothesis made for them.

    Args:
        seconds: No test begins later than that after they were collected; None = all run.
        seed: Of the order of tests; None leaves it as it is.
    """

    def __init__(self, seconds: float | None = None, seed: int | None = None) -> None:
        self.tests: Counter[str] = Counter()
        self.inputs: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.broken: list[str] = []
        self._seconds = seconds
        self._seed = seed
        self._collected_at = time.monotonic()

    @pytest.hookimpl(trylast=True)  # the order of conftest.py is made before
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._seed is not None:
            random.Random(self._seed).shuffle(items)

    def pytest_collection_finish(self) -> None:
        self._collected_at = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.tests[report.outcome] += 1
        if report.failed:
            self.broken.append(f"{report.nodeid}: {_error_of(report)}")
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
            self.left_out[str(reason).removeprefix("Skipped: ")] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(f"{report.nodeid}: not collected: {_error_of(report)}")

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        for passing, failing, invalid in _CASES.findall(getattr(item, "hypothesis_statistics", "")):
            self.inputs.update(passed=int(passing), failed=int(failing), refused=int(invalid))
        if self._seconds is not None and time.monotonic() > self._collected_at + self._seconds:
            item.session.shouldstop = "its time is over"

    def found(self) -> Found:
        """Return the counts so far."""
        tests, inputs = self.tests, self.inputs
        if self.left_out and not tests["passed"] and not self.broken:
            return Found(cannot_run="; ".join(self.left_out))
        operations = {"tests": Operations(tests.total(), tests["passed"], tests["skipped"])}
        if inputs:
            operations["inputs"] = Operations(inputs.total(), inputs["passed"], inputs["refused"])
        return Found(operations, broken=self.broken, left_out=dict(self.left_out))


def _error_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the error of a failed test in a line."""
    lines = [line[1:].strip() for line in report.longreprtext.splitlines() if line[:2] == "E "]
    return next(iter(lines), "failed")[:200]


def property_test_files() -> list[str]:
    """Return the files of tests that use Hypothesis."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path) for path in files if "from hypothesis" in path.read_text(encoding="utf-8")]


def fuzz(seconds: float, first_seed: int) -> Found:
    """Run property tests in rounds until the time is over, or a round has found something."""
    whole = Found()
    until = time.monotonic() + seconds
    for seed in count(first_seed):
        with tempfile.TemporaryDirectory(prefix="ultramon-fuzz-") as name:
            path = Path(name) / "counts"
            left = max(0.0, until - time.monotonic())
            command = [sys.executable, "-m", "benchmarks.proof.suites", "--counts", str(path)]
            command += ["--seconds", str(left), "--seed", str(seed), "--", "-m", "hypothesis"]
            command += ["--hypothesis-profile", "full", f"--hypothesis-seed={seed}"]
            subprocess.run([*command, *property_test_files()], cwd=ROOT, check=False)
            found = Found.read(path)
        if found is None:
            found = Found(broken=[f"the round with seed {seed} wrote no counts"])
        whole = _sum(whole, found)
        whole.seeds.append(seed)
        if whole.broken or time.monotonic() > until:
            break
    return whole


def _sum(one: Found, other: Found) -> Found:
    kinds = one.operations.keys() | other.operations.keys()
    pairs = {
        kind: zip(*(each.operations.get(kind, Operations()) for each in (one, other)), strict=True)
        for kind in kinds
    }
    return Found(
        operations={kind: Operations(*map(sum, pair)) for kind, pair in pairs.items()},
        broken=one.broken + other.broken,
        seeds=one.seeds,
        left_out={**one.left_out, **other.left_out},
    )


def run(counting: Counting, arguments: Sequence[str]) -> Found:
    """Run pytest once in this process, and return what it counted."""
    common = ["-q", "-p", "no:cacheprovider", "--exhaustive", "--tb=short"]
    code = pytest.main([*common, *arguments], plugins=[counting])
    found = counting.found()
    # Only ended early: as `shouldstop` does.
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED):
        found.broken = found.broken or [f"pytest ended with {code!r}"]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--counts", type=Path, required=True, help="where to write what was found")
    parser.add_argument("--fuzz", action="store_true", help="property tests until the time is over")
    parser.add_argument("--seconds", type=float, help="no test begins later; without it all run")
    parser.add_argument("--seed", type=int, help="of the order of tests, and of the first round")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest")
    given = parser.parse_args(arguments)
    if given.fuzz:
        found = fuzz(given.seconds or 60.0, given.seed or 0)
    else:
        found = run(Counting(given.seconds, given.seed), given.pytest)
    found.write(given.counts)
    return int(bool(found.broken))


if __name__ == "__main__":
    sys.exit(main())
