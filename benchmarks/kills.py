"""Writers killed with SIGKILL at random while a reader looks: torn, invalid, lost states."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time

from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import AgentNotFoundError, StateCorruptError

KILLS = 500
WRITER = """
import sys
from ultramon import ContextConfig, create_context_monitor
monitor = create_context_monitor("victim", ContextConfig(on_error="raise"), takeover=True).start()
while True:
    monitor.track_content("some text that is read")
    monitor.update_heartbeat()
    sys.stdout.write(f"{monitor.get_state().seq}\\n")
    sys.stdout.flush()
"""


def one_life(directory: StateDirectory, delay_seconds: float) -> tuple[int, int, int]:
    """Let a writer live for a while; return reads, bad reads, and acknowledged states lost."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    acknowledged = int(writer.stdout.readline())
    reads = bad = 0
    deadline = time.monotonic() + delay_seconds
    while time.monotonic() < deadline:
        reads += 1
        try:
            directory.read("victim")
        except (StateCorruptError, AgentNotFoundError):
            bad += 1
        while select.select([writer.stdout], [], [], 0)[0]:
            acknowledged = int(writer.stdout.readline())
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    for line in writer.stdout.read().split():
        acknowledged = int(line)
    writer.stdout.close()
    lost = directory.read("victim").seq < acknowledged
    return reads, bad, int(lost)


def main() -> str:
    reads = bad = lost = 0
    chance = random.Random(20261121)
    with tempfile.TemporaryDirectory() as path:
        os.environ["ULTRAMON_STATE_DIR"] = path
        directory = StateDirectory(path)
        for _ in range(KILLS):
            more = one_life(directory, chance.uniform(0.0, 0.06))
            reads, bad, lost = reads + more[0], bad + more[1], lost + more[2]
        orphans = sum(name.endswith(".tmp") for name in os.listdir(directory.folder))
    return (
        "| writers killed | reads meanwhile | torn or invalid | acknowledged states lost "
        "| orphan temporary files |\n|---|---|---|---|---|\n"
        f"| {KILLS} | {reads:,} | {bad} | {lost} | {orphans} |"
    )


if __name__ == "__main__":
    print(main())
