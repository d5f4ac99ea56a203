"""What importing and the first use cost: whole processes in turn, medians of many rounds."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

import processor_time

ROUNDS = 31
BARE = "python -I -c pass"
PEERS = "import of pydantic, transitions, blinker, platformdirs"
FIRST_USE = "create_context_monitor(…).start()"
FIRST_HANDOFF = f"{FIRST_USE}.hand_off()"
"""With the models, which otherwise load behind the start."""
ROWS = {
    BARE: "pass",
    "import ultramon": "import ultramon",
    "what a hook loads": "import ultramon.hosts.calls.handling, ultramon.hosts.calls.store",
    "from ultramon import create_context_monitor": "from ultramon import create_context_monitor",
    FIRST_USE: "from ultramon import create_context_monitor as create; create().start()",
    FIRST_HANDOFF: "from ultramon import create_context_monitor as create;"
    " create().start().hand_off()",
    PEERS: "from pydantic import BaseModel; import transitions, blinker, platformdirs",
    "import json": "import json",
}
START = """
import time
from ultramon import create_context_monitor
monitor = create_context_monitor()
wall, processor = time.perf_counter(), time.process_time()
monitor.start()
print(time.perf_counter() - wall, time.process_time() - processor)
"""


def over_bare(names: list[str], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the median processor milliseconds of rows beyond those of a bare Python."""
    times: dict[str, list[float]] = {name: [] for name in (BARE, *names)}
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "ULTRAMON_STATE_DIR": state}
        for _ in range(rounds):
            for name, values in times.items():
                values.append(processor_time.of_python(ROWS[name], environment))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {name: median - medians[BARE] for name, median in medians.items()} | {
        BARE: medians[BARE]
    }


def starts() -> str:
    """Return what `start` alone takes in a fresh process: in a new and in a known directory."""
    lines = ["| `start` of a process's first monitor | median ms | processor ms |", "|---|---|---|"]
    for name in ("in a new state directory", "in the same one again"):
        found: list[list[float]] = []
        with tempfile.TemporaryDirectory() as folder:
            for number in range(ROUNDS):
                place = f"{folder}/{number}" if "new" in name else f"{folder}/same"
                done = subprocess.run(
                    [sys.executable, "-I", "-c", START],
                    env={**os.environ, "ULTRAMON_STATE_DIR": place},
                    stdout=subprocess.PIPE,
                    check=True,
                )
                found.append([float(seconds) * 1000 for seconds in done.stdout.split()])
        wall, processor = (statistics.median(column) for column in zip(*found, strict=True))
        lines.append(f"| {name} | {wall:.1f} | {processor:.1f} |")
    return "\n".join(lines)


def main() -> str:
    found = over_bare([name for name in ROWS if name != BARE])
    bare, peers = found.pop(BARE), found[PEERS]
    lines = ["| process | processor ms | over bare ms | ÷ peers |", "|---|---|---|---|"]
    lines.append(f"| `{BARE}` | {bare:.1f} | | |")
    for name, more in found.items():
        shown = name if name == PEERS else f"`{name}`"
        lines.append(f"| {shown} | {bare + more:.1f} | {more:+.1f} | {more / peers:.2f} |")
    return "\n".join([*lines, "", starts()])


if __name__ == "__main__":
    print(main())
