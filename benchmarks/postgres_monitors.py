"""Processes of thousands of monitors each, over one PostgreSQL server.

What an agent feels while its process saves, beats and asks for 5,000 of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from typing import NamedTuple

from postgres_load import percentile
from postgres_store import running

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.postgres.backend import PostgresBackend

TRACKS_PER_SECOND = 400
SAVES_PER_SECOND = 4
TEXT = "what a tool answered, and what the agent made of it " * 8
_PAUSE_SECONDS = 5.0


class Felt(NamedTuple):
    """What the calls of one process took."""

    start_seconds: float
    track_ms: list[float]
    save_ms: list[float]
    cpu_seconds: float
    seconds: float


def run_process(url: str, number: int, monitors: int, seconds: float, done: object) -> None:
    """Start the monitors one after the other, then track and save like their agents would."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ["ULTRAMON_STATE_DIR"] = directory
        began = time.perf_counter()
        store, config = PostgresBackend(url), ContextConfig(context_limit_tokens=200_000)
        agents = [
            create_context_monitor(f"agent-{number}-{n}", config, backend=store)
            for n in range(monitors)
        ]
        for agent in agents:
            agent.start()
        start_seconds = time.perf_counter() - began
        time.sleep(_PAUSE_SECONDS)
        chance = random.Random(number)
        track_ms, save_ms = [], []
        cpu, began = time.process_time(), time.perf_counter()
        turn = 0
        while (passed := time.perf_counter() - began) < seconds:
            if passed < turn / TRACKS_PER_SECOND:
                time.sleep(turn / TRACKS_PER_SECOND - passed)
                continue
            agent = chance.choice(agents)
            called = time.perf_counter()
            agent.track_content(TEXT)
            track_ms.append((time.perf_counter() - called) * 1000)
            if turn % (TRACKS_PER_SECOND // SAVES_PER_SECOND) == 0:
                called = time.perf_counter()
                agent.update_heartbeat()
                save_ms.append((time.perf_counter() - called) * 1000)
            turn += 1
        cpu = time.process_time() - cpu
        done.put(Felt(start_seconds, track_ms, save_ms, cpu, time.perf_counter() - began))
        os._exit(0)  # the store goes with the server: nobody has to be stopped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--monitors", type=int, default=5_000, help="of each process")
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with running() as store:
        done = context.SimpleQueue()
        processes = [
            context.Process(
                target=run_process,
                args=(store.url, number, options.monitors, options.seconds, done),
            )
            for number in range(options.processes)
        ]
        for process in processes:
            process.start()
        felt: list[Felt] = [done.get() for _ in processes]
        for process in processes:
            process.join()
    started = options.monitors * options.processes / max(one.start_seconds for one in felt)
    track_ms = [value for one in felt for value in one.track_ms]
    save_ms = [value for one in felt for value in one.save_ms]
    cores = sum(one.cpu_seconds / one.seconds for one in felt)
    print(
        "| monitors | starts/s | `track_content`, p50 / p99 / longest ms"
        " | a save, p50 / p99 / longest ms | host cores |"
    )
    print("|---|---|---|---|---|")
    print(
        f"| {options.processes} × {options.monitors:,} | {started:,.0f}"
        f" | {percentile(track_ms, 0.5):.2f} / {percentile(track_ms, 0.99):.2f}"
        f" / {max(track_ms):.1f}"
        f" | {percentile(save_ms, 0.5):.1f} / {percentile(save_ms, 0.99):.1f}"
        f" / {max(save_ms):.1f} | {cores:.2f} |"
    )


if __name__ == "__main__":
    main()
