"""RelayBench over the orchestrators that come with it: `make bench-orchestrators`.

Several seeds at the same time, as their agents mostly wait for a model that is none. Times are thus
to be compared within the table alone; everything else depends on the seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from statistics import median
from typing import Any

from results import replace_section

TITLE = "RelayBench: orchestrators against unreliable agents"
ROWS = {
    "bare-loop": "a bare loop",
    "checked-loop": "a loop with a check, a context an item",
    "relay": "`ultramon relay --verify`",
    "relay-merged": "the same, `--verify-all`",
    "relay-4": "the same, `--workers 4`",
}
COLUMNS = (
    "", "verified", "false done", "lost", "left", "repeated", "contexts", "M tokens", "uncached",
    "verified per M tokens", "median s a seed", "faults met",
)  # fmt: skip


def measure(example: str, seed: int, more: list[str]) -> dict[str, Any]:
    """Return the result of one seed."""
    words = ["--example", example, "--first-seed", str(seed), "--seeds", "1", *more, "--json"]
    command = [sys.executable, "-m", "ultramon.testing.bench", "relay", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    sys.stderr.write(f"{example}, seed {seed}\n")
    return json.loads(done.stdout)


def row(name: str, results: list[dict[str, Any]]) -> str:
    """Return the row of an orchestrator."""
    totals = [one["total"] for one in results]
    sums: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for one in totals:
        faults.update(one["faults"])
        sums.update({key: value for key, value in one.items() if isinstance(value, int)})
    million = sums["tokens"] / 1e6
    facts = [
        name,
        f"{sums['verified']} of {sums['items']}",
        *(str(sums[key]) for key in ("falseDone", "lost", "left", "repeated", "contexts")),
        f"{million:.1f}",
        f"{sums['uncachedTokens'] / 1e6:.1f}",
        f"{sums['verified'] / million:.2f}",
        f"{median(one['seconds'] for one in totals):.0f}",
        str(faults.total()),
    ]
    return f"| {' | '.join(facts)} |"


def head(given: argparse.Namespace, more: list[str]) -> str:
    """Return what stands above the table."""
    options = f" `{' '.join(more)}`" if more else ""
    return (
        f"Written by `make bench-orchestrators`, {datetime.now(UTC):%Y-%m-%d}: {given.seeds} seeds"
        f"{options}, {given.jobs} at the same time, all faults. The agents are programs and no "
        "models; what each column means: [RelayBench](../docs/relay-bench.md)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--only", action="append", choices=ROWS, help="print these, write nothing")
    given, more = parser.parse_known_args()
    table = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    problems: Counter[str] = Counter()
    with ThreadPoolExecutor(given.jobs) as pool:
        for example in given.only or ROWS:
            seeds = range(given.seeds)
            results = list(pool.map(lambda seed, name=example: measure(name, seed, more), seeds))
            table.append(row(ROWS[example], results))
            for one in results:
                problems.update(f"{ROWS[example]}: {text}" for text in one["runs"][0]["problems"])
    for text, count in problems.items():
        sys.stderr.write(f"{count} × {text}\n")
    body = "\n".join(table)
    if given.only:
        print(body)
    else:
        replace_section(TITLE, f"{head(given, more)}\n\n{body}")


if __name__ == "__main__":
    main()
