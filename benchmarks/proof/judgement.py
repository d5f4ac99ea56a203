"""Runs the programs of the rows, one after the other, and judges what they found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.proof.found import Found
from benchmarks.proof.rows import Row

ROOT = Path(__file__).resolve().parent.parent.parent
ITEM_SECONDS = 4.0
"""For one item of a soak on a machine that is busy: a run has no more than its time allows."""
GREEN, RED, CANNOT = "green", "red", "cannot run here"


@dataclass
class Judged:
    """A row that was run.

    Attributes:
        row: Which.
        seed: What it was given.
        minutes: How much time it was given; 0.0 = it ran to its end.
        duration_seconds: How long it took, with what it needs to settle.
        found: What it wrote; empty where that was nothing.
        verdict: ``green``, ``red`` or ``cannot run here``.
        why: Each reason for that; empty when it is green.
    """

    row: Row
    seed: int
    minutes: float
    duration_seconds: float
    found: Found
    verdict: str
    why: list[str] = field(default_factory=list)


def prove(
    rows: Sequence[Row],
    minutes: float,
    seed: int,
    say: Callable[[str], object] = print,
    patience_seconds: float = 1800.0,
) -> Iterator[Judged]:
    """Run rows, those without a share first, and yield each with its verdict.

    Args:
        rows: Which.
        minutes: For all of them. Rows without a share, and soaks that settle, may take longer.
        seed: Of the first row; each next one has the next seed.
        say: Takes a line for people before each row.
        patience_seconds: A program that takes so much longer than its time is ended.
    """
    until = time.monotonic() + 60 * minutes
    waiting = sorted(rows, key=lambda row: row.share > 0)
    for number, row in enumerate(waiting):
        shares = sum(each.share for each in waiting[number:])
        besides = sum(each.besides_seconds for each in waiting[number:])
        left = until - time.monotonic() - besides
        seconds = max(row.least_seconds, left * row.share / shares) if row.share else 0.0
        say(f"=== {row.name}: " + (f"{seconds:.0f} s" if row.share else "to its end"))
        yield _run(row, seconds / 60, seed + number, patience_seconds)


def _run(row: Row, minutes: float, seed: int, patience_seconds: float) -> Judged:
    directory = Path(tempfile.mkdtemp(prefix="ultramon-proof-"))
    counts, kept, log = directory / "counts", directory / "kept", directory / "log"
    values = {
        "counts": counts,
        "kept": kept,
        "seconds": f"{60 * minutes:g}",
        "minutes": f"{minutes:g}",
        "seed": seed,
        "items": min(60, max(12, int(60 * minutes / ITEM_SECONDS))),
    }
    began = time.monotonic()
    with log.open("wb") as said:
        code = _ended(
            subprocess.Popen(
                [sys.executable, *(part.format(**values) for part in row.command)],
                env=_environment(),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            ),
            60 * minutes + patience_seconds,
        )
    taken = time.monotonic() - began
    found = Found.read(counts)
    verdict, why = judge(row, found, code, minutes)
    if verdict == RED:
        why.append(f"its log and files are in {directory}")
    else:
        shutil.rmtree(directory)
    return Judged(row, seed, minutes, taken, found or Found(), verdict, why)


def _ended(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Wait for a program, end one that hangs, and return its exit code."""
    for end in (process.terminate, process.kill):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            end()
            seconds = 60.0
    return process.wait()


def _environment() -> dict[str, str]:
    """Return the environment without settings of ultramon, nor what turns a skip into a failure."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ULTRAMON_")}
    kept.pop("CI", None)
    return kept


def judge(row: Row, found: Found | None, code: int, minutes: float) -> tuple[str, list[str]]:
    """Judge what a program found.

    Args:
        row: Which.
        found: What it wrote; None = nothing that can be read.
        code: Its exit code.
        minutes: How much time it had.

    Returns:
        The verdict, and each reason for it.
    """
    if found is None:
        return RED, [f"it ended with {code} and wrote no counts"]
    if found.cannot_run and not code and not found.operations:
        return CANNOT, [found.cannot_run]
    why = list(found.broken)
    if code and not why:
        why.append(f"it ended with {code}")
    for kind, least in row.operations.items():
        operations = found.operations.get(kind)
        succeeded = operations.succeeded if operations else 0
        if succeeded < least.within(minutes):
            why.append(f"too few {kind} succeeded: {succeeded}, {least.within(minutes)} are least")
    for words, least in row.faults.items():
        met = found.met(words)
        if met < least.within(minutes):
            kinds = " or ".join(words) or "of any kind"
            why.append(
                f"too few faults were met ({kinds}): {met}, {least.within(minutes)} are least"
            )
    return (RED, why) if why else (GREEN, [])
