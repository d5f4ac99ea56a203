"""A supervised agent of a soak: it works, and misbehaves by the seed, once per item.

Run as a program, in the environment of a job.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.soak.world import ORPHAN, World, die, suspend_self
from ultramon import ContextConfig, open_backend, worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon import Worker

CONFIG = ContextConfig(
    context_limit_tokens=8_000,
    heartbeat_interval_seconds=1.0,
    lost_after_seconds=4.0,
)
PIECE = "It was a dark and stormy night. " * 100
"""Some 700 tokens: the eighth reaches the warning."""
WORK_SECONDS = (0.02, 0.2)
TRICKS = {
    "lie": 0.05,  # claims the item without doing it
    "die": 0.03,  # is killed before the effect
    "die_late": 0.02,  # is killed between the effect and the claim
    "orphan": 0.03,  # leaves a process that holds the item, and is killed with its orchestrator
    "leave": 0.02,  # leaves such a process and hands over
    "suspend": 0.02,  # is suspended in the item
    "hang": 0.01,  # is full, and neither works nor returns
}
"""What befalls an item, the first time that it is begun, and how often."""
DEATHS = ("before start_agent", "after start_agent", "after claim_handoff")
FATAL_STARTS = 0.04
"""The share of agents that die within `start()`."""
ORPHAN_SECONDS = 60.0


class Agent:
    """One context at work.

    Args:
        world: Of the soak.
        agent: The agent of the job.
    """

    def __init__(self, world: World, agent: Worker) -> None:
        self._world = world
        self._agent = agent
        self._name = agent.agent_id

    def work(self) -> None:
        """Do what the job says, until it is done or the window is full."""
        claim: str | None = None
        for item in self._agent.pending():
            if claim is not None:
                # The loop has stored it before it gave out the next.
                self._note("claimed", claim)
            lock = self._world.lock(item, self._name)
            self._note("began", item)
            if self._play(item):
                return
            os.close(lock)
            self._agent.track_content(PIECE)
            self._agent.notes = f"was at {item}"
            claim = item
        if claim is not None:
            self._note("claimed", claim)

    def _play(self, item: str) -> bool:
        """Do an item, or what befalls it; return whether to leave with it."""
        chance = self._world.chance("item", item)
        (trick,) = chance.choices([*TRICKS, ""], [*TRICKS.values(), 1 - sum(TRICKS.values())])
        time.sleep(chance.uniform(*WORK_SECONDS))
        if trick in self._world.without or not self._world.is_first(f"trick {item}"):
            trick = ""
        if trick == "lie":
            self._note("lied", item)
            return False
        if trick == "leave":
            self._leave_orphan(item)
            return True
        if trick == "suspend":
            self._world.history.note("suspended", pids=[os.getpid()], by="itself")
            suspend_self()
        elif trick == "hang":
            self._hang(item)
        elif trick == "orphan":
            self._leave_orphan(item)
            self._world.kill("orchestrator", by="a worker")
            die(self._world)
        elif trick == "die":
            die(self._world)
        self._world.do(item, self._name)
        self._note("did", item)
        if trick == "die_late":
            die(self._world)
        return False

    def _hang(self, item: str) -> None:
        self._note("hung", item)
        self._agent.report_usage(input_tokens=CONFIG.context_limit_tokens)
        while True:
            signal.pause()

    def _leave_orphan(self, item: str) -> None:
        """Leave a process in this process's group that holds the item and goes on touching it."""
        self._note("left_running", item)
        if os.fork() == 0:
            try:
                Path("/proc/self/comm").write_text(ORPHAN)
                until = time.monotonic() + ORPHAN_SECONDS
                while time.monotonic() < until:
                    time.sleep(0.2)
                    self._world.touch(item)
            finally:
                os._exit(0)

    def _note(self, fact: str, item: str) -> None:
        self._world.history.note(fact, item=item, agent=self._name)


def die_within_start(world: World, agent_id: str) -> None:
    """Have some agents killed before or behind a call of the store within `start()`."""
    chance = world.chance("start", agent_id)
    if chance.random() >= FATAL_STARTS or "start" in world.without:
        return
    moment, verb = chance.choice(DEATHS).split()
    backend = open_backend()
    call: Callable[..., Any] = getattr(backend, verb)

    def call_and_die(*given: Any, **named: Any) -> None:
        if moment == "after":
            call(*given, **named)
        die(world)

    setattr(backend, verb, call_and_die)


def main() -> None:
    world = World.of_this_process()
    die_within_start(world, os.environ["ULTRAMON_AGENT_ID"])
    with worker(CONFIG) as agent:
        world.history.note("started", run=os.environ["ULTRAMON_RUN"], agent=agent.agent_id)
        Agent(world, agent).work()


if __name__ == "__main__":
    main()
