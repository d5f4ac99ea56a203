"""Processes killed at random for minutes, and whether every item of work was done all the same.

    python benchmarks/soak.py --minutes 10 --seed 1

An orchestrator gives plans of items to worker processes and a successor to every handoff; a server
and two consumers run beside it. All of them are killed with SIGKILL at random, workers also while
they import, and within `start()` right before or behind a call to the store. Afterwards a reader
that knows only files, JSON and SQLite compares what was given with what was done and what the store
says. Exits 1 when an item is lost or a consumer missed an event. Linux only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon import Fleet, FleetEvent, HandoffRecord

RUN = "soak"
WORKERS = 3
CHAIN_ITEMS = 12
ITEM_SECONDS = 0.15
CONSUMERS = ("dashboard", "archive")
NEWBORN_SECONDS = 0.6
"""A worker this young is importing, or within `start()`."""
TARGETS = {"workers": 10, "newborn": 5, "orchestrator": 3, "server": 2, "consumers": 3}
"""Who is killed how often, relative to each other."""
POINTS = ("before start_agent", "after start_agent", "after claim_handoff")
"""Where a worker dies within `start()`."""
FATAL_STARTS = 0.08
"""The share of workers that die there."""


class Place:
    """The files of one soak."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.state = self.path / "state"
        self.given = self.path / "given"
        self.pids = self.path / "pids"
        self.done = self.path / "done"
        self.deaths = self.path / "deaths"
        self.stop = self.path / "stop"
        self.errors = self.path / "errors"

    def is_stored(self, agent_id: str) -> bool:
        """Return whether an agent has a state."""
        return (self.state / "subagents" / f"{agent_id}.json").exists()

    def environment(self) -> dict[str, str]:
        """Return the environment of every process of the soak."""
        return {**os.environ, "ULTRAMON_STATE_DIR": str(self.state), "ULTRAMON_BACKEND": ""}


def append(path: Path, line: str) -> None:
    """Add a line to a file, durably."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with closing(os.fdopen(descriptor, "wb", buffering=0)) as file:
        file.write(f"{line}\n".encode())
        os.fsync(file.fileno())


def write(path: Path, content: Any) -> None:
    """Write a JSON file, whole or not at all."""
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


def lines(path: Path) -> list[str]:
    """Return the lines of a file, none of one that is not there."""
    return path.read_text().splitlines() if path.exists() else []


def life_of(pid: int) -> str | None:
    """Return when a process started, in ticks; None for one that is gone or was not buried yet."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def living(place: Place) -> Iterator[tuple[int, str, float]]:
    """Yield process, agent and age in seconds of each worker that lives."""
    for path in place.pids.iterdir():
        try:
            agent_id, _, life = path.read_text().partition(" ")
            age_seconds = time.time() - path.stat().st_mtime
        except OSError:
            continue
        if life and life_of(int(path.name)) == life:
            yield int(path.name), agent_id, age_seconds
        elif age_seconds > 1:
            path.unlink(missing_ok=True)


# --- the workers


def work(place: Place, agent_id: str, death: str) -> None:
    """Do what an agent was given, until it is done or the window is full."""
    me = place.pids / str(os.getpid())
    me.write_text(f"{agent_id} {life_of(os.getpid())}")
    try:
        if not place.stop.exists():
            _work(place, agent_id, death)
    finally:
        me.unlink(missing_ok=True)


def _work(place: Place, agent_id: str, death: str) -> None:
    from ultramon import ContextConfig, HandoffRecord, create_context_monitor
    from ultramon.backends.opening import open_backend
    from ultramon.errors import AgentAlreadyRunningError, HandoffTakenError

    given = json.loads((place.given / f"{agent_id}.json").read_text())
    record = HandoffRecord.model_validate(given["handoff"]) if "handoff" in given else None
    backend = open_backend()
    if death:
        die_at(place, backend, agent_id, death)
    config = ContextConfig(context_limit_tokens=6_000)
    monitor = create_context_monitor(config=config, continues=record, backend=backend)
    try:
        monitor.start()
    except AgentAlreadyRunningError:
        return
    except HandoffTakenError:
        (place.given / f"{agent_id}.over").touch()
        return
    with monitor:
        monitor.plan(given.get("items", ()))
        for item in monitor.pending():
            if place.stop.exists():
                return
            with monitor.task(item):
                time.sleep(ITEM_SECONDS)
                action = monitor.track_content("It was a dark and stormy night. " * 120)
                append(place.done, f"{item} {agent_id}")
            if action.should_prepare or action.should_return:
                monitor.hand_off()
                return


def die_at(place: Place, backend: Any, agent_id: str, death: str) -> None:
    """Have this process killed before or behind the next call of a verb of the store."""
    moment, _, verb = death.partition(" ")
    call = getattr(backend, verb)

    def call_and_die(*given: Any, **named: Any) -> None:
        if moment == "after":
            call(*given, **named)
        append(place.deaths, f"{death} {agent_id}")
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(backend, verb, call_and_die)


# --- the orchestrator


