"""What several workers of a relay save: a stand-in agent that takes time, items that conflict.

By hand, on a quiet machine: ``python benchmarks/relay_workers.py``. 40 items, 24 of them in pairs
that write the end of one file; an item takes its agent three seconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from helpers.relayed import RelayedProject, finish

PAIRS = [f"p{number}-{side}" for side in "xy" for number in range(12)]
FREE = [f"f{number}" for number in range(16)]
SECONDS_AN_ITEM = 3
CHECK = ("--verify", "grep -Fxqre {item} made", "--verify-all", "! grep -rq bad made")


def measure(workers: int, *, with_paths: bool) -> str:
    """Return the row of a run."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        project = RelayedProject(Path(name))
        path = Path(name, "items.tsv")
        rows = [f"{item}\tmade/{item.partition('-')[0]}" for item in PAIRS + FREE]
        path.write_text("item\tpaths\n" + "".join(f"{row}\n" for row in rows))
        items = ("--items", str(path)) if with_paths else project.items(*PAIRS, *FREE)
        environ = {"WORKERS": str(Path(name, "workers")), "TAKES": str(SECONDS_AN_ITEM)}
        began = time.monotonic()
        given = (*items, *CHECK, "--workers", str(workers), "--max-contexts", "100")
        code, result, told = finish(project.begin("commits", *given, **environ), 3600)
        seconds = time.monotonic() - began
        assert code == 0, told
        values = project.git("reflog", "--format=%H", "ultramon/job").split()[:-1]
    merges, counts = result["merges"], result["work"]["counts"]
    facts = [
        str(workers),
        "yes" if with_paths else "no",
        f"{seconds:.0f} s",
        f"{counts['verified']} of {counts['assigned']}",
        str(merges["conflicts"]),
        str(len(values)),
        str(merges["checks"]),
        str(len(result["contexts"])),
    ]
    return f"| {' | '.join(facts)} |"


def main() -> None:
    """Print the table."""
    print("| workers | paths known | time | merged | conflicts | moves | checks | contexts |")
    print("|---|---|---|---|---|---|---|---|")
    for workers, with_paths in ((1, False), (2, False), (4, False), (4, True)):
        print(measure(workers, with_paths=with_paths), flush=True)


if __name__ == "__main__":
    main()
