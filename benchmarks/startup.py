"""What importing costs: whole processes, started in turn, medians of many rounds."""

from __future__ import annotations

import os
import statistics
import sys
import time

ROUNDS = 31
ROWS = {
    "python -I -c pass": "pass",
    "import ultramon": "import ultramon",
    "what a hook loads": ("import ultramon.hosts.handling, ultramon.hosts.store"),
    "from ultramon import create_context_monitor": "from ultramon import create_context_monitor",
    "import json": "import json",
    "import pydantic": "from pydantic import BaseModel",
}


def start(code: str) -> float:
    began = time.perf_counter()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-c", code], os.environ)
    os.waitpid(pid, 0)
    return (time.perf_counter() - began) * 1000


def main() -> str:
    times: dict[str, list[float]] = {name: [] for name in ROWS}
    for _ in range(ROUNDS):
        for name, code in ROWS.items():
            times[name].append(start(code))
    bare = statistics.median(times["python -I -c pass"])
    lines = ["| process | median ms | over bare ms |", "|---|---|---|"]
    for name, values in times.items():
        median = statistics.median(values)
        lines.append(f"| `{name}` | {median:.1f} | {median - bare:+.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(main())
