"""Many small processes, each an agent of its own, behind PgBouncer and without it."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
from postgres_load import percentile
from postgres_store import Store

POOL_SIZE = 20
STARTING = 4
"""Processes that start at a time; each needs a core for a third of a second."""
SAVE_SECONDS = 5.0
TIMEOUT_SECONDS = 120.0

AGENT = f"""
import logging, random, sys, time
from ultramon import ContextConfig, create_context_monitor

class Count(logging.Handler):
    errors = 0

    def emit(self, record):
        self.errors += 1
        print(record.getMessage(), file=sys.stderr)

name, seconds, count = sys.argv[1], float(sys.argv[2]), Count()
logger = logging.getLogger("ultramon")
logger.addHandler(count)
logger.propagate = False
config = ContextConfig(context_limit_tokens=200_000, tokenizer_family="chars/4")
monitor = create_context_monitor(name, config, run="pooler").start()
print("started", flush=True)
sys.stdin.readline()
chance, waits = random.Random(name), []
until = time.monotonic() + seconds
time.sleep(chance.uniform(0, {SAVE_SECONDS}))
while time.monotonic() < until:
    monitor.track_content("x" * 400)
    began = time.monotonic()
    monitor.update_heartbeat()
    waits.append(time.monotonic() - began)
    time.sleep(chance.uniform(0.5, 1.5) * {SAVE_SECONDS})
print(count.errors, *waits, flush=True)
sys.stdin.readline()
monitor.stop()
"""

CONFIGURATION = """\
[databases]
postgres = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {directory}/users
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 2000
ignore_startup_parameters = extra_float_digits
logfile = {directory}/log
pidfile = {directory}/pid
"""


class Crowd(NamedTuple):
    """What many processes have done, and what they cost."""

    started_seconds: float
    server_connections: int
    saves_per_second: float
    save_p50_ms: float
    save_p99_ms: float
    errors: int
    """Warnings that were logged, and processes that ended."""
    process_mb: float
    server_mb: float
    server_cores: float
    idle_server_cores: float
    pooler_mb: float | None
    pooler_cores: float | None


@contextmanager
def pooler(store: Store) -> Iterator[tuple[str, int]]:
    """Run PgBouncer in front of a store; yields the store's URL through it, and its pid."""
    from helpers import requirements
    from helpers.postgres_server import USER, free_port

    directory = Path(tempfile.mkdtemp(prefix="ultramon-pooler-"))
    port = free_port()
    (directory / "users").write_text(f'"{USER}" ""\n')
    (directory / "ini").write_text(
        CONFIGURATION.format(
            server=store.server.port, port=port, directory=directory, pool_size=POOL_SIZE
        )
    )
    as_user: list[str] = []
    if os.geteuid() == 0:
        as_user = requirements.as_nobody()
        shutil.chown(directory, requirements.NOBODY, requirements.NOBODY)
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None, "pgbouncer is not installed"
    process = subprocess.Popen(
        [*as_user, program, "-q", str(directory / "ini")], stderr=subprocess.DEVNULL
    )
    try:
        url = store.url.replace(f":{store.server.port}/", f":{port}/")
        until = time.monotonic() + TIMEOUT_SECONDS
        while not _answers(url):
            assert process.poll() is None, (directory / "log").read_text()
            assert time.monotonic() < until, "the pooler does not answer"
            time.sleep(0.05)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(TIMEOUT_SECONDS)
        shutil.rmtree(directory)


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url.replace("schema=ultramon&", "")).close()
    except psycopg.OperationalError:
        return False
    return True


def _memory_mb(pids: list[int]) -> float:
    """Return the memory of processes; what they share counts once."""
    kilobytes = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                kilobytes += int(line.split()[1])
    return kilobytes / 1024


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def run_crowd(
    store: Store, url: str, processes: int, seconds: int, pooler_pid: int | None = None
) -> Crowd:
    """Start agents, have them all save now and then for some seconds, and end them."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "ULTRAMON_BACKEND": url, "ULTRAMON_STATE_DIR": directory}
        began = time.monotonic()
        crowd: list[subprocess.Popen[str]] = []
        try:
            for number in range(processes):
                if number >= STARTING:
                    assert crowd[number - STARTING].stdout.readline() == "started\n"
                crowd.append(
                    subprocess.Popen(
                        [sys.executable, "-c", AGENT, f"small-{number:04}", str(seconds)],
                        env=environment,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
            for process in crowd[-STARTING:]:
                assert process.stdout.readline() == "started\n"
            started = time.monotonic() - began
            return _work(store, crowd, started, seconds, pooler_pid)
        finally:
            for process in crowd:
                process.communicate("\n", timeout=TIMEOUT_SECONDS)


def _work(
    store: Store,
    crowd: list[subprocess.Popen[str]],
    started_seconds: float,
    seconds: int,
    pooler_pid: int | None,
) -> Crowd:
    stored = "SELECT coalesce(sum(seq), 0)::int FROM ultramon.agents WHERE agent_id LIKE 'small-%'"
    idle_before, began = store.cost().cpu_seconds, time.monotonic()
    time.sleep(seconds / 3)
    idle_cores = (store.cost().cpu_seconds - idle_before) / (time.monotonic() - began)
    [(saved_before,)] = store.ask(stored)
    before, began = store.cost().cpu_seconds, time.monotonic()
    pooled_before = _cpu_seconds(pooler_pid) if pooler_pid else 0.0
    for process in crowd:
        process.stdin.write("\n")
        process.stdin.flush()
    connections, server_mb, process_mb = 0, 0.0, 0.0
    while time.monotonic() < began + seconds:
        time.sleep(seconds / 10)
        [(count,)] = store.ask(
            "SELECT count(*) - 2 FROM pg_stat_activity WHERE backend_type = 'client backend'"
        )
        connections = max(connections, count)
    first = store.server.pid()
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(first)], capture_output=True, text=True, check=True
    )
    server_mb = _memory_mb([first, *map(int, children.stdout.split())])
    alive = [process for process in crowd if process.poll() is None]
    process_mb = _memory_mb([process.pid for process in alive]) / len(alive)
    elapsed = time.monotonic() - began
    [(saved,)] = store.ask(stored)
    server_cores = (store.cost().cpu_seconds - before) / elapsed
    pooled = (_cpu_seconds(pooler_pid) - pooled_before) / elapsed if pooler_pid else None
    pooler_mb = _memory_mb([pooler_pid]) if pooler_pid else None
    errors, waits = len(crowd) - len(alive), []
    for process in alive:
        failed, *times = process.stdout.readline().split()
        errors += int(failed)
        waits += [float(value) * 1000 for value in times]
    return Crowd(
        started_seconds=started_seconds,
        server_connections=connections,
        saves_per_second=(saved - saved_before) / elapsed,
        save_p50_ms=statistics.median(waits),
        save_p99_ms=percentile(waits, 0.99),
        errors=errors,
        process_mb=process_mb,
        server_mb=server_mb,
        server_cores=server_cores,
        idle_server_cores=idle_cores,
        pooler_mb=pooler_mb,
        pooler_cores=pooled,
    )
