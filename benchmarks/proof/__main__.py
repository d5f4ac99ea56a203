"""Runs a proof and writes it down: ``python -m benchmarks.proof --minutes 60``.

Exits 0 only where every row is green or cannot run here, and at least one is green.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.proof import page
from benchmarks.proof.judgement import GREEN, prove
from benchmarks.proof.rows import ROWS, Row

BENCHMARKS = Path(__file__).resolve().parent.parent


def main(arguments: Sequence[str] | None = None, rows: Sequence[Row] = ROWS) -> int:
    """Run rows, write PROOF.md and proof.json, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for all rows")
    parser.add_argument("--seed", type=int, help="of the first row; without it another each time")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="rows whose name has one of these")
    parser.add_argument("--to", type=Path, default=BENCHMARKS, help="where to write the two files")
    given = parser.parse_args(arguments)
    chosen = [row for row in rows if not given.only or any(one in row.name for one in given.only)]
    if not chosen:
        parser.error(f"no such row: choose of {', '.join(row.name for row in rows)}")
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    began, began_at = datetime.now(UTC), time.monotonic()
    print(f"seed {seed}", flush=True)
    judged = []
    for each in prove(chosen, given.minutes, seed, lambda line: print(line, flush=True)):
        judged.append(each)
        print(f"{each.verdict}, {each.duration_seconds:.0f} s", *each.why, sep="\n  ", flush=True)
    taken = time.monotonic() - began_at
    proof = page.Proof(began, given.minutes, taken, seed, judged)
    page.write(proof, given.to)
    print(f"{proof.verdict}: {given.to / 'PROOF.md'}")
    return int(proof.verdict != GREEN)


if __name__ == "__main__":
    sys.exit(main())
