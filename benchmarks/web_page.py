"""The page over a store of files: how soon a change is on it, and what one open page costs.

One in a hundred agents changes in each round, as in a fleet at work; an HTTP client follows the
page as a browser does.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import httpx
import processor_time

from ultramon.backends.local.backend import LocalBackend
from ultramon.state.record import StateRecord
from ultramon.testing import make_record

COUNTS = (1_000, 10_000)
CHANGING = 0.01
ROUNDS = 12
PATIENCE_SECONDS = 60.0


class Followed(NamedTuple):
    """What was measured of a page with so many agents."""

    delays: list[float]
    """From a state that is stored to the message that shows it, seconds."""
    processor_share: float
    """Of one core, by the server."""
    message_bytes: int
    """Of the last message."""


def store(backend: LocalBackend, record: StateRecord) -> None:
    """Replace a state as its owner would, without a disk in the way."""
    with backend.directory.locked(record.agent_id, PATIENCE_SECONDS):
        backend.directory.replace(record, durable=False)


def plant(backend: LocalBackend, count: int) -> list[StateRecord]:
    """Store so many agents, none of them with a process."""
    now = time.time()
    records = []
    backend.directory.prepare()
    for number in range(count):
        record = make_record(
            f"agent-{number:05}", at=now, label=f"agent {number}", pid=None,
            usage_ratio=number % 60 / 100, estimated_tokens=2_000 * (number % 60),
            measured_at=now, heartbeat_interval_seconds=3_600.0,
        )  # fmt: skip
        store(backend, record)
        records.append(record)
    return records


def follow(count: int) -> Followed:
    """Serve a page and change agents below it, one of them in a way that the page must show."""
    with tempfile.TemporaryDirectory() as directory:
        backend = LocalBackend(os.path.join(directory, "state"))
        records = plant(backend, count)
        command = [sys.executable, "-m", "ultramon", "web", "--port", "0", "--json"]
        command += ["--state-dir", os.path.join(directory, "state")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as served:
            try:
                return _follow(backend, records, served)
            finally:
                served.terminate()
                backend.close()


def _follow(
    backend: LocalBackend, records: list[StateRecord], served: subprocess.Popen[str]
) -> Followed:
    facts = json.loads(served.stdout.readline())
    delays, size = [], 0
    with httpx.Client(timeout=PATIENCE_SECONDS) as client:
        client.get(facts["loginUrl"])
        with client.stream("GET", f"{facts['url']}/live/") as page:
            messages = (line for line in page.iter_lines() if line.startswith("data: "))
            next(messages)
            began, spent = time.monotonic(), processor_time.of_process(served.pid)
            for number in range(ROUNDS):
                for record in records[: int(len(records) * CHANGING)]:
                    record.seq += 1
                    record.estimated_tokens += 1
                    store(backend, record)
                marked = records[-1 - number]
                marked.seq += 1
                marked.usage_ratio = 2.0 + number
                store(backend, marked)
                stored = time.monotonic()
                wanted = f"{marked.usage_ratio * 100:.1f} %"
                size = len(next(message for message in messages if wanted in message))
                delays.append(time.monotonic() - stored)
            spent = processor_time.of_process(served.pid) - spent
            return Followed(delays, spent / (time.monotonic() - began), size)


def main() -> str:
    lines = [
        f"| agents, {CHANGING:.0%} of them change | on the page after s | at most | processor share"
        " | KiB per message |",
        "|---|---|---|---|---|",
    ]
    for count in COUNTS:
        found = follow(count)
        lines.append(
            f"| {count:,} | {statistics.median(found.delays):.2f} | {max(found.delays):.2f} |"
            f" {found.processor_share:.1%} | {found.message_bytes / 1024:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(main())
