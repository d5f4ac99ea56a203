"""The PostgreSQL backend: the load of many agents, single steps, and many processes at a pooler.

All on one machine: the server shares its cores with those who put the load on it. While others
work: `python benchmarks/postgres.py --agents 10000 --seconds 10 --processes 40`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile

from postgres_load import BEATS_PER_SAVE, HOSTS, INTERVAL_SECONDS, Load, percentile, run_load
from postgres_pooler import POOL_SIZE, SAVE_SECONDS, Crowd, pooler, run_crowd
from postgres_steps import (
    CROSSINGS,
    HERD,
    deliveries,
    idle_second,
    local_polls,
    polls,
    run_steps,
)
from postgres_store import Sample, Store, running

MEGABYTE = 1_000_000
ALL = 1_000


def table(head: str, rows: list[str]) -> str:
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows])


def load_row(name: str, load: Load) -> str:
    grown = load.disk_bytes_after - load.disk_bytes_before
    return (
        f"| {name} | {load.beats_per_second:,.0f} | {load.saves_per_second:,.0f}"
        f" | {load.tick_p50_ms:.0f} / {load.tick_p99_ms:.0f}"
        f" | {load.save_p50_ms:.0f} / {load.save_p99_ms:.0f} | {load.late} of {load.ticks}"
        f" | {load.server_cores:.3f} | {load.client_cores:.3f}"
        f" | {load.wal_bytes_per_second / MEGABYTE:.2f}"
        f" | {load.disk_bytes_before / MEGABYTE:.0f} + {grown / MEGABYTE:.1f} |"
    )


def loads(store: Store, agents: int, seconds: int) -> str:
    """Put the load on, with the saves of a second as one step, and one by one."""
    together = run_load(store, agents, seconds, ALL)
    store.settle()
    alone = run_load(store, agents, seconds, 1)
    assert together.refused == alone.refused == 0
    head = (
        "| saves of a host's second | beats/s | saves/s | beats of a second, p50 / p99 ms"
        " | a save step, p50 / p99 ms | late | server cores | host cores | WAL MB/s"
        " | tables, MB |"
    )
    beats, hot = "heartbeats", store.hot_share("heartbeats")
    return (
        table(head, [load_row("as one step", together), load_row("one by one", alone)])
        + f"\n\n{agents:,} agents on {HOSTS} hosts (a process and a backend each), one beat per"
        f" {INTERVAL_SECONDS} s, every {BEATS_PER_SAVE}th with a durable save, its event and its"
        f" notice; {seconds} s each, begun right after a checkpoint. Late is a second whose work"
        " was not done when the next began. Server: all its processes, those that ended as well."
        f" Of the updates of `{beats}` {hot:.1%} touched no index."
    )


def steps(store: Store, sample: Sample, agents: int, share: float) -> str:
    with store.without_page_images():
        measured = [*run_steps(store, sample, agents, share), (idle_second(store), None)]
    rows = [
        f"| {step.name} | {step.per_second:,.0f} | {'' if local is None else f'{local:,.0f}'}"
        f" | {step.p50_ms:.2f} / {step.p99_ms:.2f} | {step.server_us:,.0f} | {step.client_us:,.0f}"
        f" | {step.wal_bytes:,.0f} | {step.disk_bytes:,.0f} |"
        for step, local in measured
    ]
    head = (
        "| step, one client | a second | local files, a second | p50 / p99 ms of a call"
        " | server CPU µs | client CPU µs | WAL bytes | disk bytes |"
    )
    return (
        table(head, rows)
        + "\n\nRates, µs and bytes are of one state, beat or message. WAL is without the images of"
        " pages that the first change after a checkpoint adds; disk is what the tables grew by"
        " before anything was vacuumed."
    )


def delivery(store: Store) -> str:
    rows = []
    for name, hint in (("LISTEN", True), ("a poll each 10 ms", False)):
        waits = deliveries(store.url, hint=hint)
        rows.append(f"| {name} | {statistics.median(waits):.1f} | {percentile(waits, 0.99):.1f} |")
    head = f"| {CROSSINGS} messages, queued → claimed | p50 ms | p99 ms |"
    return table(head, rows)


def poll_table(store: Store, sample: Sample, agents: int) -> str:
    rows = [
        f"| PostgreSQL, {agents:,} agents | {name} | {took:.1f} | {server:.1f} |"
        for name, took, server in polls(store, sample, agents)
    ]
    rows += [
        f"| local files, {HERD:,} agents | {name} | {took:.1f} | |" for name, took in local_polls()
    ]
    return table("| `Fleet.poll` | what | ms | of that server CPU ms |", rows)


def crowd_row(name: str, crowd: Crowd) -> str:
    pooled = (
        "" if crowd.pooler_mb is None else f"{crowd.pooler_mb:.1f} MB, {crowd.pooler_cores:.3f}"
    )
    return (
        f"| {name} | {crowd.started_seconds:.0f} | {crowd.server_connections}"
        f" | {crowd.saves_per_second:.0f} | {crowd.save_p50_ms:.1f} / {crowd.save_p99_ms:.1f}"
        f" | {crowd.errors} | {crowd.process_mb:.0f} | {crowd.server_mb:.0f}"
        f" | {crowd.server_cores:.3f} | {crowd.idle_server_cores:.3f} | {pooled} |"
    )


def crowds(processes: int, seconds: int) -> str:
    with running() as store:
        with pooler(store) as (url, pid):
            pooled = run_crowd(store, url, processes, seconds, pid)
        direct = run_crowd(store, store.url, processes, seconds)
    head = (
        f"| {processes} processes | s until all have started | server connections | saves/s"
        " | a save, p50 / p99 ms | errors | MB a process | MB server | server cores"
        " | server cores, idle | PgBouncer, cores |"
    )
    return (
        table(head, [crowd_row("PgBouncer", pooled), crowd_row("direct", direct)])
        + f"\n\nEach process is one agent: `import ultramon`, `start()`, and about every"
        f" {SAVE_SECONDS:.0f} s `update_heartbeat()`, which is a durable save. PgBouncer in"
        f" transaction mode, {POOL_SIZE} server connections. Memory is proportional set size."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--processes", type=int, default=500)
    given = parser.parse_args()
    share = min(1.0, given.seconds / 60)
    with tempfile.TemporaryDirectory() as directory:
        os.environ["ULTRAMON_STATE_DIR"] = directory
        with running() as store:
            sample = Sample(directory)
            store.fill(sample, given.agents)
            print("### The load of a large fleet\n")
            print(loads(store, given.agents, given.seconds), flush=True)
            store.settle()
            print("\n### Single steps\n")
            print(steps(store, sample, given.agents, share), flush=True)
            print("\n### From one process to another\n")
            print(delivery(store), flush=True)
            store.settle()
            print("\n### A poll of many agents\n")
            print(poll_table(store, sample, given.agents), flush=True)
        print("\n### Many small processes\n")
        print(crowds(given.processes, given.seconds // 2), flush=True)


if __name__ == "__main__":
    main()
