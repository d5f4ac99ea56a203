"""An orchestrator with real worker processes: work is handed over, also when a worker is killed.

Three workers read modules of Python's standard library with a small context window. Each hands off
when it is told to; the second one dies by SIGKILL on the way, as when the kernel runs out of
memory. The orchestrator starts a successor for every handoff. It learns of all of this from the
records alone: nothing is sent between the processes while they work.

What you should see:

    worker-2 was killed (SIGKILL)
    worker-2 left
    (lost)
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
    first_line, *names = sys.stdin.read().splitlines()
    handoff = HandoffRecord.model_validate_json(first_line) if first_line else None
    # Agent id, run and state directory come from the environment that `Fleet.env` made.
    with create_context_monitor(
        config=ContextConfig(context_limit_tokens=40_000), goal="read them", continues=handoff
    ) as monitor:
        monitor.plan(names)
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
        self.fleet = Fleet(run)
        self.at_work: set[str] = set()
        self.processes: list[subprocess.Popen[str]] = []
        self.numbers = itertools.count(1)
        self.fleet.on("handoff_ready")(self.carry_on)
        self.fleet.on("ended")(self.note_end)

    def start(self, handoff: HandoffRecord | None = None, names: list[str] | None = None) -> str:
        agent_id = f"worker-{next(self.numbers)}"
        process = subprocess.Popen(
            [sys.executable, __file__, "work"],
            env=self.fleet.env(agent_id),
            stdin=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        first_line = handoff.model_dump_json(by_alias=True) if handoff else ""
        process.stdin.write("\n".join([first_line, *(names or [])]))
        process.stdin.close()
        self.fleet.attach(agent_id, process)
        self.at_work.add(agent_id)
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
        self.leave(end.agent_id)

    def note_end(self, end: FleetEvent) -> None:
        if end.outcome == "lost" and end.exit is not None:
            # What a killed worker leaves is rebuilt from its last saved plan, and comes next.
            print(f"{end.agent_id} was killed ({end.exit['signal']})")
        else:
            self.leave(end.agent_id)

    def leave(self, agent_id: str) -> None:
        self.at_work.discard(agent_id)
        if not self.at_work:
            self.fleet.stop()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.environ.setdefault("ULTRAMON_STATE_DIR", directory)
        run = os.environ.get("ULTRAMON_RUN") or f"library-{os.getpid()}"
        orchestrator = Orchestrator(run)
        for first in range(3):
            orchestrator.start(names=MODULES[first::3])
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
