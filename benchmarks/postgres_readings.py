"""Readings of a team's month in PostgreSQL: what a save costs more, the report, and retention.

Ten million readings take some minutes. While others work:
`python benchmarks/postgres_readings.py --readings 1000000`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from postgres_store import Sample, Store, agent, running

from ultramon.backends.base import Save

PROGRAM = Path(sys.executable).parent / "ultramon"
MACHINES, SESSIONS_PER_DAY, DAYS = 50, 40, 30
ROUNDS = 7
SAVERS = 1_000
FIRST = "extract(epoch FROM date_trunc('day', now(), 'UTC'))::float8"
# Readings of sessions in turn, as they come in; each session has its host and model.
DAY_OF_READINGS = """
    INSERT INTO {table} (at, agent_id, machine_id, host, model, epoch, level, used_tokens,
        limit_tokens, input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, cost_usd)
    SELECT {first} - 86400.0 * {day} + 86400.0 * n / {count},
        machine || '-' || lpad(to_hex({day}), 4, '0') || lpad(to_hex(session), 8, '0'), machine,
        CASE session % 3 WHEN 0 THEN 'codex' ELSE 'claude-code' END,
        (ARRAY['gpt-5', 'claude-opus-4-6', 'claude-haiku-4-5'])[session % 3 + 1],
        1 + n / ({count} / 2), (ARRAY['normal', 'warning', 'critical'])[n % 3 + 1],
        n % 180000, 200000, 12, 20000 + n % 90000, 900, 350, 0.01
    FROM (SELECT n, n % {sessions} AS session,
        'm' || lpad(to_hex(n % {machines}), 8, '0') AS machine
        FROM generate_series(0, {count} - 1) AS n) AS made
"""
PARTITIONED = """
    CREATE TABLE ultramon.by_day (LIKE ultramon.readings) PARTITION BY RANGE (at);
    CREATE INDEX ON ultramon.by_day USING brin (at) WITH (pages_per_range = 32)
"""
ONE_DAY = """
    SELECT machine_id, count(*), max(used_tokens) FROM {table}
    WHERE at >= {first} - 86400.0 * 10 AND at < {first} - 86400.0 * 9 GROUP BY machine_id
"""
WHOLE_MONTH = """
    SELECT machine_id, count(DISTINCT agent_id), sum(output_tokens), sum(cost_usd) FROM {table}
    GROUP BY machine_id
"""


def seconds(store: Store, query: str) -> float:
    began = time.perf_counter()
    store.ask(query)
    return time.perf_counter() - began


def written(store: Store, table: str, day: int, count: int) -> float:
    """Write the readings of a day; return the seconds."""
    query = DAY_OF_READINGS.format(
        table=table,
        first=FIRST,
        day=day,
        count=count,
        sessions=MACHINES * SESSIONS_PER_DAY,
        machines=MACHINES,
    )
    return seconds(store, query)


def save_cost(store: Store, sample: Sample, *, measures: bool, seq: int, at_once: int) -> float:
    """Return the server's CPU in µs of a save, with a new reading each or without."""
    spent, saves = 0.0, 0
    for _ in range(ROUNDS):
        seq += 1
        batch = [Save(sample.state(number, seq), [], False) for number in range(SAVERS)]
        if not measures:
            for save in batch:
                save.record.measured_at = 1.0
        before = store.cost().cpu_seconds
        for start in range(0, SAVERS, at_once):
            refused = store.backend.record_together(batch[start : start + at_once])
            assert not any(refused)
        spent += store.cost().cpu_seconds - before
        saves += SAVERS
    return spent / saves * 1e6


def saves_table(store: Store) -> str:
    with tempfile.TemporaryDirectory() as folder:
        sample = Sample(folder)
    store.fill(sample, SAVERS)
    store.settle()
    rows, seq = [], 1
    for at_once in (200, 1):
        costs = []
        for measures in (False, True):
            # The first save of a new kind brings a reading in either case.
            save_cost(store, sample, measures=measures, seq=seq, at_once=at_once)
            seq += ROUNDS
            costs.append(save_cost(store, sample, measures=measures, seq=seq, at_once=at_once))
            seq += ROUNDS
        [(kept,)] = store.ask(
            f"SELECT count(*) FROM ultramon.readings WHERE agent_id = '{agent(0)}'"
        )
        assert kept >= 2 * ROUNDS
        rows.append(f"| {at_once} | {costs[0]:.0f} | {costs[1]:.0f} | {costs[1] / costs[0]:.2f} |")
    head = "| saves a step | server µs a save, nothing new | with a new reading | ratio |"
    store.ask("TRUNCATE ultramon.readings, ultramon.reading_days")
    return "\n".join([head, "|---|---|---|---|", *rows])


