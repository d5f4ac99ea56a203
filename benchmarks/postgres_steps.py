"""Single steps on a store with many agents in it: how many a second, and what each costs."""

from __future__ import annotations

import itertools
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from fleet import Herd, milliseconds
from postgres_load import INTERVAL_SECONDS, percentile
from postgres_store import AGENTS_PER_BOSS, RUN, Sample, Store, agent, boss_of

from ultramon import Fleet
from ultramon.backends.base import Backend, Save
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.notices.message import Draft
from ultramon.notices.registration import StoredRegistration
from ultramon.system.processes import this_machine

AGENTS_OF_A_HOST = 1_667
TOGETHER = 80
LOCAL_AGENTS = 200
CROSSINGS = 300
POLLS = 9
HERD = 10_000
READERS = 10
PAGE = 500
TEXT = "[ultramon] Context window of scout-1 is at 86% (critical), 172,000 of 200,000 tokens. " * 3


class Step(NamedTuple):
    """What one kind of step costs."""

    name: str
    per_second: float
    p50_ms: float
    p99_ms: float
    server_us: float
    client_us: float
    wal_bytes: float
    disk_bytes: float


def measure(
    store: Store, name: str, step: Callable[[int], object], times: int, *, units: int = 1
) -> Step:
    """Do a step so many times; the costs are those of one unit of it.

    The server's are of all its processes, so they include what it does in the background.
    """
    step(0)
    before, cpu, began = store.cost(), time.process_time(), time.perf_counter()
    waits = [milliseconds(partial(step, number)) for number in range(1, times + 1)]
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    after = store.cost()
    done = times * units
    return Step(
        name,
        done / elapsed,
        statistics.median(waits),
        percentile(waits, 0.99),
        (after.cpu_seconds - before.cpu_seconds) / done * 1e6,
        cpu / done * 1e6,
        (after.wal_bytes - before.wal_bytes) / done,
        (after.disk_bytes - before.disk_bytes) / done,
    )


def local_rate(step: Callable[[int], object], times: int, *, units: int = 1) -> float:
    """Return how many units a second a step does without a server."""
    step(0)
    began = time.perf_counter()
    for number in range(1, times + 1):
        step(number)
    return times * units / (time.perf_counter() - began)


class Steps:
    """The steps, over one backend; its agents are those of a store, or a few on this disk."""

    def __init__(self, backend: Backend, sample: Sample, agents: int, newest: int) -> None:
        self.backend = backend
        self._sample = sample
        self._agents = agents
        self._seq = itertools.count(newest + 1)
        self._chance = random.Random(20261121)
        self._cursor: str | None = None

    def _pick(self) -> int:
        return self._chance.randrange(self._agents)

    def lazy(self, _: int) -> None:
        self.backend.record(self._sample.state(self._pick(), next(self._seq)), [], durable=False)

    def durable(self, _: int) -> None:
        self.backend.record(self._sample.state(self._pick(), next(self._seq)), [], durable=True)

    def crossing(self, _: int) -> None:
        record, events = self._sample.crossing(self._pick(), next(self._seq))
        self.backend.record(record, events, durable=True)

    def lazy_together(self, _: int) -> None:
        saves = [
            Save(self._sample.state(number, next(self._seq)), [], False) for number in self._some()
        ]
        assert not any(self.backend.record_together(saves))

    def crossings_together(self, _: int) -> None:
        saves = [
            Save(*self._sample.crossing(number, next(self._seq)), True) for number in self._some()
        ]
        assert not any(self.backend.record_together(saves))

    def _some(self) -> list[int]:
        return self._chance.sample(range(self._agents), min(TOGETHER, self._agents))

    def beat(self, _: int) -> None:
        assert not self.backend.heartbeat([(agent(self._pick()), 1)], time.time())

    def beats(self, turn: int) -> None:
        count = min(AGENTS_OF_A_HOST, self._agents)
        first = turn * count % (self._agents - count + 1)
        ids = [(agent(number), 1) for number in range(first, first + count)]
        assert not self.backend.heartbeat(ids, time.time())

    def start(self, turn: int) -> None:
        self.backend.start_agent(
            f"new-{turn:06}",
            lambda _, generation: (self._fresh(f"new-{turn:06}", generation), []),
            takeover=False,
            now=time.time(),
            machine=this_machine(),
        )

    def _fresh(self, agent_id: str, generation: int) -> object:
        record = self._sample.state(0, 0)
        record.agent_id, record.generation, record.parent_id = agent_id, generation, None
        record.run = "other"
        return record

    def read(self, _: int) -> None:
        page = self.backend.events(self._cursor, PAGE)
        self._cursor = page.cursor if len(page.events) == PAGE else None

    def enqueue(self, turn: int) -> None:
        self.backend.queue.queue_message(Draft(_reader(turn), f"{turn} {TEXT}"), now=time.time())

    def claim(self, turn: int) -> None:
        [message] = self.backend.queue.claim(_reader(turn), now=time.time(), limit=1)
        assert self.backend.queue.acknowledge(message.id, message.claim_token)


