"""What the history of readings adds to a save, and to the listing of a state directory.

The rest of its cost is one more module that a process loads: `startup.py` has that in its rows.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ultramon.backends.local.state_files import StateDirectory
from ultramon.state.history_ring import FILE_BYTES
from ultramon.state.record import StateRecord
from ultramon.testing.samples import make_record

ROUNDS = 301
AGENTS = 10_000
LISTINGS = 21


def _processor_seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


class _Saved:
    """One agent that is saved with a new reading each time."""

    def __init__(self, path: str, *, has_reading: bool) -> None:
        self.files = StateDirectory(path)
        self.files.prepare()
        self.record: StateRecord = make_record("scout-1", tokens_source="reported")
        self.files.replace(self.record, durable=False)
        self._has_reading = has_reading

    def save(self) -> None:
        record = self.record
        record.seq += 1
        record.estimated_tokens = record.seq
        if self._has_reading:
            record.measured_at = record.started_at + record.seq
        with self.files.locked(record.agent_id, 1.0):
            self.files.check_generation(record)
            self.files.replace(record, durable=False)


def saves(folder: str) -> str:
    """Compare saves with a new reading with saves of a state that has none."""
    agents = {
        "with a new reading": _Saved(f"{folder}/read", has_reading=True),
        "without a reading": _Saved(f"{folder}/plain", has_reading=False),
    }
    times: dict[str, list[float]] = {name: [] for name in agents}
    for _ in range(ROUNDS):
        for name, agent in agents.items():
            times[name].append(_processor_seconds(agent.save))
    lines = [f"| a save, {FILE_BYTES:,} bytes of history | processor µs |", "|---|---|"]
    for name, seconds in times.items():
        lines.append(f"| {name} | {statistics.median(seconds) * 1e6:.0f} |")
    return "\n".join(lines)


def listings(folder: str) -> str:
    """Compare listing state directories with and without histories; none of them is read."""
    suffixes = [".json", ".lock", ".hb"]
    times: dict[str, list[float]] = {}
    directories = {}
    for name, kept in (("without histories", suffixes), ("with them", [*suffixes, ".hist"])):
        directory = StateDirectory(f"{folder}/{name}")
        directory.prepare()
        for number in range(AGENTS):
            for suffix in kept:
                Path(directory.file(f"scout-{number}", suffix)).touch()
        directories[name], times[name] = directory, []
    for _ in range(LISTINGS):
        for name, directory in directories.items():
            times[name].append(_processor_seconds(directory.scan))
    lines = [f"| listing {AGENTS:,} agents | processor ms |", "|---|---|"]
    for name, seconds in times.items():
        lines.append(f"| {name} | {statistics.median(seconds) * 1e3:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ULTRAMON_STATE_DIR"] = folder
        print(f"{saves(folder)}\n\n{listings(folder)}")
