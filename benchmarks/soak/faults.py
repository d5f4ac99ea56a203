"""Kills and suspends the processes of a soak at random, and has its store fail."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from benchmarks.soak.stores import Files, Postgres
    from benchmarks.soak.world import Process, World


class Blow(NamedTuple):
    """What befalls one process of each of some roles at the same moment."""

    name: str
    weight: int
    """How often it comes, relative to the others."""
    roles: tuple[str, ...]
    fact: str = "killed"


BLOWS = (
    Blow("worker killed", 10, ("worker",)),
    Blow("newborn killed", 5, ("newborn",)),
    Blow("orchestrator killed", 3, ("orchestrator",)),
    Blow("both killed", 3, ("worker", "orchestrator")),
    Blow("worker suspended", 2, ("worker",), "suspended"),
    Blow("sender killed", 1, ("sender",)),
    Blow("receiver killed", 3, ("receiver",)),
    Blow("consumer killed", 1, ("consumer",)),
    Blow("server killed", 1, ("server",)),
)
NEWBORN_SECONDS = 0.4
"""A worker this young is importing, or within `start()`."""
SUSPENDED_SECONDS = (1.0, 12.0)
"""Agents are lost after 4 s of silence."""
ORPHANED = 0.4
"""The share of suspended workers whose orchestrator is killed before they are continued."""
ORPHANED_SECONDS = (1.0, 4.0)
STORE_PAUSE_SECONDS = 5.0
"""On average, between two faults of the store."""


class Faults:
    """Everything that befalls a soak from outside.

    Args:
        world: Of the soak.
        store: What its programs store in.
        every_seconds: The mean time between two kills or suspensions.
    """

    def __init__(self, world: World, store: Files | Postgres, every_seconds: float) -> None:
        self._world = world
        self._every_seconds = every_seconds
        self._chance = world.chance("processes")
        self._next_at = 0.0
        self._wake_at: dict[int, float] = {}
        self._orphaned: set[int] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._befall_store, daemon=True)
        self._blows = [blow for blow in BLOWS if blow.name not in world.without]
        self._faults = [fault for fault in store.faults if fault.kind not in world.without]
        if self._faults:
            self._thread.start()

    def step(self) -> None:
        """Do what is due. Call it often."""
        self.continue_suspended()
        if time.monotonic() >= self._next_at:
            self._befall_process()
            self._next_at = time.monotonic() + self._chance.expovariate(1 / self._every_seconds)

    def close(self) -> None:
        """Have all be well again."""
        self._is_over.set()
        if self._faults:
            self._thread.join()
        for process in self._world.processes():
            process.send(signal.SIGCONT)

    def continue_suspended(self) -> None:
        """Continue what was suspended for long enough; before some, the orchestrator is killed."""
        running = list(self._world.processes())
        suspended = {process.pid: process for process in running if process.is_suspended}
        now = time.monotonic()
        for pid, process in suspended.items():
            if now < self._wake_at.setdefault(pid, now + self._chance.uniform(*SUSPENDED_SECONDS)):
                continue
            if pid not in self._orphaned and self._chance.random() < ORPHANED:
                self._orphaned.add(pid)
                self._wake_at[pid] = now + self._chance.uniform(*ORPHANED_SECONDS)
                self._world.kill("orchestrator", by="suspension")
            else:
                process.send(signal.SIGCONT)
        self._wake_at = {pid: at for pid, at in self._wake_at.items() if pid in suspended}
        self._orphaned &= suspended.keys()

    def _befall_process(self) -> None:
        blow = self._chance.choices(self._blows, [blow.weight for blow in self._blows])[0]
        running = sorted(self._world.processes())
        victims = []
        for role in blow.roles:
            candidates = [process for process in running if _is_a(process, role)]
            if not candidates:
                return
            victims.append(self._chance.choice(candidates))
        pids = [victim.pid for victim in victims]
        self._world.history.note(blow.fact, pids=pids, by=blow.name)
        for victim in victims:
            victim.send(signal.SIGSTOP if blow.fact == "suspended" else signal.SIGKILL)

    def _befall_store(self) -> None:
        chance = self._world.chance("store")
        faults = self._faults
        while not self._is_over.wait(chance.expovariate(1 / STORE_PAUSE_SECONDS)):
            fault = chance.choices(faults, [fault.weight for fault in faults])[0]
            self._world.history.note("store_failed", kind=fault.kind)
            fault.befall(chance)


def _is_a(process: Process, role: str) -> bool:
    if process.role == "worker" and process.age_seconds < NEWBORN_SECONDS:
        return role == "newborn"
    return process.role == role
