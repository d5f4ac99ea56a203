"""An orchestrator with real worker processes: work is handed over, also when a worker is killed.

Three workers read modules of Python's standard library with a small context window. Each hands off
when it should return; the second one dies by SIGKILL on the way, as when the kernel runs out of
memory. The orchestrator starts a successor for every handoff. It learns of all of this from the
records alone: nothing is sent between the processes while they work.

What you should see:

    worker-2 left
    (lost)
    worker-2 was killed (SIGKILL)
    (threshold_warning)
    24 of 24 modules are read
    no work was lost
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ultramon import ContextConfig, Fleet, FleetEvent, HandoffRecord, create_context_monitor
from ultramon.testing import assert_no_work_lost

LIBRARY = Path(os.__file__).parent
MODULES = [path.name for path in sorted(LIBRARY.glob("[b-d]*.py"))][:24]


def work() -> None:
    """Run one worker: standard input holds a handoff to continue, or the names of modules."""
    given = sys.stdin.read()
    handoff = HandoffRecord.model_validate_json(given) if given.startswith("{") else None
    # Agent id, run and state directory come from the environment that `Fleet.env` made.
    with create_context_monitor(
        config=ContextConfig(context_limit_tokens=40_000), goal="read them", continues=handoff
    ) as monitor:
        monitor.plan([] if handoff else given.splitlines())
        for count, name in enumerate(monitor.pending(), 1):
            with monitor.task(name):
                action = monitor.track_content((LIBRARY / name).read_text(encoding="utf-8"))
                if monitor.agent_id == "worker-2" and count == 2:
                    monitor.update_heartbeat()
                    os.kill(os.getpid(), signal.SIGKILL)
            if action.should_prepare or action.should_return:
                monitor.hand_off()
                return


class Orchestrator:
    """Starts workers, and a successor for each handoff, until nobody has anything left."""

    def __init__(self, run: str) -> None:
        # Many may be killed before they completed anything; that is no reason to give up.
        self.fleet = Fleet(run, max_generations_without_progress=20)
        self.at_work: set[str] = set()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.numbers = itertools.count(1)
        self.fleet.on("handoff_ready")(self.carry_on)
        self.fleet.on("ended")(self.note_end)

    def start(self, given: HandoffRecord | list[str]) -> str:
        agent_id = f"worker-{next(self.numbers)}"
        # From here on an early death loses nothing: what it was given comes as a handoff.
        self.fleet.assign(agent_id, given)
        self.at_work.add(agent_id)
        if isinstance(given, HandoffRecord):
            text = given.model_dump_json(by_alias=True)
        else:
            text = "\n".join(given)
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
            # A worker that is killed before it reads would break a pipe, and its orchestrator.
            file.write(text)
            file.seek(0)
            process = subprocess.Popen(
                [sys.executable, __file__, "work"], env=self.fleet.env(agent_id), stdin=file
            )
        self.fleet.attach(agent_id, process)
        self.processes.append(process)
        return agent_id

    def carry_on(self, end: FleetEvent) -> None:
        record = end.handoff
        assert record is not None
        left = len(record.interrupted) + len(record.remaining)
        if left:
            # Delivered twice, e.g. after a crash in here, only one of two successors could claim.
            successor = self.start(record)
            print(f"{end.agent_id} left {left} modules to {successor} ({record.reason})")

    def note_end(self, end: FleetEvent) -> None:
        # A handoff is delivered before the end of its agent: a successor is at work by now.
        if end.outcome == "lost":
            print(f"{end.agent_id} was killed ({(end.exit or {}).get('signal', 'it vanished')})")
        if not end.handoff_follows:
            self.at_work.discard(end.agent_id)
        if not self.at_work:
            self.fleet.stop()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.environ.setdefault("ULTRAMON_STATE_DIR", directory)
        run = os.environ.get("ULTRAMON_RUN") or f"library-{os.getpid()}"
        orchestrator = Orchestrator(run)
        for first in range(3):
            orchestrator.start(MODULES[first::3])
        orchestrator.fleet.run()
        for process in orchestrator.processes:
            process.wait()
        states = orchestrator.fleet.get_states()
        read = {
            task.name for state in states for task in state.tasks or () if task.status == "done"
        }
        print(f"{len(read)} of {len(MODULES)} modules are read")
        assert_no_work_lost(run)
        print("no work was lost")


if __name__ == "__main__":
    work() if sys.argv[1:] == ["work"] else main()