class Orchestrator:
    """Gives out work and has every handoff carried on; one that is killed is followed by another.

    What it gives is a file before it is started, so that its successor starts what it could not,
    and attaches what it had started. All the rest is left to the fleet.
    """

    def __init__(self, place: Place, until: float, seed: str) -> None:
        from ultramon import Fleet

        self.place = place
        self.until = until
        self.chance = random.Random(seed)
        self.fleet: Fleet = Fleet(RUN, poll_interval_seconds=0.2)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.fleet.on("handoff_ready")(self.carry_on)
        self.fleet.on("no_progress")(self.carry_on)

    def run(self) -> None:
        """Go on where the last one was, until the soak is stopped."""
        place = self.place
        for path in sorted(place.given.glob("*.json")):
            if not path.with_suffix(".over").exists():
                self.start(path.stem)
        chains = len(list(place.given.glob("c*.json")))
        while not place.stop.exists():
            self.fleet.poll()
            self.processes = [one for one in self.processes if one.poll() is None]
            if time.time() < self.until and len(list(living(place))) < WORKERS:
                chains += 1
                items = [f"{chains}-{number}" for number in range(CHAIN_ITEMS)]
                write(place.given / f"c{chains}.json", {"items": items})
                self.start(f"c{chains}")
            time.sleep(0.05)

    def start(self, agent_id: str) -> None:
        """Start an agent with what it was given, unless it started before."""
        from ultramon import HandoffRecord
        from ultramon.errors import AgentAlreadyRunningError

        place, fleet = self.place, self.fleet
        if place.is_stored(agent_id):
            return
        started = place.given / f"{agent_id}.started"
        if started.exists():
            fleet.attach(agent_id, int(started.read_text()))
            return
        for pid, other, _ in living(place):
            if other == agent_id:
                fleet.attach(agent_id, pid)
                return
        assigned = place.given / f"{agent_id}.assigned"
        if hasattr(fleet, "assign") and not assigned.exists():
            given = json.loads((place.given / f"{agent_id}.json").read_text())
            record = HandoffRecord.model_validate(given["handoff"]) if "handoff" in given else None
            try:
                fleet.assign(agent_id, record or given["items"])
            except AgentAlreadyRunningError:
                return
            assigned.touch()
        is_fatal = time.time() < self.until and self.chance.random() < FATAL_STARTS
        death = self.chance.choice(POINTS) if is_fatal else ""
        process = subprocess.Popen(
            [sys.executable, __file__, "--role", "work", str(place.path), agent_id, death],
            env=fleet.env(agent_id),
        )
        started.write_text(str(process.pid))
        fleet.attach(agent_id, process)
        self.processes.append(process)

    def carry_on(self, event: FleetEvent) -> None:
        """Start a successor; where a handoff comes again there are several, and one wins."""
        record: HandoffRecord | None = event.handoff
        if record is None or not (record.interrupted or record.remaining):
            return
        name = f"s{hashlib.sha256(record.handoff_id.encode()).hexdigest()[:12]}"
        successor = f"{name}-{len(list(self.place.given.glob(f'{name}-*.json'))) + 1}"
        given = {"handoff": record.model_dump(mode="json", by_alias=True)}
        write(self.place.given / f"{successor}.json", given)
        if not self.place.is_stored(record.agent_id):
            # It died before its start; what it was given is its successor's now.
            (self.place.given / f"{record.agent_id}.over").touch()
        self.start(successor)


def consume(place: Place, name: str) -> None:
    """Note every event of the run."""
    from ultramon import Fleet

    for event in Fleet(RUN, consumer=name, poll_interval_seconds=0.5).watch():
        append(place.path / f"heard-{name}", event.event_id)


# --- the reader, which imports nothing of ultramon


class Account:
    """What was given, what became of it, and what consumers heard of it."""

    def __init__(self, place: Place) -> None:
        self.given: set[str] = set()
        for path in place.given.glob("c*.json"):
            self.given.update(json.loads(path.read_text())["items"])
        log = Counter(line.split()[0] for line in lines(place.done))
        self.repeated = log.total() - len(log)
        stored, told = self._read_journal(place)
        for path in (place.state / "subagents").glob("*.json"):
            tasks = json.loads(path.read_text())["tasks"] or ()
            stored.update(task["name"] for task in tasks if task["status"] == "done")
        self.lost = self.given - log.keys()
        self.unrecorded = self.given - stored - self.lost
        self.missed = sum(
            len(told - set(lines(place.path / f"heard-{name}"))) for name in CONSUMERS
        )

    def _read_journal(self, place: Place) -> tuple[set[str], set[str]]:
        """Return the items that handoffs call completed, and events that consumers must hear."""
        stored, told = set(), set()
        with closing(sqlite3.connect(place.state / "journal.sqlite3", timeout=30)) as journal:
            rows = journal.execute(
                "SELECT payload FROM events WHERE type IN ('handoff_ready', 'agent_started')"
            )
            for (payload,) in rows:
                event = json.loads(payload)
                told.add(event["eventId"])
                if event["type"] == "handoff_ready":
                    stored.update(event["handoff"]["completed"])
        return stored, told

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return not (self.lost or self.unrecorded or self.missed)


