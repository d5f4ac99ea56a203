"""The load of many agents on a few hosts: they beat in turn, and now and then store a crossing."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from typing import NamedTuple

from postgres_store import Sample, Store, agent

from ultramon.backends.base import Save
from ultramon.backends.postgres.backend import PostgresBackend

HOSTS = 4
INTERVAL_SECONDS = 15
BEATS_PER_SAVE = 20
_START_SECONDS = 3.0


class Plan(NamedTuple):
    """What each host is to do."""

    seconds: int
    together: int
    """Saves in one step, at most."""
    first_seq: int


class Ticks(NamedTuple):
    """What one host has done."""

    beat_ms: list[float]
    """Of each second's batch of heartbeats."""
    save_ms: list[float]
    beats: int
    saved: int
    refused: int
    late: int
    """Seconds whose work was not done when the next one began."""
    cpu_seconds: float


class Load(NamedTuple):
    """What all hosts have done, and what it cost the server."""

    agents: int
    seconds: int
    beats_per_second: float
    saves_per_second: float
    tick_p50_ms: float
    tick_p99_ms: float
    save_p50_ms: float
    save_p99_ms: float
    ticks: int
    late: int
    refused: int
    server_cores: float
    client_cores: float
    wal_bytes_per_second: float
    disk_bytes_before: int
    disk_bytes_after: int


def host(url: str, numbers: range, begin_at: float, plan: Plan, done: object) -> None:
    """Be one host: a backend, and agents whose beats are spread over the interval."""
    backend = PostgresBackend(url)
    beat_ms, save_ms = [], []
    beats = saved = refused = late = 0
    with tempfile.TemporaryDirectory() as directory:
        sample = Sample(directory)
        backend.load(agent(numbers[0]))
        cpu = time.process_time()
        for tick in range(plan.seconds):
            due = begin_at + tick
            time.sleep(max(0.0, due - time.time()))
            turn = tick // INTERVAL_SECONDS
            first = tick % INTERVAL_SECONDS * len(numbers) // INTERVAL_SECONDS
            end = (tick % INTERVAL_SECONDS + 1) * len(numbers) // INTERVAL_SECONDS
            # Agents that started together beat together, and lie together on the disk.
            slot = numbers[first:end]
            began = time.perf_counter()
            refused += len(backend.heartbeat([(agent(n), 1) for n in slot], time.time()))
            beat_ms.append((time.perf_counter() - began) * 1000)
            beats += len(slot)
            due_now = slot[turn % BEATS_PER_SAVE :: BEATS_PER_SAVE]
            saves = [
                Save(*sample.crossing(number, plan.first_seq + turn), True) for number in due_now
            ]
            for start in range(0, len(saves), plan.together):
                part = saves[start : start + plan.together]
                began = time.perf_counter()
                refused += sum(one is not None for one in backend.record_together(part))
                save_ms.append((time.perf_counter() - began) * 1000)
            saved += len(saves)
            late += time.time() > due + 1.0
        cpu = time.process_time() - cpu
    backend.close()
    done.put(Ticks(beat_ms, save_ms, beats, saved, refused, late, cpu))


def run_load(store: Store, agents: int, seconds: int, together: int) -> Load:
    """Have all hosts work for some seconds; the store holds so many agents."""
    context = multiprocessing.get_context("spawn")
    done = context.Queue()
    begin_at = time.time() + _START_SECONDS
    [(newest,)] = store.ask("SELECT max(seq) FROM ultramon.agents")
    processes = [
        context.Process(
            target=host,
            args=(
                store.url,
                range(number * agents // HOSTS, (number + 1) * agents // HOSTS),
                begin_at + number / HOSTS,
                Plan(seconds, together, newest + 1),
                done,
            ),
        )
        for number in range(HOSTS)
    ]
    for process in processes:
        process.start()
    time.sleep(max(0.0, begin_at - 0.2 - time.time()))
    before, began = store.cost(), time.monotonic()
    hosts: list[Ticks] = [done.get() for _ in processes]
    for process in processes:
        process.join()
    elapsed = time.monotonic() - began
    after = store.cost()
    beat_ms = [value for ticks in hosts for value in ticks.beat_ms]
    save_ms = [value for ticks in hosts for value in ticks.save_ms]
    return Load(
        agents=agents,
        seconds=seconds,
        beats_per_second=sum(ticks.beats for ticks in hosts) / seconds,
        saves_per_second=sum(ticks.saved for ticks in hosts) / seconds,
        tick_p50_ms=statistics.median(beat_ms),
        tick_p99_ms=percentile(beat_ms, 0.99),
        save_p50_ms=statistics.median(save_ms),
        save_p99_ms=percentile(save_ms, 0.99),
        ticks=len(beat_ms),
        late=sum(ticks.late for ticks in hosts),
        refused=sum(ticks.refused for ticks in hosts),
        server_cores=(after.cpu_seconds - before.cpu_seconds) / elapsed,
        client_cores=sum(ticks.cpu_seconds for ticks in hosts) / elapsed,
        wal_bytes_per_second=(after.wal_bytes - before.wal_bytes) / elapsed,
        disk_bytes_before=before.disk_bytes,
        disk_bytes_after=after.disk_bytes,
    )


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
