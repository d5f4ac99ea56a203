"""Many machines that share their sessions in one PostgreSQL database: lag, cost, and kills.

Each machine is a state directory with its own identity, its own database user and the real process
of `ultramon share`. Sessions are state files and a journal that are written as hooks write them.
First the lag is measured, from the moment a state is stored to the first look of another connection
that sees it, and what the database's processes cost; then processes of machines and the database
are killed while the sessions continue, and what is missing or twice at the end is counted.

By hand: ``python benchmarks/share_many.py [--machines 50] [--sessions 40] [--seconds 120]``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from results import replace_section

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.postgres.admin.roles import MACHINE
from ultramon.backends.postgres.admin.setup import migrate
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.context.ladder import PREPARE_HANDOFF
from ultramon.share import program
from ultramon.share.choices import KEPT_SECONDS, Choices
from ultramon.share.identity import Identity, new_identity, store_identity
from ultramon.share.sent_events import redact_event
from ultramon.share.status import read_status
from ultramon.testing import make_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.postgres_server import Server

    from ultramon.state.record import StateRecord

# The tests know how to run a server.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
SETTINGS = {"fsync": "on", "shared_buffers": "256MB", "max_connections": "300"}
STEP_SECONDS = 0.02
LOOK_SECONDS = 0.1
WINDOW_TOKENS = 200_000
WARNING_TOKENS = 130_000
SETTLE_SECONDS = 180.0
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """One machine: its files, its sessions, and the process that shares."""

    def __init__(self, directory: Path, url: str, sessions: int) -> None:
        directory.mkdir(mode=0o700)
        self.directory = str(directory)
        self.backend = LocalBackend(self.directory)
        self.backend.directory.prepare()
        self.identity: Identity = new_identity()
        store_identity(self.directory, self.identity)
        Choices(url, None, (), None, KEPT_SECONDS).save(self.directory)
        self.sessions = [self._session(number) for number in range(sessions)]
        self.process: subprocess.Popen[bytes] | None = None
        self.readings: Counter[str] = Counter()

    def _session(self, number: int) -> StateRecord:
        name = f"session-{number:04}-{secrets.token_hex(8)}"
        return make_record(
            name,
            at=time.time(),
            session_id=name,
            host="claude-code",
            model="claude-sonnet-4-5",
            label=f"a project: a first prompt {number}",
            cwd=self.directory,
            heartbeat_interval_seconds=None,
            tokens_source="reported",
            estimated_tokens=random.randrange(20_000, 170_000),
        )

    def start(self) -> None:
        """Start the process that shares."""
        self.process = subprocess.Popen(
            [sys.executable, "-P", program.__file__, self.directory],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        """Kill it at whatever it does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def work(self, number: int, chance: random.Random) -> tuple[str, int]:
        """Store the next reading of a session; return its id in the database and its sequence."""
        record = self.sessions[number]
        now = time.time()
        record.seq += 1
        record.last_heartbeat = record.last_activity = record.measured_at = now
        before = record.estimated_tokens
        record.estimated_tokens += chance.randrange(200, 4_000)
        events = []
        if record.estimated_tokens > WINDOW_TOKENS * 0.9:
            record.epoch, record.epoch_started_at = record.epoch + 1, now
            record.estimated_tokens, record.threshold_status = 15_000, "normal"
            record.action = "none"
            events.append(
                record.event(
                    "context_epoch_started",
                    at=now,
                    n=record.seq,
                    reason="compaction",
                    tokensBefore=before,
                    tokensAfter=15_000,
                )
            )
        elif before < WARNING_TOKENS <= record.estimated_tokens:
            record.threshold_status, record.action = "warning", PREPARE_HANDOFF
            events.append(
                record.event(
                    "context_threshold_reached",
                    at=now,
                    n=record.seq,
                    level="warning",
                    previousLevel="normal",
                    action=PREPARE_HANDOFF,
                    tokens=record.estimated_tokens,
                    usageRatio=record.estimated_tokens / WINDOW_TOKENS,
                    contextLimit=WINDOW_TOKENS,
                    tokensSource="reported",
                )
            )
        record.usage_ratio = record.estimated_tokens / WINDOW_TOKENS
        if record.seq == 1:
            events.insert(0, record.event("agent_started", at=now, n=0))
            self.backend.append_events(events)
            self.backend.directory.replace(record, durable=False)
        else:
            self.backend.record(record, events, durable=bool(events))
        opaque = self.identity.agent_id(record.agent_id)
        self.readings[opaque] += 1
        return opaque, record.seq

    def end(self) -> None:
        """End the process, and close what is open."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.backend.close()


class Team:
    """The database, and a connection that looks."""

    def __init__(self) -> None:
        from helpers.postgres_server import Server

        self.server: Server = Server(**SETTINGS)
        self.server.start()
        backend = PostgresBackend(self.server.url())
        migrate(backend.database, create_roles=True)
        backend.close()
        self._looking: psycopg.Connection[Any] | None = None
        self._since = "0"

    def login(self) -> str:
        """Return the URL of the store for one more machine."""
        name = f"machine_{secrets.token_hex(6)}"
        with self._connect() as connection:
            connection.execute(f"CREATE ROLE {name} LOGIN IN ROLE {MACHINE}")
        return self.server.url().replace("//ultramon@", f"//{name}@")

    def _connect(self) -> psycopg.Connection[Any]:
        url = self.server.url().partition("?")[0]
        return psycopg.connect(f"{url}?sslmode=disable", autocommit=True)

    def look(self) -> list[tuple[str, int]]:
        """Return id and sequence of what has changed since the last look; nothing while away."""
        try:
            if self._looking is None:
                self._looking = self._connect()
            [(next_one,)] = self._looking.execute(
                "SELECT pg_snapshot_xmin(pg_current_snapshot())::text"
            )
            rows = self._looking.execute(
                "SELECT agent_id, seq FROM ultramon.agents WHERE changed >= %s::xid8",
                (self._since,),
            ).fetchall()
        except psycopg.Error:
            self._looking = None
            return []
        self._since = next_one
        return rows

    def all(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._connect() as connection:
            return connection.execute(query).fetchall()

    def processor_seconds(self) -> float:
        """Return what the server's processes have cost so far, without the one that looks."""
        first = self.server.pid()
        # Those that have ended are counted by their parent.
        total = sum(_times(first))
        looking = self._looking.info.backend_pid if self._looking is not None else 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError, IndexError):
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[1]) == first and int(path.parent.name) != looking:
                    total += (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS
        return total


def _times(pid: int) -> tuple[float, ...]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return tuple(int(one) / _CLOCK_TICKS for one in fields[11:15])


class Lags:
    """How long each state took to be seen."""

    def __init__(self) -> None:
        self._stored: dict[str, list[tuple[int, float]]] = {}
        self.seconds: list[float] = []

    def stored(self, agent_id: str, seq: int) -> None:
        self._stored.setdefault(agent_id, []).append((seq, time.monotonic()))

    def seen(self, rows: list[tuple[str, int]]) -> None:
        now = time.monotonic()
        for agent_id, seq in rows:
            waiting = self._stored.get(agent_id)
            while waiting and waiting[0][0] <= seq:
                self.seconds.append(now - waiting.pop(0)[1])

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


class Missing(NamedTuple):
    """What the database lacks of what the machines hold, and what it has too often."""

    states: int
    events: int
    readings: int
    doubled: int

    @property
    def is_none(self) -> bool:
        return not any(self)


def compare(team: Team, machines: list[Machine]) -> Missing:
    """Compare every state, event and reading."""
    stored_seqs = dict(team.all("SELECT agent_id, seq FROM ultramon.agents"))
    stored_events = Counter(
        json.loads(payload)["eventId"]
        for (payload,) in team.all("SELECT payload FROM ultramon.events")
    )
    stored_readings = dict(
        team.all("SELECT agent_id, count(*) FROM ultramon.readings GROUP BY agent_id")
    )
    states = events = readings = doubled = 0
    for machine in machines:
        for record in machine.sessions:
            opaque = machine.identity.agent_id(record.agent_id)
            states += stored_seqs.get(opaque) != record.seq
            difference = machine.readings[opaque] - stored_readings.get(opaque, 0)
            readings, doubled = readings + max(difference, 0), doubled + max(-difference, 0)
        for event in machine.backend.events(limit=10**9).events:
            sent = redact_event(event, machine.identity, {})
            if sent is not None:
                found = stored_events.get(sent["eventId"], 0)
                events, doubled = events + (found == 0), doubled + max(found - 1, 0)
    return Missing(states, events, readings, doubled)


class Work:
    """Sessions that store readings at random moments, until a time."""

    def __init__(self, team: Team, machines: list[Machine], interval_seconds: float) -> None:
        self._team = team
        self._machines = machines
        self._rate = sum(len(one.sessions) for one in machines) / interval_seconds
        self._chance = random.Random(36)
        self.count = 0

    def run(
        self, seconds: float, lags: Lags | None, each_second: Callable[[int], object] = abs
    ) -> None:
        """Let the sessions work.

        Args:
            seconds: So long, and until `each_second` was called as often.
            lags: Where it is noted when a state is stored, and seen.
            each_second: Called once a second with its number.
        """
        began_at = time.monotonic()
        looked_at, done, second = began_at, 0, 0
        while (now := time.monotonic()) - began_at < seconds or second < int(seconds):
            while done < (now - began_at) * self._rate:
                machine = self._chance.choice(self._machines)
                number = self._chance.randrange(len(machine.sessions))
                opaque, seq = machine.work(number, self._chance)
                if lags is not None:
                    lags.stored(opaque, seq)
                done += 1
            if lags is not None and now - looked_at >= LOOK_SECONDS:
                looked_at = now
                lags.seen(self._team.look())
            if now - began_at >= second + 1:
                second += 1
                each_second(second)
            time.sleep(STEP_SECONDS)
        self.count += done


def settle(team: Team, machines: list[Machine]) -> Missing:
    """Wait until all has arrived, at most three minutes; return what has not."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        missing = compare(team, machines)
        waits = any(
            (read_status(one.directory) or {"waitingReadings": 1})["waitingReadings"]
            for one in machines
        )
        if (missing.is_none and not waits) or time.monotonic() > deadline:
            return missing
        time.sleep(2.0)


def measure(given: argparse.Namespace, folder: Path) -> list[str]:
    """Return the lines of the section."""
    team = Team()
    machines: list[Machine] = []
    try:
        for number in range(given.machines):
            machines.append(Machine(folder / f"machine-{number}", team.login(), given.sessions))
        chance = random.Random(7)
        for machine in machines:
            for number in range(given.sessions):
                machine.work(number, chance)
            machine.start()
        work = Work(team, machines, given.interval)
        settle(team, machines)
        team.look()
        lags = Lags()
        before, at = team.processor_seconds(), time.monotonic()
        processes = [one.process.pid for one in machines if one.process is not None]
        own_before = sum(sum(_times(pid)[:2]) for pid in processes)
        work.run(given.seconds, lags)
        elapsed = time.monotonic() - at
        cores = (team.processor_seconds() - before) / elapsed
        own = (sum(sum(_times(pid)[:2]) for pid in processes) - own_before) / elapsed
        count = work.count
        kills = Counter[str]()

        def hurt(second: int) -> None:
            if second % 2 == 0:
                machine = chance.choice(machines)
                machine.kill()
                machine.start()
                kills["machine"] += 1
            if second % 30 == 10:
                team.server.kill()
                team.server.wait_until_dead()
                kills["database"] += 1
            if second % 30 == 20:
                team.server.start()

        work.run(given.kill_seconds, None, hurt)
        if not (team.server.data / "postmaster.pid").exists():
            team.server.start()
        missing = settle(team, machines)
        events = team.all("SELECT count(*) FROM ultramon.events")[0][0]
        readings = team.all("SELECT count(*) FROM ultramon.readings")[0][0]
    finally:
        for machine in machines:
            machine.end()
        team.server.remove()
    load = os.getloadavg()[0]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return [
        f"{given.machines} machines of {given.sessions} sessions, each session stores a reading"
        f" every {given.interval:g} s; load {load:.1f} at the end, all on one computer.",
        "",
        "| machines × sessions | states/s | lag 50 % s | 99 % s | most s | database cores"
        " | a machine's process cores |",
        "|---|---|---|---|---|---|---|",
        f"| {given.machines} × {given.sessions} | {count / elapsed:.0f} |"
        f" {lags.percentile(0.5):.2f} | {lags.percentile(0.99):.2f} | {max(lags.seconds):.2f} |"
        f" {cores:.3f} | {own / len(machines):.4f} |",
        "",
        "| killed processes that share | killed databases | events | readings | states missing"
        " | events missing | readings missing | anything twice |",
        "|---|---|---|---|---|---|---|---|",
        f"| {kills['machine']} | {kills['database']} | {events:,} | {readings:,} |"
        f" {missing.states} | {missing.events} | {missing.readings} | {missing.doubled} |",
        "",
        f"The largest process of all took {peak} MB.",
    ]


def main() -> None:
    """Measure, and print the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=50)
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--kill-seconds", type=float, default=90.0)
    parser.add_argument("--interval", type=float, default=15.0)
    parser.add_argument("--write-results", action="store_true", help="into RESULTS.md, too")
    given = parser.parse_args()
    # Its processes must not outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Machines do not share one disk: in memory they do not wait for each other's writes.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="ultramon-share-", dir=memory))
    try:
        section = "\n".join(measure(given, folder))
        print(section)
        if given.write_results:
            replace_section("Machines that share", section)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