# --- the supervisor


class Soak:
    """Starts everything but the workers, kills at random, and starts it again."""

    def __init__(self, place: Place, seconds: float, seed: int, every_seconds: float) -> None:
        self.place = place
        self.until = time.time() + seconds
        self.seed = seed
        self.every_seconds = every_seconds
        self.chance = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.starts: Counter[str] = Counter()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.errors = place.errors.open("ab")
        for directory in (place.state, place.given, place.pids):
            directory.mkdir(mode=0o700)

    def run(self, drain_seconds: float) -> Account:
        """Kill until the time is over, then wait until nothing is missing, or no longer."""
        next_kill_at = 0.0
        while time.time() < self.until:
            self.keep_running()
            if time.time() >= next_kill_at:
                self.kill_one()
                next_kill_at = time.time() + self.chance.expovariate(1 / self.every_seconds)
            time.sleep(0.05)
        end = time.monotonic() + drain_seconds
        account = Account(self.place)
        while time.monotonic() < end and (any(living(self.place)) or not account.is_whole):
            self.keep_running()
            time.sleep(1.0)
            account = Account(self.place)
        return account

    def keep_running(self) -> None:
        """Start whatever does not run."""
        python, place = [sys.executable, __file__, "--role"], str(self.place.path)
        number = f"{self.seed}-{self.starts['orchestrator']}"
        commands = {
            "server": [sys.executable, "-m", "ultramon", "serve", "--port", "0"],
            "orchestrator": [*python, "orchestrate", place, str(self.until), number],
            **{name: [*python, "consume", place, name] for name in CONSUMERS},
        }
        for name, command in commands.items():
            process = self.running.get(name)
            if process is None or process.poll() is not None:
                self.starts[name] += 1
                self.running[name] = subprocess.Popen(
                    command,
                    env=self.place.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self.errors,
                )

    def kill_one(self) -> None:
        """Kill somebody, if there is one of the kind that comes up."""
        (kind,) = self.chance.choices(list(TARGETS), list(TARGETS.values()))
        if kind in {"workers", "newborn"}:
            pids = [
                pid
                for pid, _, age_seconds in living(self.place)
                if (age_seconds < NEWBORN_SECONDS) == (kind == "newborn")
            ]
            if not pids:
                return
            with suppress(ProcessLookupError):
                os.kill(self.chance.choice(sorted(pids)), signal.SIGKILL)
                self.kills[kind] += 1
            return
        process = self.running[self.chance.choice(CONSUMERS) if kind == "consumers" else kind]
        if process.poll() is None:
            process.kill()
            self.kills[kind] += 1

    def close(self) -> None:
        """End every process of the soak."""
        self.place.stop.touch()
        for process in self.running.values():
            process.kill()
            process.wait()
        quiet_at = time.monotonic() + 1.0
        while time.monotonic() < quiet_at:
            for pid, _, _ in living(self.place):
                quiet_at = time.monotonic() + 1.0
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        self.errors.close()


def table(soak: Soak, minutes: float, account: Account) -> str:
    """Return the result as a table of one row."""
    deaths = len(lines(soak.place.deaths))
    columns = {
        "minutes": f"{minutes:g}",
        "seed": str(soak.seed),
        "items": f"{len(account.given):,}",
        "lost": str(len(account.lost)),
        "done but never stored": str(len(account.unrecorded)),
        "done again": f"{account.repeated:,}",
        **{f"{kind} killed": str(soak.kills[kind]) for kind in TARGETS},
        "killed within start()": str(deaths),
        "events missed by consumers": str(account.missed),
    }
    return "\n".join(
        f"| {' | '.join(row)} |"
        for row in (columns.keys(), ["---"] * len(columns), columns.values())
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--every-seconds", type=float, default=1.0, help="mean time between kills")
    parser.add_argument("--drain-seconds", type=float, default=120.0, help="to end what was begun")
    parser.add_argument("--keep", metavar="DIRECTORY", help="an empty one, for all files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ultramon-soak-") as temporary:
        if given.keep:
            Path(given.keep).mkdir(parents=True, exist_ok=True)
        place = Place(given.keep or temporary)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends all others
        soak = Soak(place, 60 * given.minutes, given.seed, given.every_seconds)
        try:
            account = soak.run(given.drain_seconds)
        finally:
            soak.close()
        print(table(soak, given.minutes, account))
        for name, items in (("lost", account.lost), ("never stored", account.unrecorded)):
            if items:
                print(f"{name}: {' '.join(sorted(items))}", file=sys.stderr)
        if not account.is_whole:
            print(*lines(place.errors)[-40:], sep="\n", file=sys.stderr)
    return 0 if account.is_whole else 1


def play(role: str, path: str, *rest: str) -> None:
    """Be one of the processes of a soak."""
    place = Place(path)
    if role == "work":
        work(place, *rest)
    elif role == "orchestrate":
        Orchestrator(place, float(rest[0]), rest[1]).run()
    else:
        consume(place, *rest)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--role"]:
        play(*sys.argv[2:])
    else:
        sys.exit(main())
