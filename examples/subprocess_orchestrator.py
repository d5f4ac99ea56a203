"""An orchestrator with real worker processes: work is handed over, also when a worker is killed.

Three workers read modules of Python's standard library with a small context window. Each hands off
when it should; one dies by SIGKILL on the way, as when the kernel runs out of memory. The fleet
starts a successor for each, and checks that every module was counted.

What you should see:

    started library
    was lost (SIGKILL)
    24 of 24 verified
    0 lost
    no work was lost
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import ultramon
from ultramon import ContextConfig, Fleet, Job, SupervisorEvent
from ultramon.testing import assert_no_work_lost

LIBRARY = Path(os.__file__).parent
MODULES = [path.name for path in sorted(LIBRARY.glob("[b-d]*.py"))][:24]


def work() -> None:
    """Run one worker; its work comes with the environment that the fleet made."""
    with ultramon.worker(ContextConfig(context_limit_tokens=40_000), goal="read them") as agent:
        for count, name in enumerate(agent.pending(), 1):
            text = (LIBRARY / name).read_text(encoding="utf-8")
            agent.track_content(text)
            if agent.agent_id.endswith(".2") and count == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            Path(name).with_suffix(".count").write_text(f"{len(text.splitlines())} lines\n")


def spawn(job: Job) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, os.path.abspath(__file__), "work"], env=job.env)


def is_counted(name: str) -> bool:
    return Path(name).with_suffix(".count").exists()


def show(event: SupervisorEvent) -> None:
    if event.name in ("started", "restarted"):
        print(f"{event.name} {event.agent_id} with {len(event.items)} modules")
    elif event.name == "ended":
        print(f"{event.agent_id} was {event.reason}, {len(event.items)} modules left")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.environ.setdefault("ULTRAMON_STATE_DIR", directory)
        run = os.environ.get("ULTRAMON_RUN") or f"library-{os.getpid()}"
        here = os.getcwd()
        os.chdir(directory)
        result = Fleet(run).supervise(spawn, MODULES, workers=3, verify=is_counted, on_event=show)
        print(result)
        result.raise_for_failure()
        assert_no_work_lost(run)
        print("no work was lost")
        os.chdir(here)


if __name__ == "__main__":
    work() if sys.argv[1:] == ["work"] else main()
