"""The page over a store of files: how soon a change is on it, and what one open page costs.

Some agents change each second, as in a fleet at work; an HTTP client follows the page as a browser
does. `--changing` is the share that changes. Prints one row per number of agents.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

import httpx

from ultramon.backends.local.backend import LocalBackend
from ultramon.system.processes import this_host
from ultramon.testing import make_record


def plant(backend: LocalBackend, count: int) -> list:
    """Store so many agents, none of them with a process."""
    records = []
    for number in range(count):
        record = make_record(
            f"agent-{number:05}", at=time.time(), label=f"agent {number}", pid=None,
            usage_ratio=number % 60 / 100, estimated_tokens=2_000 * (number % 60),
            measured_at=time.time(), heartbeat_interval_seconds=3_600.0,
        )  # fmt: skip
        backend.start_agent(
            record.agent_id, lambda *_, record=record: (record, []), takeover=False,
            now=time.time(), host=this_host(),
        )  # fmt: skip
        records.append(record)
    return records


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, user and system."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(count: int, changing: float, rounds: int) -> tuple[float, float, float, int]:
    """Return the median and the longest delay, the share of a core, and the bytes of a message."""
    with tempfile.TemporaryDirectory() as directory:
        backend = LocalBackend(os.path.join(directory, "state"))
        records = plant(backend, count)
        command = [sys.executable, "-m", "ultramon", "web", "--port", "0", "--json"]
        command += ["--state-dir", os.path.join(directory, "state")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as served:
            import json

            facts = json.loads(served.stdout.readline())
            client = httpx.Client(timeout=120)
            client.get(facts["loginUrl"])
            delays, sizes = [], []
            with client.stream("GET", f"{facts['url']}/live/") as followed:
                lines = (line for line in followed.iter_lines() if line.startswith("data: "))
                next(lines)
                began, cpu_began = time.monotonic(), cpu_seconds(served.pid)
                for number in range(rounds):
                    for record in records[: int(count * changing)]:
                        record.seq += 1
                        record.estimated_tokens += 1
                        backend.record(record, [], durable=False)
                    marked = records[number % count]
                    marked.seq += 1
                    marked.usage_ratio = 2.0 + number
                    backend.record(marked, [], durable=False)
                    changed = time.monotonic()
                    wanted = f"{marked.usage_ratio * 100:.1f} %"
                    sizes += [len(next(line for line in lines if wanted in line))]
                    delays.append(time.monotonic() - changed)
                spent = cpu_seconds(served.pid) - cpu_began
                share = spent / (time.monotonic() - began)
            client.close()
            served.terminate()
        backend.close()
    return median(delays), max(delays), share, sizes[-1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--changing", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    for count in chosen.agents:
        middle, longest, share, size = measure(count, chosen.changing, chosen.rounds)
        print(
            f"{count:,} agents: on the page after {middle:.2f} s, {longest:.2f} s at most; "
            f"{share:.1%} of a core, {size / 1024:.0f} KiB per message"
        )


if __name__ == "__main__":
    main()
