"""A fleet's poll against reading and parsing the same files, killed children, and event latency."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ultramon import ContextConfig, Fleet, FleetEvent, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.state.record import StateRecord, encode_state

REPEATS = 7
KILLS = 20
CROSSINGS = 300

WORKER = """
import sys
from ultramon import create_context_monitor
monitor = create_context_monitor().start()
print("ready", flush=True)
sys.stdin.read()
"""

CROSSER = """
import random, sys, time
from ultramon import ContextConfig, create_context_monitor

chance = random.Random(20261121)
config = ContextConfig(context_limit_tokens=10_000, tokenizer_family="chars/4")
with create_context_monitor(config=config) as monitor:
    for _ in range(int(sys.argv[1])):
        # Not in step with whoever polls.
        time.sleep(chance.uniform(0.02, 0.12))
        epoch = monitor.get_state().epoch
        began = time.monotonic()
        monitor.track_content("x" * 30_000)
        print(epoch, began, time.monotonic(), flush=True)
        monitor.clear()
"""


def template() -> StateRecord:
    """Return the state of a real agent in the middle of a plan of ten items."""
    config = ContextConfig(model="claude-sonnet-4-5")
    with (
        tempfile.TemporaryDirectory() as path,
        create_context_monitor("agent", config, backend=path) as monitor,
    ):
        monitor.plan(f"chapter {number} of the book" for number in range(10))
        for item in monitor.pending()[:4]:
            with monitor.task(item):
                monitor.track_content("It was a dark night. " * 400, source="tool:read")
                monitor.report_usage(input_tokens=monitor.get_state().estimated_tokens)
        monitor.update_heartbeat()
        record = LocalBackend(path).load("agent").record
        assert record is not None
        return record


class Herd:
    """State files of many agents of one run, rewritten without a disk in the way.

    Args:
        directory: The state directory.
        count: How many agents.
    """

    def __init__(self, directory: str, count: int) -> None:
        self.folder = Path(directory) / "subagents"
        self.folder.mkdir(parents=True, mode=0o700)
        os.chmod(directory, 0o700)
        self.record = template()
        self.ids = [f"agent-{number:05}" for number in range(count)]
        for agent_id in self.ids:
            (self.folder / f"{agent_id}.hb").touch(mode=0o600)
        self.change(self.ids)

    def change(self, ids: list[str]) -> None:
        """Replace states, as their owners would after some progress."""
        self.record.seq += 1
        self.record.last_heartbeat = time.time()
        temporary = self.folder / ".new.tmp"
        for agent_id in ids:
            self.record.agent_id = agent_id
            temporary.touch(mode=0o600)
            temporary.write_bytes(encode_state(self.record, agent_id))
            temporary.rename(self.folder / f"{agent_id}.json")

    def read_with(self, loads: Callable[[bytes], object]) -> int:
        """Read and parse all state files; return how many."""
        read = 0
        for entry in os.scandir(self.folder):
            if entry.name.endswith(".json"):
                with open(entry.path, "rb") as file:
                    loads(file.read())
                read += 1
        return read


def milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def polls(count: int) -> list[str]:
    """Compare looks and polls with parsing, over states of which all, 1 % or none changed."""
    times: dict[str, list[float]] = {}

    def measure(name: str, call: Callable[[], object]) -> None:
        times.setdefault(name, []).append(milliseconds(call))

    with tempfile.TemporaryDirectory() as directory:
        herd = Herd(directory, count)
        backend = LocalBackend(directory)
        fleet = Fleet(herd.record.run, backend=backend)
        seen: dict[str, object] = {}
        fleet.poll()
        backend.changes(None, seen)
        for _ in range(REPEATS):
            for share, changed in ((1.0, "all"), (0.01, "1 %"), (0.0, "none")):
                herd.change(herd.ids[: int(count * share)])
                measure(f"poll, {changed} changed", fleet.poll)
                measure(
                    f"its look at the files, {changed} changed", lambda: backend.changes(None, seen)
                )
            try:
                import orjson
            except ImportError:
                pass
            else:
                measure("reading all, parsing with orjson", lambda: herd.read_with(orjson.loads))
            measure("reading all, parsing with json", lambda: herd.read_with(json.loads))
        size = (herd.folder / f"{herd.ids[0]}.json").stat().st_size
        fleet.close()
        backend.close()
    medians = {name: statistics.median(values) for name, values in times.items()}
    base = medians.get("reading all, parsing with orjson", float("nan"))
    return [
        f"| {count:,} × {size:,} B | {name} | {median:.1f} | {median / base:.2f} |"
        for name, median in medians.items()
    ]


def kills(how: str) -> str:
    """Kill children; return in which poll each was noticed, and what that poll took."""
    needed, took = [], []
    fleet = Fleet("kills")
    for number in range(KILLS):
        agent_id = f"{how}-{number}"
        child = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            env=fleet.env(agent_id),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        child.stdout.readline()
        if how == "attach":
            fleet.attach(agent_id, child)
        fleet.poll()
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        for poll in range(1, 10):
            began = time.perf_counter()
            names = [event.name for event in fleet.poll()]
            if "lost" in names:
                needed.append(poll)
                took.append((time.perf_counter() - began) * 1000)
                break
        child.communicate()
    fleet.close()
    return (
        f"| {how} | {len(needed)} of {KILLS} | {max(needed, default=0)} "
        f"| {statistics.median(took or [0]):.1f} |"
    )


def latency() -> str:
    """Return how long a crossing in one process takes to the handler in another."""
    fleet = Fleet("latency")
    arrived: dict[int, float] = {}

    @fleet.on("prepare_handoff")
    def note(event: FleetEvent) -> None:
        arrived[event.epoch] = time.monotonic()

    @fleet.on("ended")
    def stop(event: FleetEvent) -> None:
        fleet.stop()

    watcher = threading.Thread(target=fleet.run)
    watcher.start()
    done = subprocess.run(
        [sys.executable, "-c", CROSSER, str(CROSSINGS)],
        env=fleet.env("crosser"),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    watcher.join()
    delays, calls = [], []
    for line in done.stdout.splitlines():
        epoch, began, ended = line.split()
        delays.append((arrived[int(epoch)] - float(began)) * 1000)
        calls.append((float(ended) - float(began)) * 1000)
    return "\n".join(
        [
            "| | crossings | p50 ms | p99 ms | longest ms |",
            "|---|---|---|---|---|",
            _spread("to the handler in the other process", delays),
            _spread("the agent's call, event stored", calls),
        ]
    )


def _spread(name: str, values: list[float]) -> str:
    ordered = sorted(values)
    p99 = ordered[int(len(ordered) * 0.99)]
    median = statistics.median(ordered)
    return f"| {name} | {len(ordered)} | {median:.1f} | {p99:.1f} | {ordered[-1]:.1f} |"


def main() -> str:
    rows = [*polls(1000), *polls(10_000)]
    with tempfile.TemporaryDirectory() as directory:
        os.environ["ULTRAMON_STATE_DIR"] = directory
        return "\n\n".join(
            [
                "### A poll of many state files",
                "\n".join(
                    ["| files | what | ms | × orjson |", "|---|---|---|---|", *rows],
                ),
                "### A child killed with SIGKILL",
                "\n".join(
                    [
                        "| known by | noticed | in poll no., at most | ms of that poll |",
                        "|---|---|---|---|",
                        kills("attach"),
                        kills("pid"),
                    ]
                ),
                "### From `track_content` in one process to the handler in another",
                latency(),
            ]
        )


if __name__ == "__main__":
    print(main())
