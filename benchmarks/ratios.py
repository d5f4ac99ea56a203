"""The ratios that CI can judge: short, and against a peer in the same run.

`python benchmarks/ratios.py` prints the table of RESULTS.md, which `make bench` writes.
With `--check` it measures again and warns of rows that are 20 % worse than the table there; it
never fails, since no machine of CI is quiet enough for that.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
from pathlib import Path

import hooks
import processor_time
import startup

ROUNDS = 15
WORSE = 1.2
RESULTS = Path(__file__).with_name("RESULTS.md")
HOOK = "the hook without a resident ÷ `python -I -S -c pass`"
FORWARDER = "the hook with a resident ÷ the same"
IMPORT = "`import ultramon`, create and start a monitor ÷ import of pydantic and the others"


def hook() -> tuple[float, float]:
    """Return the processor time of the hook alone and with a resident, in that of a bare Python."""
    # The last hook may still write behind its answer.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path:
        contest = hooks.Contest(Path(path), Path(path) / "transcript.jsonl")
        contest.add_bare()
        contest.add_ours()
        times: dict[str, list[float]] = {name: [] for name in contest.commands}
        for _ in range(ROUNDS):
            for name, values in times.items():
                values.append(processor_time.milliseconds(lambda name=name: contest.run(name)))
    bare, alone, resident = (
        statistics.median(times[name]) for name in (hooks.BARE, hooks.OURS, hooks.RESIDENT)
    )
    return alone / bare, resident / bare


def first_use() -> float:
    """Return the processor time of a first monitor, in that of importing its dependencies."""
    found = startup.over_bare([startup.FIRST_USE, startup.PEERS], ROUNDS)
    return found[startup.FIRST_USE] / found[startup.PEERS]


def known() -> dict[str, float]:
    """Return the ratios of RESULTS.md, by row."""
    text = RESULTS.read_text(encoding="utf-8")
    section = text.partition("\n## Ratios\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| ([0-9.]+) \|$", section, re.MULTILINE)
    return {name: float(ratio) for name, ratio in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="warn of rows that became worse")
    is_check = parser.parse_args().check
    alone, resident = hook()
    found = {HOOK: alone, FORWARDER: resident, IMPORT: first_use()}
    print("| processor time | ratio |", "|---|---|", sep="\n")
    for name, ratio in found.items():
        print(f"| {name} | {ratio:.2f} |")
    if not is_check:
        return
    before = known()
    for name, ratio in found.items():
        if name not in before:
            sys.stderr.write(f"warning: {name} has no row in {RESULTS.name}\n")
        elif ratio > WORSE * before[name]:
            sys.stderr.write(
                f"warning: {name} is {ratio:.2f}, in {RESULTS.name} {before[name]:.2f}\n"
            )


if __name__ == "__main__":
    main()