def report_seconds(store: Store, *options: str) -> float:
    """Return the median wall seconds of `ultramon report` as a process."""
    environ = {**os.environ, "ULTRAMON_BACKEND": store.url}
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        subprocess.run(
            [PROGRAM, "report", "--days", f"{DAYS + 1}", *options],
            env=environ,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def size_mb(store: Store, relation: str) -> float:
    [(size,)] = store.ask(
        f"SELECT pg_total_relation_size('{relation}') + coalesce((SELECT"
        "  sum(pg_total_relation_size(inhrelid)) FROM pg_inherits"
        f" WHERE inhparent = '{relation}'::regclass), 0)::bigint"
    )
    return float(size) / 1e6


def measure(readings: int) -> str:
    count = readings // DAYS
    with running(shared_buffers="1GB", max_wal_size="8GB") as store:
        saves = saves_table(store)
        plain = sum(
            written(store, "ultramon.readings", day, count) for day in reversed(range(DAYS))
        )
        store.settle()
        [(rows, days)] = store.ask(
            "SELECT (SELECT count(*) FROM ultramon.readings),"
            " (SELECT count(*) FROM ultramon.reading_days)"
        )
        reports = [
            ("`ultramon report`", report_seconds(store)),
            (
                "`ultramon report --by machine --json`",
                report_seconds(store, "--by", "machine", "--json"),
            ),
            (
                "by machine alone, of the readings themselves",
                seconds(store, WHOLE_MONTH.format(table="ultramon.readings")),
            ),
        ]
        store.ask("ALTER TABLE ultramon.readings DISABLE TRIGGER readings_summed")
        store.ask(
            "CREATE TABLE ultramon.unsummed (LIKE ultramon.readings);"
            "CREATE INDEX ON ultramon.unsummed USING brin (at) WITH (pages_per_range = 32)"
        )
        brin_write = sum(
            written(store, "ultramon.unsummed", day, count) for day in reversed(range(DAYS))
        )
        store.ask(PARTITIONED)
        for day in range(DAYS):
            [(low, high)] = store.ask(
                f"SELECT {FIRST} - 86400.0 * {day}, {FIRST} - 86400.0 * ({day} - 1)"
            )
            store.ask(
                f"CREATE TABLE ultramon.day_{day} PARTITION OF ultramon.by_day"
                f" FOR VALUES FROM ({low}) TO ({high})"
            )
        part_write = sum(
            written(store, "ultramon.by_day", day, count) for day in reversed(range(DAYS))
        )
        store.settle()
        compared = []
        for name, table, wrote in (
            ("BRIN on the time", "ultramon.unsummed", brin_write),
            ("a partition a day", "ultramon.by_day", part_write),
        ):
            day = statistics.median(
                seconds(store, ONE_DAY.format(table=table, first=FIRST)) for _ in range(ROUNDS)
            )
            size = size_mb(store, table)
            if table == "ultramon.by_day":
                gone = seconds(store, f"DROP TABLE ultramon.day_{DAYS - 1}")
            else:
                gone = seconds(
                    store,
                    f"DELETE FROM {table} WHERE at < {FIRST} - 86400.0 * ({DAYS} - 2)",
                )
                gone += seconds(store, f"VACUUM {table}")
            compared.append(
                f"| {name} | {readings / wrote / 1e3:.0f} | {size:.0f} | {day:.2f} | {gone:.2f} |"
            )
    return "\n\n".join(
        [
            f"{rows:,} readings of {MACHINES} machines with {SESSIONS_PER_DAY} sessions a day each"
            f" in {DAYS} days, {days:,} sums of days; written with their sums at"
            f" {readings / plain / 1e3:.0f}k a second.",
            saves,
            "\n".join(
                ["| a month of the team | wall s |", "|---|---|"]
                + [f"| {name} | {wall:.2f} |" for name, wall in reports]
            ),
            "\n".join(
                [
                    "| readings without their sums | written, k/s | MB | a day by machine, s"
                    " | a day deleted, s |",
                    "|---|---|---|---|---|",
                    *compared,
                ]
            ),
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readings", type=int, default=10_000_000)
    print(measure(parser.parse_args().readings))
