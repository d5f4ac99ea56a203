"""Supervises one run after another; one that is killed is followed by another.

Run as a program, in the environment of a soak.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from itertools import count

from benchmarks.soak.world import ROLE, ROOT, World
from ultramon import Fleet
from ultramon.errors import StateError

WORKERS = 4
RAISES = 0.03
"""The share of items for which the check raises once."""
CHECK_SECONDS = (0.0, 0.05)


class Orchestrator:
    """Gives out work and checks it.

    Args:
        world: Of the soak.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def work(self) -> None:
        """Supervise until no run is to be begun; there is one at least."""
        for number in count(1):
            run = f"run-{number}"
            if self._world.is_marked(f"over {run}"):
                continue
            is_begun = number == 1 or self._world.is_marked(f"begun {run}")
            if self._world.is_closing and not is_begun:
                return
            items = [f"{run}.item-{one}" for one in range(1, self._world.items + 1)]
            self._supervise(run, items)

    def _supervise(self, run: str, items: list[str]) -> None:
        world = self._world
        world.is_first(f"begun {run}")
        world.history.note("given", run=run, items=items)
        while True:
            fleet = Fleet(run, poll_interval_seconds=0.2)
            try:
                result = fleet.supervise(
                    self._spawn,
                    items,
                    workers=WORKERS,
                    verify=self._verify,
                    enforce=True,
                    grace_seconds=3.0,
                )
            except StateError as error:
                logging.warning("supervise: %s", error)
                time.sleep(0.5)
                continue
            finally:
                fleet.close()
            world.history.note("result", run=run, result=result.to_json())
            if not (result.left or result.stopped):
                world.is_first(f"over {run}")
                return

    def _spawn(self, job) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.soak.worker"],
            env={**job.env, ROLE: "worker"},
            cwd=ROOT,
            start_new_session=True,
        )

    def _verify(self, item: str) -> bool:
        world = self._world
        chance = world.chance("verify", item)
        time.sleep(chance.uniform(*CHECK_SECONDS))
        is_able = chance.random() >= RAISES or "raise" in world.without
        if not is_able and world.is_first(f"raised {item}"):
            world.history.note("asked", item=item, answer="raised")
            raise OSError(f"the check of {item} cannot be made now")
        is_done = world.is_done(item)
        world.history.note("asked", item=item, answer="yes" if is_done else "no")
        return is_done


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    Orchestrator(World.of_this_process()).work()
