"""Twenty agents and their orchestrator in one event loop, with async handlers.

Each agent works through chapters, hands off when its small window fills, and a successor carries
on in a task of its own. One agent is cancelled on the way: its work is handed over as well,
because the fleet knows what each agent was given.

What you should see:

    20 agents begin with 200 chapters
    agent-07 was cancelled and left
    200 of 200 chapters are read
    no work was lost
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile

from ultramon import ContextConfig, Fleet, FleetEvent, HandoffRecord, create_context_monitor
from ultramon.testing import assert_no_work_lost

AGENTS = 20
CHAPTERS = [f"chapter {number}" for number in range(1, 201)]
TEXT = "It was a dark and stormy night; the rain fell in torrents. " * 200
CONFIG = ContextConfig(context_limit_tokens=20_000)
CANCELLED_AT = ("agent-07", "chapter 47")


class Orchestrator:
    """Runs agents as tasks, and a successor for each handoff, until no agent has anything left."""

    def __init__(self, run: str) -> None:
        self.fleet = Fleet(run)
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.at_work: set[str] = set()
        self.numbers = itertools.count(1)
        self.fleet.on("handoff_ready")(self.carry_on)
        self.fleet.on("ended")(self.note_end)

    async def begin(self, given: HandoffRecord | list[str]) -> None:
        agent_id = f"agent-{next(self.numbers):02}"
        self.at_work.add(agent_id)
        # It is written to disk, here and below, so not in the thread of the loop.
        await asyncio.to_thread(self.fleet.assign, agent_id, given)
        self.tasks[agent_id] = asyncio.create_task(self.work(agent_id, given))

    async def work(self, agent_id: str, given: HandoffRecord | list[str]) -> None:
        continues = given if isinstance(given, HandoffRecord) else None
        async with create_context_monitor(
            agent_id, CONFIG, run=self.fleet.run_name, continues=continues
        ) as monitor:
            monitor.plan(given if isinstance(given, list) else [])
            for chapter in monitor.pending():
                if (agent_id, chapter) == CANCELLED_AT:
                    self.tasks[agent_id].cancel()  # a person changes their mind
                with monitor.task(chapter):
                    await asyncio.sleep(0.01)  # the model thinks
                    action = monitor.track_content(TEXT)
                if action.should_return:
                    await asyncio.to_thread(monitor.hand_off)
                    return

    async def carry_on(self, end: FleetEvent) -> None:
        record = end.handoff
        assert record is not None
        if record.interrupted or record.remaining:
            await self.begin(record)

    async def note_end(self, end: FleetEvent) -> None:
        # A handoff is delivered before the end of its agent: successors are at work by now.
        if end.outcome == "cancelled" and end.handoff is not None:
            left = len(end.handoff.interrupted) + len(end.handoff.remaining)
            print(f"{end.agent_id} was cancelled and left {left} chapters")
        if not end.handoff_follows:
            self.at_work.discard(end.agent_id)
        if not self.at_work:
            self.fleet.stop()

    async def run(self) -> None:
        for first in range(AGENTS):
            await self.begin(CHAPTERS[first::AGENTS])
        print(f"{AGENTS} agents begin with {len(CHAPTERS)} chapters")
        await self.fleet.run_async()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.environ.setdefault("ULTRAMON_STATE_DIR", directory)
        run = os.environ.get("ULTRAMON_RUN") or f"book-{os.getpid()}"
        orchestrator = Orchestrator(run)
        asyncio.run(orchestrator.run())
        states = orchestrator.fleet.get_states()
        read = {
            task.name for state in states for task in state.tasks or () if task.status == "done"
        }
        print(f"{len(read)} of {len(CHAPTERS)} chapters are read")
        assert_no_work_lost(run)
        print(f"no work was lost; {len(orchestrator.tasks) - AGENTS} successors carried on")


if __name__ == "__main__":
    main()
