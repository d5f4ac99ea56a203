"""Runs every benchmark side by side and writes its sections of RESULTS.md. By hand: `make bench`.

The estimator's rows need a corpus of texts with true token counts, which is not part of the
project: `python benchmarks/run.py --corpus corpus.jsonl.gz`.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from results import replace_head, replace_section

HERE = Path(__file__).resolve().parent
PARTS = [
    ("Start-up", "startup.py", []),
    ("Ratios", "ratios.py", []),
    ("Monitors", "monitors.py", []),
    ("History", "history.py", []),
    ("Killed writers", "kills.py", []),
    ("Fleet", "fleet.py", []),
    ("Lists", "lists.py", []),
    ("Watch", "watch.py", []),
    ("Hooks", "hooks.py", []),
    ("Tool calls", "client_hooks.py", []),
    ("Hooks of each host", "host_hooks.py", []),
    ("opencode's plugin", "opencode_plugin.py", []),
    ("Queue", "messages.py", []),
    ("Alerts", "alerts.py", []),
    ("Report", "report.py", []),
    ("Server", "server.py", []),
    ("Page", "web_page.py", []),
    ("Metrics", "metrics.py", []),
    ("Frameworks", "frameworks.py", []),
    ("Provider SDKs", "provider_client.py", []),
    ("PostgreSQL", "postgres.py", []),
    ("Readings in PostgreSQL", "postgres_readings.py", []),
    ("Monitors over PostgreSQL", "postgres_monitors.py", []),
]


def machine() -> str:
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return (
        f"{os.cpu_count()} cores of {model}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, ultramon {version('ultramon')}, "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", help="texts with true token counts (.jsonl.gz)")
    parser.add_argument(
        "--only", action="append", metavar="SECTION", choices=[title for title, *_ in PARTS]
    )
    given = parser.parse_args()
    parts = [part for part in PARTS if given.only is None or part[0] in given.only]
    if given.corpus:
        parts.append(("Estimator", "estimator.py", [given.corpus]))
    replace_head(
        "# Measurements\n\n"
        f"Machine: {machine()}. Shared and noisy: trust ratios within a table, not absolute times. "
        "Written by `make bench`; every table is one run, its rows measured in turn, medians."
    )
    for title, script, arguments in parts:
        sys.stderr.write(f"{title} …\n")
        done = subprocess.run(
            [sys.executable, str(HERE / script), *arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        replace_section(title, done.stdout)


if __name__ == "__main__":
    main()