def _reader(turn: int) -> str:
    return f"reader-{turn % READERS}"


@contextmanager
def local_steps(sample: Sample) -> Iterator[Steps]:
    """Give the same steps over files on this disk."""
    with tempfile.TemporaryDirectory() as directory:
        backend = LocalBackend(directory)
        for number in range(LOCAL_AGENTS):
            backend.start_agent(
                agent(number),
                lambda _, generation, n=number: (sample.state(n, 0), []),
                takeover=False,
                now=time.time(),
                machine=this_machine(),
            )
            boss = boss_of(number)
            backend.registry.register(
                StoredRegistration(agent(number), boss, "explicit", None, boss, time.time())
            )
        yield Steps(backend, sample, LOCAL_AGENTS, 0)
        backend.close()


def run_steps(
    store: Store, sample: Sample, agents: int, share: float
) -> list[tuple[Step, float | None]]:
    """Measure every step; each comes with the rate of the same over local files."""
    [(newest,)] = store.ask("SELECT max(seq) FROM ultramon.agents")
    ours = Steps(store.backend, sample, agents, newest)
    together = f"{TOGETHER} together"
    beats = min(AGENTS_OF_A_HOST, agents)
    with local_steps(sample) as local:
        plan = [
            ("heartbeat, alone", ours.beat, local.beat, 1_000, 1),
            (f"heartbeat, {beats:,} together", ours.beats, None, 60, beats),
            ("lazy save, alone", ours.lazy, local.lazy, 1_000, 1),
            (f"lazy save, {together}", ours.lazy_together, None, 40, TOGETHER),
            ("durable save, alone", ours.durable, local.durable, 1_000, 1),
            ("… with event and notice, alone", ours.crossing, local.crossing, 1_000, 1),
            (f"… with event and notice, {together}", ours.crossings_together, None, 40, TOGETHER),
            ("start of an agent", ours.start, local.start, 400, 1),
            ("message queued", ours.enqueue, local.enqueue, 1_000, 1),
            ("message claimed and acknowledged", ours.claim, local.claim, 1_000, 1),
            (f"event read, {PAGE} together", ours.read, None, 40, PAGE),
        ]
        rows = []
        for name, step, local_step, times, units in plan:
            count = max(int(times * share), 5)
            measured = measure(store, name, step, count, units=units)
            rows.append((measured, local_step and local_rate(local_step, count)))
        return rows


def idle_second(store: Store) -> Step:
    """Return what a process costs each second in which nothing happens: a look for requests."""
    backend = PostgresBackend(store.url)

    def look(_: int) -> None:
        backend.states._requests = {}, float("-inf")
        backend.get_request(agent(1))

    step = measure(store, "look for requests, once a second and process", look, 1_000)
    backend.close()
    return step


