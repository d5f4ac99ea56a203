"""What the application of `ultramon watch` costs while 1,000 agents change."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import pexpect
import processor_time
from fleet import Herd

AGENTS = 1_000
CHANGES_PER_SECOND = 200
"""As if every agent worked and saved every five seconds."""
SECONDS = 20.0
SETTLED_SECONDS = 8.0
MEASURED = ((0, (24, 80)), (CHANGES_PER_SECOND, (24, 80)), (CHANGES_PER_SECOND, (60, 200)))


class ChangingHerd(Herd):
    """A herd in which every change is another number, so that the list is sorted anew."""

    chance = random.Random(20261123)

    def change(self, ids: list[str]) -> None:
        record = self.record
        for agent_id in ids:
            record.estimated_tokens = self.chance.randrange(140_000)
            record.usage_ratio = round(record.estimated_tokens / 200_000, 4)
            super().change([agent_id])


def share(herd: Herd, rows: int, columns: int, changes_per_second: int) -> tuple[float, int]:
    """Return the share of one processor that the application takes, and the bytes it writes."""
    child = pexpect.spawn(
        str(Path(sys.executable).with_name("ultramon")),
        ["watch"],
        dimensions=(rows, columns),
        env={**os.environ, "ULTRAMON_STATE_DIR": str(herd.folder.parent), "TERM": "xterm-256color"},
    )
    is_over = threading.Event()

    def change() -> None:
        number, step = 0, changes_per_second // 10
        while not is_over.wait(0.1):
            herd.change([herd.ids[(number + at) % AGENTS] for at in range(step)])
            number += step

    changing = threading.Thread(target=change)
    changing.start()
    written = 0

    def read_for(seconds: float) -> int:
        end, count = time.monotonic() + seconds, 0
        while (left := end - time.monotonic()) > 0:
            try:
                count += len(child.read_nonblocking(1 << 16, left))
            except pexpect.TIMEOUT:
                break
        return count

    try:
        read_for(SETTLED_SECONDS)
        before, began = processor_time.of_process(child.pid), time.monotonic()
        written = read_for(SECONDS)
        spent = processor_time.of_process(child.pid) - before
        passed = time.monotonic() - began
    finally:
        is_over.set()
        changing.join()
        child.kill(signal.SIGKILL)
        child.wait()
    return spent / passed, round(written / passed)


def main() -> str:
    lines = [
        f"| {AGENTS:,} agents | terminal | processor share | bytes/s written |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as directory:
        herd = ChangingHerd(directory, AGENTS)
        for changes, (rows, columns) in MEASURED:
            ratio, written = share(herd, rows, columns, changes)
            what = f"{changes} changes/s" if changes else "nothing changes"
            lines.append(f"| {what} | {columns}×{rows} | {ratio:.1%} | {written:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(main())