def deliveries(url: str, *, hint: bool) -> list[float]:
    """Return milliseconds from before a message is queued until another backend has claimed it.

    Args:
        url: Of the store.
        hint: Listen, beside the poll each second that is the guarantee.
    """
    sender, receiver = PostgresBackend(url), PostgresBackend(url)
    taken: list[float] = []
    woken = threading.Event()
    name = f"ear-{hint}"

    def receive() -> None:
        while len(taken) < CROSSINGS:
            messages = receiver.queue.claim(name, now=time.time(), limit=1)
            for message in messages:
                taken.append((time.perf_counter() - float(message.text)) * 1e3)
                receiver.queue.acknowledge(message.id, message.claim_token)
            if not messages:
                woken.wait(1.0 if hint else 0.01)
                woken.clear()

    chance = random.Random(20261121)
    with receiver.queue.listening(name, woken.set if hint else lambda: None):
        time.sleep(1.0)
        thread = threading.Thread(target=receive)
        thread.start()
        for _ in range(CROSSINGS):
            time.sleep(chance.uniform(0.01, 0.04))
            sender.queue.queue_message(Draft(name, repr(time.perf_counter())), now=time.time())
        thread.join()
    sender.close()
    receiver.close()
    return taken


def polls(store: Store, sample: Sample, agents: int) -> list[tuple[str, float, float]]:
    """Return what a poll of a fleet that has read all events takes, and the server's CPU for it."""
    backend = PostgresBackend(store.url)
    fleet = Fleet(RUN, backend=backend)
    chance = random.Random(20261121)
    [(newest,)] = store.ask("SELECT max(seq) FROM ultramon.agents")
    seq = itertools.count(newest + 1)
    ids = [(agent(number), 1) for number in range(agents)]
    bosses = [(boss_of(number), 1) for number in range(0, agents, AGENTS_PER_BOSS)]
    turn = itertools.count()

    def change(share: float, *, beats: bool) -> None:
        numbers = chance.sample(range(agents), int(agents * share))
        saves = [Save(sample.state(number, next(seq)), [], durable=False) for number in numbers]
        store.backend.record_together(saves)
        if beats:
            first = next(turn) % INTERVAL_SECONDS
            store.backend.heartbeat(ids[first::INTERVAL_SECONDS], time.time())

    def measured() -> tuple[float, float]:
        before = store.cost().cpu_seconds
        took = milliseconds(fleet.poll)
        return took, (store.cost().cpu_seconds - before) * 1e3

    store.ask("TRUNCATE ultramon.events")
    store.backend.heartbeat([*ids, *bosses], time.time())
    rows = [("first look", *measured())]
    store.backend.heartbeat([*ids, *bosses], time.time())
    fleet.poll()
    for name, share, beats in (
        ("none changed", 0.0, False),
        ("7 % beat", 0.0, True),
        ("1 % changed", 0.01, False),
        ("1 % changed, 7 % beat", 0.01, True),
    ):
        times, server = [], []
        for _ in range(POLLS):
            change(share, beats=beats)
            took, spent = measured()
            times.append(took)
            server.append(spent)
        rows.append((name, statistics.median(times), statistics.mean(server)))
    fleet.close()
    backend.close()
    return rows


def local_polls() -> list[tuple[str, float]]:
    """Return what a poll of files takes, in milliseconds."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        herd = Herd(directory, HERD)
        fleet = Fleet(herd.record.run, backend=LocalBackend(directory))
        rows.append(("first look", milliseconds(fleet.poll)))
        for name, share in (("none changed", 0.0), ("1 % changed, 7 % beat", 0.01)):
            times = []
            for _ in range(POLLS):
                herd.change(herd.ids[: int(HERD * share)])
                if share:
                    for agent_id in herd.ids[: HERD // 15]:
                        os.utime(herd.folder / f"{agent_id}.hb")
                times.append(milliseconds(fleet.poll))
            rows.append((name, statistics.median(times)))
        fleet.close()
    return rows
